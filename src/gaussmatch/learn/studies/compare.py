"""Recipes × seeds: train each, measure each on test, and report mean ± std.

Every run is chosen on validation. Finished runs are kept, so a killed comparison continues where it
stopped; a run that fails is reported as failed and the others continue.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gaussmatch.files import read_json
from gaussmatch.learn.evaluation.evaluate import evaluate_run
from gaussmatch.learn.studies.pool import run_all
from gaussmatch.learn.training.loop import train
from gaussmatch.models.recipe import Recipe, find_recipe, load_recipe
from gaussmatch.models.run import claim, extends, read_recipe


@dataclass(frozen=True)
class SeededRun:
    """One run of a comparison: a recipe with a seed, and its folder."""

    recipe: Recipe
    seed: int
    folder: Path

    @property
    def result(self) -> Path:
        return self.folder / "evaluation-test.json"

    @property
    def finished(self) -> bool:
        """Whether it was measured, and not before the recipe got more epochs."""
        return self.result.exists() and not extends(self.recipe, read_recipe(self.folder))


@dataclass(frozen=True)
class Compared:
    """The runs of one recipe: their measures, and the errors of those that failed."""

    title: str
    runs: list[dict[str, Any]]
    errors: list[str]

    def mean_std(self, measure: str) -> tuple[float, float] | None:
        """Mean and sample standard deviation over the seeds, or ``None`` if not measured."""
        values = [float(run[measure]) for run in self.runs if measure in run]
        if not values:
            return None
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def plan(
    recipes: Sequence[str], seeds: int, out: Path, overrides: Sequence[str] = ()
) -> list[SeededRun]:
    """All runs of a comparison, seed by seed so that early results cover every recipe."""
    if seeds < 1:
        raise ValueError(f"at least one seed is needed, got {seeds}")
    cells = []
    for seed in range(seeds):
        for name in recipes:
            recipe = load_recipe(name, [*overrides, "--training.seed", str(seed)])
            cells.append(SeededRun(recipe, seed, out / find_recipe(name).stem / f"seed-{seed}"))
    if len({cell.folder for cell in cells}) < len(cells):
        raise ValueError("two recipes have the same file name; give each its own")
    return cells


def compare(cells: Sequence[SeededRun], jobs: int = 1) -> list[Compared]:
    """Run what is not finished, ``jobs`` at a time; the rows come in the order of the plan. Refuses
    a folder that holds a run of another recipe."""
    for cell in cells:
        claim(cell.folder, cell.recipe, resume=True)
    todo = [cell for cell in cells if not cell.finished]
    work = partial(run_cell, progress_bar=jobs == 1)
    errors = run_all(todo, work, jobs, "run", lambda cell: cell.folder)
    rows: dict[str, Compared] = {}
    for cell in cells:
        name = cell.folder.parent.name
        row = rows.setdefault(name, Compared(cell.recipe.title or name, [], []))
        if cell in errors:
            row.errors.append(f"seed {cell.seed}: {errors[cell]}")
        else:
            row.runs.append(read_json(cell.result))
    return list(rows.values())


def run_cell(cell: SeededRun, progress_bar: bool) -> None:
    """Train and measure one run."""
    train(cell.recipe, cell.folder, resume=True, progress_bar=progress_bar)
    evaluate_run(cell.folder)
