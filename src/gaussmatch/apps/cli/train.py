"""``gaussmatch train RECIPE --out DIR [--resume] [--any.field value]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.learn.evaluation.tables import measures_table
from gaussmatch.learn.training.gather import is_main
from gaussmatch.learn.training.loop import train
from gaussmatch.models.recipe import load_recipe, recipe_parser
from gaussmatch.models.run import METRICS, read_metrics
from gaussmatch.search.trust.gauges import verdict_line
from gaussmatch.search.trust.learn import kept_calibration


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "train",
        "Train a recipe into a run folder.",
        notes="Any field of the recipe can be given too; --help-fields lists them all.",
        examples=[
            "gaussmatch train scenes/vsepp-kl --out runs/mine --training.epochs 20",
            "gaussmatch train scenes/vsepp-kl --out runs/mine --training.epochs 20 --resume",
            "gaussmatch train folder/vsepp-kl --data.root my-photos",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.add_argument("recipe", nargs="?", help="a YAML file, or a name such as scenes/vsepp-kl")
    parser.add_argument("--out", type=Path, help="the run folder (default: runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="continue after the last checkpoint")
    parser.add_argument(
        "--accept-changed-data",
        action="store_true",
        help="resume although images, features or captions have changed",
    )
    parser.add_argument("--help-fields", action="store_true", help="list the recipe's fields")
    options = parser.parse(argv)
    if options.help_fields:
        print(recipe_parser().format_help())
        return
    if options.recipe is None:
        parser.error("a recipe is needed")
    recipe = load_recipe(options.recipe, options.overrides)
    out = options.out or Path("runs") / Path(options.recipe).with_suffix("").name
    try:
        changed = options.accept_changed_data
        model = train(recipe, out, resume=options.resume, accept_changed_data=changed)
    except KeyboardInterrupt:
        print("\nto go on, give the same command again with --resume", file=sys.stderr)
        raise
    if not is_main():
        return
    print(f"{out}: best epoch on validation, {out / METRICS}")
    print(measures_table([(model.recipe.title or out.name, read_metrics(out)["dev"])]))
    if recipe.training.calibrate:
        for name, passed in kept_calibration(out).gauges.items():
            print(verdict_line(name, passed))
    print(f"next: gaussmatch evaluate {out}", file=sys.stderr)
