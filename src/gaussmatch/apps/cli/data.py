"""Data before training: ``gaussmatch data check PATH [--format …]``, ``gaussmatch data where
[NAME]`` and ``gaussmatch scenes make|pretrain``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser, list_verbs
from gaussmatch.checks import counted
from gaussmatch.data import SOURCES, recognize, scenes
from gaussmatch.data.check import SHEET, Report, contact_sheet
from gaussmatch.data.pairs import SPLITS
from gaussmatch.data.scenes.backbone import pretrain
from gaussmatch.files import claim_file
from gaussmatch.models.recipe import DataRecipe


def run_data(argv: Sequence[str]) -> None:
    examples = ["check my-photos", "where coco"]
    list_verbs("data", "Inspect data before training on it.", DATA_VERBS, argv, examples=examples)


def _where(argv: Sequence[str]) -> None:
    """which files each data set needs, and where to get them"""
    parser = Parser(
        "data where",
        "Which files each data set needs, and where to get them.",
        examples=["", "coco"],
    )
    names = [name for name, source in SOURCES.items() if source.where]
    parser.take("name", "default: all", nargs="?", choices=names)
    options = parser.parse(argv)
    chosen = [SOURCES[options.name]] if options.name else SOURCES.values()
    print("\n\n".join(source.where for source in chosen if source.where))


def _check(argv: Sequence[str]) -> None:
    """what a folder holds, and what is wrong with it"""
    parser = Parser(
        "data check",
        "Report what a folder holds and what is wrong with it; write a sheet of its photos.",
        examples=["my-photos", "COCO --format coco --sheet coco.png"],
    )
    formats = [name for name, source in SOURCES.items() if source.signs]
    parser.path("path", "the folder of the data set")
    parser.take("--format", "default: detected from the files", choices=formats)
    parser.take(
        "--sheet", "where to write the page of photos with captions", Path("contact-sheet.png")
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
        raise ValueError(
            "\n  ".join([f"{counted(len(report.problems), 'problem')}:", *report.problems])
        )
    print("no problems found")


DATA_VERBS = {"check": _check, "where": _where}


def run_scenes(argv: Sequence[str]) -> None:
    examples = ["make", "pretrain --out scenenet.safetensors"]
    list_verbs("scenes", "The embedded data set.", SCENES_VERBS, argv, examples=examples)


def _pretrain(argv: Sequence[str]) -> None:
    """train the backbone that ships with the package again"""
    parser = Parser(
        "scenes pretrain",
        "Train the backbone that ships with the package again.",
        examples=["--out scenenet.safetensors", "--out scenenet.safetensors --seed 1"],
        computes=True,
    )
    parser.path("--out", "a .safetensors file", required=True)
    parser.take("--seed", "of the data and the weights", 0)
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
        examples=["", "--size tiny --show 5"],
    )
    parser.take("--size", "number of scenes", "full", choices=tuple(scenes.SIZES))
    parser.take("--seed", "each seed gives a different data set", 0)
    parser.take("--show", "images whose captions to print", 3)
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
