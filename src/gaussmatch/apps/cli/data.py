"""Data before training: ``gaussmatch data check PATH [--format …]``, ``gaussmatch data where
[NAME]`` and ``gaussmatch scenes make|pretrain``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser, run_one_of
from gaussmatch.data import SOURCES, recognize, scenes
from gaussmatch.data.check import SHEET, Report, contact_sheet
from gaussmatch.data.pairs import SPLITS
from gaussmatch.data.scenes.backbone import pretrain
from gaussmatch.files import claim_file
from gaussmatch.models.recipe import DataRecipe


def run_data(argv: Sequence[str]) -> None:
    examples = ["gaussmatch data check my-photos", "gaussmatch data where coco"]
    run_one_of("data", "Inspect data before training on it.", DATA_VERBS, argv, examples=examples)


def _where(argv: Sequence[str]) -> None:
    """which files each data set needs, and where to get them"""
    parser = Parser(
        "data where",
        "Which files each data set needs, and where to get them.",
        examples=["gaussmatch data where", "gaussmatch data where coco"],
    )
    names = [name for name, source in SOURCES.items() if source.where]
    parser.add_argument("name", nargs="?", choices=names, help="default: all")
    options = parser.parse(argv)
    chosen = [SOURCES[options.name]] if options.name else SOURCES.values()
    print("\n\n".join(source.where for source in chosen if source.where))


def _check(argv: Sequence[str]) -> None:
    """what a folder holds, and what is wrong with it"""
    parser = Parser(
        "data check",
        "Report what a folder holds and what is wrong with it; write a sheet of its photos.",
        examples=[
            "gaussmatch data check my-photos",
            "gaussmatch data check COCO --format coco --sheet coco.png",
        ],
    )
    formats = [name for name, source in SOURCES.items() if source.signs]
    parser.add_argument("path", type=Path, help="the folder of the data set")
    parser.add_argument("--format", choices=formats, help="default: detected from the files")
    parser.add_argument(
        "--sheet",
        type=Path,
        default=Path("contact-sheet.png"),
        help="where to write the page of photos with captions",
    )
    options = parser.parse(argv)
    claim_file(options.sheet, SHEET)
    source = SOURCES[options.format] if options.format else recognize(options.path)
    print(f"{options.path}: {source.name}")
    report = source.report(options.path)
    if source.read is not None:
        recipe = DataRecipe(name=source.name, root=str(options.path))
        shown = contact_sheet(source.listing(recipe, source.root(recipe)), options.sheet)
        report.lines.append(f"written: {options.sheet}, {shown} photos" if shown else "no sheet")
    _print(report)


def _print(report: Report) -> None:
    print("\n".join(report.lines))
    if report.problems:
        raise ValueError("\n  ".join([f"{len(report.problems)} problem(s):", *report.problems]))
    print("no problems found")


DATA_VERBS = {"check": _check, "where": _where}


def run_scenes(argv: Sequence[str]) -> None:
    examples = ["gaussmatch scenes make", "gaussmatch scenes pretrain --out scenenet.safetensors"]
    run_one_of("scenes", "The embedded data set.", SCENES_VERBS, argv, examples=examples)


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


SCENES_VERBS = {"make": _make, "pretrain": _pretrain}
