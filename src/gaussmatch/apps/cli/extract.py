"""``gaussmatch extract PATH --out DIR``: photos → features in the precomputed layout."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.data import SOURCES, recognize
from gaussmatch.device import default_device
from gaussmatch.files import claim_folder
from gaussmatch.models.encoders.pretrained import Spec, image_tower
from gaussmatch.models.features.photos import (
    MANIFEST,
    UNREADABLE,
    Boxes,
    ExtractionPlan,
    Layout,
    describe,
    extract,
)
from gaussmatch.models.recipe import DataRecipe


def run(argv: Sequence[str]) -> None:
    options = _options(argv)
    claim_folder(options.out, MANIFEST)
    source = SOURCES[options.format] if options.format else recognize(options.path)
    if source.read is None:
        raise ValueError(f"{options.path} is {source.name}, which has no photos to extract from")
    listing = source.listing(DataRecipe(name=source.name), options.path)
    boxes = None if options.boxes is None else Boxes(options.boxes)
    layout = cast(Layout, options.features if boxes is None else "boxes")
    plan = ExtractionPlan(
        options.shard, options.batch, options.part, options.workers, options.skip_unreadable
    )
    whole = options.view == "whole"
    net = image_tower(options.backbone, options.weights, whole).to(default_device())
    place = options.weights or Spec.of(options.backbone).place
    manifest = describe(net, place, layout, options.crops)
    done = extract(listing, options.out, net, manifest, plan=plan, boxes=boxes)
    if (options.out / UNREADABLE).is_file():
        print(f"left out, see {options.out / UNREADABLE}")
    if not done:
        print("this part is done; the part that finishes last joins the shards")
        return
    shape = "36 × " * (layout != "pooled") + str(net.width)
    print(f"{options.out}: {len(listing.photos):,} photos → {shape}, float16, of {net.name}")
    print(f"next: gaussmatch train … --data.root {options.path} --data.extracted {options.out}")


def _options(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "extract",
        "Compute the features of photos once, in the precomputed layout. Resumes if interrupted.",
        examples=[
            "gaussmatch extract flickr8k --out features --backbone resnet152",
            "gaussmatch extract my-photos --out features --weights resnet50.safetensors",
            "gaussmatch extract coco --out regions --features regions --part 0/4",
        ],
        computes=True,
    )
    parser.add_argument("path", type=Path, help="the folder of the data set")
    parser.add_argument("--out", type=Path, required=True, help="the output folder")
    parser.add_argument(
        "--format", choices=[n for n, s in SOURCES.items() if s.read], help="detected by default"
    )
    parser.add_argument(
        "--backbone",
        default="resnet50",
        help="an image encoder: a timm name, open_clip:…, hf:…, onnx:FILE",
    )
    parser.add_argument("--weights", type=Path, help="a local file; by default timm downloads them")
    parser.add_argument("--features", default="pooled", choices=("pooled", "regions"))
    parser.add_argument(
        "--view", default="center", choices=("center", "whole"), help="whole: squeezed to a square"
    )
    parser.add_argument(
        "--crops", type=int, default=0, help="also random crops of each training photo (data.crops)"
    )
    parser.add_argument("--boxes", type=Path, help="detector boxes as JSON lines, for regions")
    parser.add_argument("--skip-unreadable", action="store_true", help="leave out broken photos")
    parser.add_argument("--batch", type=int, help="photos at once (default: 2 on a CPU, else 64)")
    parser.add_argument(
        "--shard", type=int, default=256, help="photos per shard: what an interruption can lose"
    )
    parser.add_argument(
        "--part", type=part_of, default=(0, 1), help="k/N: only every N-th shard, starting at k = 0"
    )
    parser.add_argument("--workers", type=int, default=2, help="threads that decode photos")
    options = parser.parse(argv)
    if options.boxes is not None and options.features == "pooled":
        parser.error("--boxes makes region features: add --features regions")
    if options.crops and options.boxes is not None:
        parser.error("--crops applies to whole photos: leave out --boxes")
    return options


def part_of(text: str) -> tuple[int, int]:
    k, slash, of = text.partition("/")
    if not slash or not k.isdigit() or not of.isdigit():
        raise ArgumentTypeError(f"{text!r} is not k/N, such as 0/4")
    return int(k), int(of)
