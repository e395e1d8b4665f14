"""``gaussmatch compare RECIPE [RECIPE …] --seeds 5 --out DIR [--any.field value]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.core.metrics.measures import heading, shown
from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.learn.studies.experiment import mean_std
from gaussmatch.learn.studies.plans import compare

RESULT = "comparison.json"
SHOWN = ("rsum", "i2t_r_precision", "t2i_r_precision", "caption_rho", "image_rho")


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "compare",
        "Train recipes over several seeds, each chosen on validation, and print their "
        "test measures as mean ± std. Finished runs are kept: run it again to continue.",
        notes="Any field of the recipes can be given too, for all of them.",
        examples=[
            "gaussmatch compare scenes/vsepp scenes/vsepp-kl --seeds 5 --jobs 2",
            "gaussmatch compare scenes/vsepp-kl --seeds 2 --data.size tiny --training.epochs 2",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.add_argument("recipes", nargs="+", help="YAML files or names such as scenes/vsepp-kl")
    parser.add_argument("--seeds", type=int, default=5, help="runs per recipe")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="the output folder")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs, which share the cores")
    o = parser.parse(argv)
    rows = compare(o.recipes, o.seeds, o.out, o.overrides, o.jobs)
    print(seeds_table(rows))
    print(f"written: {o.out / 'comparison.json'}")
    failed = [f"{row['title']}, {error}" for row in rows for error in row["errors"]]
    if failed:
        raise ValueError("some runs failed:\n  " + "\n  ".join(failed))


def seeds_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean ± std over the seeds, one row for each recipe."""
    keys = [key for key in SHOWN if any(key in run for row in rows for run in row["runs"])]
    cells = [["model", "runs", *(heading(key) for key in keys)]]
    for row in rows:
        cells.append([row["title"], str(len(row["runs"]))])
        for key in keys:
            mean, std = mean_std([float(run[key]) for run in row["runs"] if key in run])
            cells[-1].append("" if mean is None else f"{shown(key, mean)} ± {shown(key, std)}")
    return plain_table(cells)
