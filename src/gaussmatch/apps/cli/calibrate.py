"""``gaussmatch calibrate RUN``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.files import claim_file
from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.models.run import CALIBRATION, PROBE, is_shipped, locate
from gaussmatch.search.trust.calibration import GALLERIES
from gaussmatch.search.trust.gauges import verdict_line
from gaussmatch.search.trust.learn import SUMMARY, calibrate_run


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "calibrate",
        "Learn what the numbers of a run mean, from its training and validation data: percentiles, "
        "familiarity, what fits, how many do, and guarantees. Kept in the run, and copied with it.",
        examples=[
            "gaussmatch calibrate runs/demo/probabilistic",
            "gaussmatch calibrate runs/photos --data.name folder --data.root my-photos",
            "gaussmatch calibrate photos --data.root COCO --data.also '{flickr8k: FLICKR8K}' "
            "--fitting fitting_photos.jsonl --out calibration.json",
        ],
        notes="Fields of the recipe's data can be given too, to learn from other data.",
        fields=("data",),
        computes=True,
    )
    parser.add_argument("run", type=locate, help="a run folder")
    parser.add_argument(
        "--fitting",
        type=Path,
        metavar="FILE",
        help="photos that people say captions fit, as JSON lines: caption, image, photos",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the calibration there, not into the run"
    )
    options = parser.parse(argv)
    if is_shipped(options.run) and options.out is None:
        name = options.run.name
        raise ValueError(
            f"{name} comes with the package, calibrated. For your own data copy it, in Python: "
            f"gm.save_pretrained({name!r}, 'runs/{name}'), and calibrate the copy: "
            f"gaussmatch calibrate runs/{name} --data.name folder --data.root FOLDER"
        )
    if options.out is not None:
        claim_file(options.out, '"quantiles"')
    start = time.monotonic()

    def say(step: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {step}", file=sys.stderr, flush=True)

    calibration = calibrate_run(options.run, options.overrides, options.fitting, options.out, say)
    titles = ("ECE", "softmax", "80 %", "recall", "the one", "absent")
    rows = [
        (f"{kind}, among {g}", *(f"{found.get(n, float('nan')):.4f}" for n in SUMMARY))
        for g in GALLERIES
        for kind, found in calibration.about[g].items()
    ]
    print(plain_table([("queries that were set aside", *titles), *rows]))
    for name, passed in calibration.gauges.items():
        print(verdict_line(name, passed))
    written = f"in {options.run}: {CALIBRATION}, {PROBE}" if options.out is None else options.out
    print(f"written {written}")
