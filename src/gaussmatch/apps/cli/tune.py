"""``gaussmatch tune SEARCH --out DIR [--any.field value]``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.learn.studies.plans import load_search, tune


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "tune",
        "Search the fields of recipes on validation: as many trials for every row, the best "
        "validation rsum wins, test is never looked at. Run it again to continue.",
        notes="Any field of the recipes can be given too, for all trials.",
        examples=[
            "gaussmatch tune coco_real --data.root COCO --out runs/tune --jobs 2",
            "gaussmatch tune flickr8k --data.root FLICKR8K --budget 3 --training.epochs 3",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.add_argument("search", help="a YAML file, or a name in recipes/search")
    parser.add_argument("--out", type=Path, default=Path("runs/tune"), help="the output folder")
    parser.add_argument("--budget", type=int, help="trials per row (default: as the search says)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="parallel trials, which share the cores"
    )
    options = parser.parse(argv)
    search = load_search(options.search)
    if options.budget is not None:
        search = replace(search, budget=options.budget)
    found = tune(search, options.out, options.overrides, options.jobs)
    cells = [["row", "trials", "dev rsum", "epoch", "fields"]]
    for row, best in found["best"].items():
        done = sum(t["row"] == row and t["error"] is None for t in found["trials"])
        fields = ", ".join(f"{key} {value}" for key, value in best["fields"].items())
        cells.append([row, str(done), f"{best['dev_rsum']:.1f}", str(best["epoch"]), fields])
    print(plain_table(cells))
    print(f"written: {options.out / 'trials.json'}, {options.out / 'best'}")
    failed = [
        f"{t['row']}, trial {t['trial']}: {t['error']}" for t in found["trials"] if t["error"]
    ]
    if failed:
        raise ValueError("some trials failed:\n  " + "\n  ".join(failed))
