"""``gaussmatch demo [--out runs/demo] [--any.field value]``."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.apps.demo import run_demo
from gaussmatch.learn.evaluation.tables import measures_table


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "demo",
        "Make scenes, train VSE++ as points and as Gaussians with the same budget, then by the "
        "recommended recipe, compare them and write a report. What is already trained in the "
        "folder is used.",
        notes="Any field of the recipes can be given too.",
        examples=[
            "gaussmatch demo",
            "gaussmatch demo --out runs/quick --data.size tiny --training.epochs 2",
            "gaussmatch demo --threads 1",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="the output folder")
    options = parser.parse(argv)
    started = time.perf_counter()
    entrants, report, index = run_demo(options.out, options.overrides)
    print(measures_table([(e.name, e.measures) for e in entrants]))
    rho = entrants[-1].measures["caption_rho"]
    print(
        f"\nρ captions = {rho:.2f}: how well a caption's uncertainty follows the number of images "
        "it is true of (1 = same order).\n"
        + ("" if entrants[0].measures["images"] >= 1000 else "Small data: a look, not a result.\n")
        + f"{(time.perf_counter() - started) / 60:.1f} minutes. Open the report: {report}\n"
        f"Search the pictures in your browser: {_command()} serve {index}"
    )


def _command() -> str:
    """As the user can type it: the command in an environment that is not active has a path."""
    here = Path(sys.argv[0])
    if here.name != "gaussmatch" or shutil.which("gaussmatch") is not None:
        return "gaussmatch"
    return os.path.relpath(here)
