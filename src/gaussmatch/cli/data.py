"""``gaussmatch data check PATH [--format …]`` and ``gaussmatch data where [NAME]``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from gaussmatch.data.check import (
    FORMATS,
    Report,
    check_cxc,
    check_listing,
    check_precomputed,
    guess_format,
)
from gaussmatch.data.contact_sheet import contact_sheet
from gaussmatch.data.photos import read_listing
from gaussmatch.data.where import WHERE
from gaussmatch.recipe import DataName, DataRecipe


def run(argv: Sequence[str]) -> None:
    parser = ArgumentParser("gaussmatch data", description="Look at data before training on it.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="say what is there and what is wrong with it")
    check.add_argument("path", type=Path, help="the folder of the data set")
    check.add_argument("--format", choices=FORMATS, help="guessed from the files if not given")
    check.add_argument(
        "--sheet",
        type=Path,
        default=Path("contact-sheet.png"),
        help="where the page of photos with captions goes (default: contact-sheet.png)",
    )
    where = verbs.add_parser("where", help="which files each data set needs, and from where")
    where.add_argument("name", nargs="?", choices=tuple(WHERE))
    options = parser.parse_args(argv)
    if options.verb == "where":
        print("\n\n".join([WHERE[options.name]] if options.name else WHERE.values()))
        return
    _check(options)


def _check(options: Namespace) -> None:
    form = options.format or guess_format(options.path)
    print(f"{options.path}: {form}")
    if form == "cxc":
        report = check_cxc(options.path)
    elif form == "precomputed":
        report = check_precomputed(options.path)
    else:
        recipe = DataRecipe(name=cast(DataName, form), root=str(options.path))
        listing = read_listing(recipe, options.path)
        report = check_listing(listing)
        shown = contact_sheet(listing, options.sheet)
        report.lines.append(f"written: {options.sheet}, {shown} photos" if shown else "no sheet")
    _tell(report)


def _tell(report: Report) -> None:
    print("\n".join(report.lines))
    if report.problems:
        raise ValueError("\n  ".join([f"{len(report.problems)} problem(s):", *report.problems]))
    print("no problems found")
