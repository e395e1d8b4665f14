"""``gaussmatch scenes make|pretrain``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser, run_one_of
from gaussmatch.data import scenes
from gaussmatch.data.pairs import SPLITS
from gaussmatch.data.scenes.backbone import pretrain
from gaussmatch.files import claim_file


def run(argv: Sequence[str]) -> None:
    examples = ["gaussmatch scenes make", "gaussmatch scenes pretrain --out scenenet.safetensors"]
    run_one_of("scenes", "The embedded data set.", VERBS, argv, examples=examples)


def _pretrain(argv: Sequence[str]) -> None:
    """train the backbone that ships with the package again"""
    parser = Parser(
        "scenes pretrain",
        "Train the backbone that ships with the package again.",
        examples=[
            "gaussmatch scenes pretrain --out scenenet.safetensors",
            "gaussmatch scenes pretrain --out scenenet.safetensors --seed 1",
        ],
        computes=True,
    )
    parser.add_argument("--out", type=Path, required=True, help="a .safetensors file")
    parser.add_argument("--seed", type=int, default=0, help="of the data and the weights")
    options = parser.parse(argv)
    if options.out is not None:
        claim_file(options.out, "body.0.0.weight")
    pretrain(seed=options.seed, out=options.out)
    print(f"written: {options.out}")


def _make(argv: Sequence[str]) -> None:
    """make it and look at it"""
    parser = Parser(
        "scenes make",
        "Make the embedded data set and print some captions.",
        examples=["gaussmatch scenes make", "gaussmatch scenes make --size tiny --show 5"],
    )
    parser.add_argument(
        "--size", default="full", choices=tuple(scenes.SIZES), help="number of scenes"
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed is another data set")
    parser.add_argument("--show", type=int, default=3, help="images whose captions to print")
    options = parser.parse(argv)
    data = scenes.load(options.size, options.seed)
    for name in SPLITS:
        pairs = data.split(name)
        print(f"{name}: {len(pairs.images)} images, {len(pairs.captions)} captions")
    _show(data.test, options.show)


def _show(pairs: scenes.Pairs, images: int) -> None:
    assert pairs.relevance is not None
    for image in range(min(images, len(pairs.images))):
        print(f"\ntest image {image}")
        for caption in (pairs.image_of == image).nonzero().flatten().tolist():
            print(f"  {pairs.captions[caption]}  (true of {len(pairs.relevance.of(caption))})")


VERBS = {"make": _make, "pretrain": _pretrain}
