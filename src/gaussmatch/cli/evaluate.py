"""``gaussmatch evaluate RUN [RUN …] [--split test]``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.cli.tables import measures_table
from gaussmatch.evaluation.evaluate import evaluate_run
from gaussmatch.run import load


def run(argv: Sequence[str]) -> None:
    parser = ArgumentParser("gaussmatch evaluate", description="Measure runs on a split.")
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--split", default="test", choices=("train", "dev", "test"))
    options = parser.parse_args(argv)
    rows = []
    for folder in options.runs:
        rows.append((load(folder).recipe.title or folder.name, evaluate_run(folder, options.split)))
    print(measures_table(rows))
    for folder in options.runs:
        print(f"written: {folder / f'evaluation-{options.split}.json'}")
