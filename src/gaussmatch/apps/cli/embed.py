"""Many photos at once: ``gaussmatch extract PATH --out DIR``, photos → features in the precomputed
layout, and ``gaussmatch embed RUN SOURCE --out DIR``, items → shards of Gaussians."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from gaussmatch.apps.cli.index import STRICT
from gaussmatch.apps.cli.parser import Parser
from gaussmatch.apps.cli.search import plain
from gaussmatch.data import SOURCES, recognize
from gaussmatch.device import choose_device, default_device
from gaussmatch.files import claim_folder
from gaussmatch.models.encoders.pretrained import Spec, image_tower
from gaussmatch.models.features import photos
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.models.run import locate
from gaussmatch.search.embedding import EmbeddingManifest, Share, Work, embed, embed_with_ray


def run_extract(argv: Sequence[str]) -> None:
    options = _extract_options(argv)
    claim_folder(options.out, photos.MANIFEST)
    source = SOURCES[options.format] if options.format else recognize(options.path)
    if source.read is None:
        raise ValueError(f"{options.path} is {source.name}, which has no photos to extract from")
    listing = source.listing(DataRecipe(name=source.name), options.path)
    boxes = None if options.boxes is None else photos.Boxes(options.boxes)
    layout = cast(photos.Layout, options.features if boxes is None else "boxes")
    plan = photos.ExtractionPlan(
        options.shard, options.batch, options.part, options.workers, options.skip_unreadable
    )
    whole = options.view == "whole"
    net = image_tower(options.backbone, options.weights, whole).to(default_device())
    place = options.weights or Spec.of(options.backbone).place
    manifest = photos.describe(net, place, layout, options.crops)
    done = photos.extract(listing, options.out, net, manifest, plan=plan, boxes=boxes)
    if (options.out / photos.UNREADABLE).is_file():
        print(f"left out, see {options.out / photos.UNREADABLE}")
    if not done:
        print("this part is done; the part that finishes last joins the shards")
        return
    shape = "36 × " * (layout != "pooled") + str(net.width)
    print(f"{options.out}: {len(listing.photos):,} photos → {shape}, float16, of {net.name}")
    print(f"next: gaussmatch train … --data.root {options.path} --data.extracted {options.out}")


def _extract_options(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "extract",
        "Compute the features of photos once, in the precomputed layout. Resumes if interrupted.",
        examples=[
            "flickr8k --out features --backbone resnet152",
            "my-photos --out features --weights resnet50.safetensors",
            "coco --out regions --features regions --part 0/4",
        ],
        computes=True,
    )
    parser.path("path", "the folder of the data set")
    parser.path("--out", "the output folder", required=True)
    parser.take(
        "--format", "detected by default", choices=[n for n, s in SOURCES.items() if s.read]
    )
    parser.take(
        "--backbone", "an image encoder: a timm name, open_clip:…, hf:…, onnx:FILE", "resnet50"
    )
    parser.path("--weights", "a local file; by default timm downloads them")
    parser.add_argument("--features", default="pooled", choices=("pooled", "regions"))
    parser.take("--view", "whole: squeezed to a square", "center", choices=("center", "whole"))
    parser.take("--crops", "also random crops of each training photo (data.crops)", 0)
    parser.path("--boxes", "detector boxes as JSON lines, for regions")
    parser.flag("--skip-unreadable", "leave out broken photos")
    parser.take("--batch", "photos at once (default: 2 on a CPU, else 64)", type=int)
    _add_shards(parser, "photos", 256, (0, 1))
    parser.take("--workers", "threads that decode photos", 2)
    options = parser.parse(argv)
    if options.boxes is not None and options.features == "pooled":
        parser.error("--boxes makes region features: add --features regions")
    if options.crops and options.boxes is not None:
        parser.error("--crops applies to whole photos: leave out --boxes")
    return options


def _add_shards(parser: Parser, items: str, size: int, part: tuple[int, int] | None = None) -> None:
    parser.take("--shard", f"{items} per shard: what an interruption can lose", size)
    parser.take("--part", "k/N: only every N-th shard, starting at k = 0", part, type=part_of)


def part_of(text: str) -> tuple[int, int]:
    k, slash, of = text.partition("/")
    if not slash or not k.isdigit() or not of.isdigit():
        raise ArgumentTypeError(f"{text!r} is not k/N, such as 0/4")
    return int(k), int(of)


def run_embed(argv: Sequence[str]) -> None:
    parser = Parser(
        "embed",
        "Embed a data set or a folder of photos in shards. Resumes if interrupted. Under "
        "torchrun (torchrun --nproc-per-node 4 -m gaussmatch embed …) each process takes its "
        "share.",
        examples=[
            "runs/mine my-photos --out shards",
            "runs/mine train --out shards --engine ray --workers 4",
            "runs/mine my-photos --out shards --part 0/4",
        ],
        computes=True,
    )
    parser.take("run", "the run folder of the model, or photos", type=locate)
    parser.take("source", "train, dev or test of its data, or a folder of photos")
    parser.path("--out", "the output folder", required=True)
    _add_shards(parser, "items", 4096)
    parser.add_argument("--engine", choices=("torchrun", "ray"), default="torchrun")
    parser.take("--workers", "actors of --engine ray", 2)
    parser.flag("--strict", STRICT)
    options = parser.parse(argv)
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    if options.engine == "ray" and options.part is not None:
        parser.error("--part is for processes started by hand; Ray shares the work itself")

    work = Work(options.run, options.source, options.strict, _device(options))
    model, source = work()
    embedding = work.embedding(source, options.shard)
    part = Share(*options.part) if options.part else Share.of_torchrun()
    if options.engine == "ray":
        del model
        done = embed_with_ray(_everywhere(work), embedding, options.out, options.workers)
    else:
        done = embed(model, source, embedding, options.out, part)
        for id_, reason in source.skipped.items():
            print(f"skipped: {plain(id_)}: {plain(reason)}")
    if part.k == 0 or done:
        _report(embedding, options, done, part)


def _device(options: Namespace) -> str:
    """On a machine with several GPUs each process of torchrun has its own."""
    name = str(choose_device(options.device))
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if name == "cuda" and local is not None else name


def _everywhere(work: Work) -> Work:
    """The same work from any current folder."""
    path = Path(work.source)
    source = str(path.resolve()) if path.is_dir() else work.source
    return Work(work.run.resolve(), source, work.strict, work.device)


def _report(embedding: EmbeddingManifest, options: Namespace, done: bool, part: Share) -> None:
    held = ", ".join(f"{held['items']:,} {name}" for name, held in embedding.galleries.items())
    if not done:
        print(f"part {part.k} of {part.of} is done; the other parts are not yet")
        return
    print(f"{options.out}: {held} in {len(embedding.shards())} shards")
    print(f"next: gaussmatch index {options.run} {options.out} --out …")
