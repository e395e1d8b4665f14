"""``gaussmatch demo [--out runs/demo] [--any.field value]``: a point model, its probabilistic twin
and the recommended recipe on the same data, compared and reported."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.data import DataSet
from gaussmatch.files import claim_folder
from gaussmatch.learn.evaluation.evaluate import evaluate_run
from gaussmatch.learn.evaluation.tables import measures_table
from gaussmatch.learn.studies.report import Entrant, write_report
from gaussmatch.learn.training.loop import CollapseWarning, train
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import load_recipe, typed
from gaussmatch.models.run import load
from gaussmatch.search import Index, index_pairs
from gaussmatch.search.index import existing_index
from gaussmatch.search.trust import kept_calibration


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "demo",
        "Make scenes, train VSE++ as points and as Gaussians with the same budget, then by the "
        "recommended recipe, compare them and write a report. What is already trained in the "
        "folder is used.",
        notes="Any field of the recipes can be given too.",
        examples=["", "--out runs/quick --data.size tiny --training.epochs 2", "--threads 1"],
        fields=SECTIONS,
        computes=True,
    )
    parser.take("--out", "the output folder", Path("runs/demo"))
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


RUNS = {
    "point": "scenes/vsepp",
    "probabilistic": "scenes/vsepp-kl",
    "recommended": "scenes/recommended",
}
"""Run name → recipe. The first two have the same budget, loss and network: the paper's claim. The
last has the uncertainty to rely on (docs/uncertainty.md), and is the one to search with."""


def run_demo(out: Path, overrides: Mapping[str, Any] = {}) -> tuple[list[Entrant], Path, Path]:
    """Train, measure and report all, then index the test split to search it; finished runs in
    ``out`` are used as they are. Gives all with their measures, the report, the index."""
    recipes = {name: load_recipe(recipe, overrides) for name, recipe in RUNS.items()}
    claim_folder(out, names=[*RUNS, "report.html", "index"])
    data = load_data(recipes["point"].data)
    entrants = []
    for name, recipe in recipes.items():
        with _collapse_explained(recipe.title):
            train(recipe, out / name, resume=True, data=data)
        entrants.append(Entrant(recipe.title, out / name, evaluate_run(out / name, data=data)))
    report = out / "report.html"
    commands = [
        " ".join(["gaussmatch train", recipe, "--out", str(out / name), *typed(overrides)])
        for name, recipe in RUNS.items()
    ]
    write_report(report, entrants, load(out / "recommended"), data.test, commands)
    return entrants, report, _index(out, data)


@contextmanager
def _collapse_explained(title: str) -> Iterator[None]:
    """The point model's loss is stuck for a while; here that needs no action."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, CollapseWarning):
            shown(message, category, *where, **more)
            return
        tqdm.write(
            f"note: the loss of {title} stays at the margin for some epochs. That is expected "
            "here: captions of scenes fit many pictures, so the hardest negative is often a true "
            "match. The best epoch on validation is kept; docs/results.md compares other mining.",
            file=sys.stderr,
        )

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _index(out: Path, data: DataSet) -> Path:
    """The pictures and captions of the test split, found by the model just trained. An index of
    an earlier demo is made again, as it takes seconds and the model may be another."""
    run, folder = out / "recommended", out / "index"
    if (old := existing_index(folder)) is not None:
        old.drop()
    index = Index.create(folder, run, calibration=kept_calibration(run))
    index_pairs(index, data.test, "test")
    return folder
