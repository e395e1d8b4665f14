"""``gaussmatch calibrate RUN``."""

from __future__ import annotations

from collections.abc import Sequence

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.models.run import CALIBRATION, PROBE, is_shipped, locate
from gaussmatch.search.trust.calibration import GALLERIES
from gaussmatch.search.trust.learn import calibrate_run


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "calibrate",
        "Learn what the numbers of a run mean, from its training and validation data: percentiles, "
        "familiarity, match probabilities and guarantees. Kept in the run, and copied with it.",
        examples=[
            "gaussmatch calibrate runs/demo/probabilistic",
            "gaussmatch calibrate runs/photos --data.name folder --data.root my-photos",
        ],
        notes="Fields of the recipe's data can be given too, to learn from other data.",
        fields=("data",),
        computes=True,
    )
    parser.add_argument("run", type=locate, help="a run folder")
    options = parser.parse(argv)
    if is_shipped(options.run):
        name = options.run.name
        raise ValueError(
            f"{name} comes with the package, calibrated. For your own data copy it, in Python: "
            f"gm.save_pretrained({name!r}, 'runs/{name}'), and calibrate the copy: "
            f"gaussmatch calibrate runs/{name} --data.name folder --data.root FOLDER"
        )
    calibration = calibrate_run(options.run, options.overrides)
    names = ("ece", "isotonic_ece", "brier", "isotonic_brier", "absent_auroc", "absent_topic_auroc")
    titles = ("ECE", "isotonic", "Brier", "isotonic", "match absent", "topic absent")
    rows = [
        (f"search among {g}", *(f"{calibration.about[g].get(n, float('nan')):.4f}" for n in names))
        for g in GALLERIES
    ]
    print(plain_table([("match probability, cross-validated", *titles), *rows]))
    for side, passed in calibration.gauges.items():
        print(f"the gauge of {side} {'passed' if passed else 'failed: its percentile is hidden'}")
    print(f"written in {options.run}: {CALIBRATION}, {PROBE}")
