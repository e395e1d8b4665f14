"""``gaussmatch data check PATH [--format …]`` and ``gaussmatch data where [NAME]``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.data import SOURCES, recognise
from gaussmatch.data.check import Report
from gaussmatch.data.contact_sheet import contact_sheet
from gaussmatch.recipe import DataRecipe


def run(argv: Sequence[str]) -> None:
    parser = ArgumentParser("gaussmatch data", description="Look at data before training on it.")
    formats = [name for name, source in SOURCES.items() if source.signs]
    verbs = parser.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="say what is there and what is wrong with it")
    check.add_argument("path", type=Path, help="the folder of the data set")
    check.add_argument("--format", choices=formats, help="guessed from the files if not given")
    check.add_argument(
        "--sheet",
        type=Path,
        default=Path("contact-sheet.png"),
        help="where the page of photos with captions goes (default: contact-sheet.png)",
    )
    where = verbs.add_parser("where", help="which files each data set needs, and from where")
    where.add_argument("name", nargs="?", choices=[n for n, s in SOURCES.items() if s.where])
    options = parser.parse_args(argv)
    if options.verb == "where":
        chosen = [SOURCES[options.name]] if options.name else SOURCES.values()
        print("\n\n".join(source.where for source in chosen if source.where))
        return
    _check(options)


def _check(options: Namespace) -> None:
    source = SOURCES[options.format] if options.format else recognise(options.path)
    print(f"{options.path}: {source.name}")
    report = source.report(options.path)
    if source.read is not None:
        listing = source.listing(DataRecipe(name=source.name), options.path)
        shown = contact_sheet(listing, options.sheet)
        report.lines.append(f"written: {options.sheet}, {shown} photos" if shown else "no sheet")
    _print(report)


def _print(report: Report) -> None:
    print("\n".join(report.lines))
    if report.problems:
        raise ValueError("\n  ".join([f"{len(report.problems)} problem(s):", *report.problems]))
    print("no problems found")
