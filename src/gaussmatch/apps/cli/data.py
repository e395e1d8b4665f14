"""``gaussmatch data check PATH [--format …]`` and ``gaussmatch data where [NAME]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser, run_one_of
from gaussmatch.data import SOURCES, recognise
from gaussmatch.data.check import SHEET, Report, contact_sheet
from gaussmatch.files import claim_file
from gaussmatch.models.recipe import DataRecipe


def run(argv: Sequence[str]) -> None:
    examples = ["gaussmatch data check my-photos", "gaussmatch data where coco"]
    run_one_of("data", "Inspect data before training on it.", VERBS, argv, examples=examples)


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
    source = SOURCES[options.format] if options.format else recognise(options.path)
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


VERBS = {"check": _check, "where": _where}
