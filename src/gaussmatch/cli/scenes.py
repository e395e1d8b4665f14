"""``gaussmatch scenes make|pretrain``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.data import scenes
from gaussmatch.data.scenes.backbone import pretrain


def run(argv: Sequence[str]) -> None:
    parser = ArgumentParser("gaussmatch scenes", description="The embedded data set.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("make", help="make it and look at it")
    make.add_argument("--size", default="full", choices=tuple(scenes.SIZES))
    make.add_argument("--seed", type=int, default=0)
    make.add_argument("--show", type=int, default=3, help="images whose captions are printed")
    again = verbs.add_parser(
        "pretrain", help="train the backbone that ships with the package again"
    )
    again.add_argument("--out", type=Path, required=True, help="a .safetensors file")
    again.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.verb == "pretrain":
        pretrain(seed=options.seed, out=options.out)
        print(f"written: {options.out}")
        return
    data = scenes.load(options.size, options.seed)
    for name in ("train", "dev", "test"):
        pairs = data.split(name)
        print(f"{name}: {len(pairs.images)} images, {len(pairs.captions)} captions")
    _show(data.test, options.show)


def _show(pairs: scenes.Pairs, images: int) -> None:
    assert pairs.relevance is not None
    for image in range(min(images, len(pairs.images))):
        print(f"\ntest image {image}")
        for caption in (pairs.image_of == image).nonzero().flatten().tolist():
            print(f"  {pairs.captions[caption]}  (true of {len(pairs.relevance.of(caption))})")
