"""A search for the fields of recipes on validation, written down as data that can be run again.

A search names rows (recipes) and what may vary. Every row gets the same number of trials, drawn
from its grid by the seed of the search, and the trial with the best validation rsum is its choice.
Test is never looked at. Finished trials are kept, so a killed search continues.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from gaussmatch.checks import known
from gaussmatch.files import claim_folder, write_json
from gaussmatch.learn.studies.experiment import slug
from gaussmatch.learn.studies.pool import run_all
from gaussmatch.learn.training.loop import train
from gaussmatch.models.recipe import Recipe, load_recipe, recipe_folder
from gaussmatch.models.run import claim, is_finished, read_metrics

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Search:
    """One file of ``recipes/search``.

    Args:
        title: what is searched.
        budget: trials of each row.
        rows: row → its recipe, and what may vary for it alone.
        grid: field → values, for every row. A value that is a mapping gives several fields at once
            (a loss with its own margin or scale); its key is then only a name.
        fields: fields that all trials share.
        seed: of the draw.
    """

    title: str
    budget: int
    rows: Mapping[str, Mapping[str, Any]]
    grid: Grid = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError(f"budget must be at least 1, got {self.budget}")
        for name, row in self.rows.items():
            if "recipe" not in row:
                raise ValueError(f"row {name!r}: names no recipe")
            for key in row:
                known(f"row {name!r}: key", key, ("recipe", "grid", "fields"))

    def draws(self, row: str) -> list[dict[str, Any]]:
        """The trials of a row: ``budget`` different points of its grid, the first of them the
        same for every budget.

        >>> search = Search("", 2, {"a": {"recipe": "x"}}, {"loss.margin": [0.1, 0.2]})
        >>> search.draws("a")
        [{'loss.margin': 0.2}, {'loss.margin': 0.1}]
        """
        grid = {**self.grid, **self.rows[row].get("grid", {})}
        points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        if len(points) < self.budget:
            raise ValueError(
                f"row {row!r}: {len(points)} points in its grid, but a budget of {self.budget} "
                "trials; every row must get as many"
            )
        return random.Random(self.seed).sample(points, len(points))[: self.budget]


@dataclass(frozen=True)
class Trial:
    """A row with one choice of its fields."""

    row: str
    number: int
    fields: Mapping[str, Any]
    recipe: Recipe
    folder: Path

    def __hash__(self) -> int:
        return hash(self.folder)


def load_search(name: str) -> Search:
    """A search by path, or by name in ``recipes/search``."""
    places = (Path(name), recipe_folder() / "search" / f"{name}.yaml")
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        there = sorted(p.stem for p in (recipe_folder() / "search").glob("*.yaml"))
        raise ValueError(f"unknown search {name}: neither a file nor one of {', '.join(there)}")
    try:
        return Search(**yaml.safe_load(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"search {path}: {' '.join(str(error).split())}") from error


def trials(search: Search, out: Path, overrides: Sequence[str] = ()) -> list[Trial]:
    """All trials, the first of every row before the second of any."""
    found = []
    for name, row in search.rows.items():
        for number, drawn in enumerate(search.draws(name)):
            chosen: dict[str, Any] = {}
            for key, value in drawn.items():
                chosen |= value if isinstance(value, Mapping) else {key: value}
            fields = {**search.fields, **row.get("fields", {}), **chosen}
            words = [f"--{key}={_word(value)}" for key, value in fields.items()]
            recipe = load_recipe(row["recipe"], [*words, *overrides])
            folder = out / "trials" / f"{slug(name)}-{number:02}"
            found.append(Trial(name, number, chosen, recipe, folder))
    return sorted(found, key=lambda trial: trial.number)


def tune(search: Search, out: Path, overrides: Sequence[str] = (), jobs: int = 1) -> dict[str, Any]:
    """Run what is missing; write ``trials.json`` and the best recipe of each row in ``best/``."""
    planned = trials(search, out, overrides)
    claim_folder(out, names=["trials.json", "best", "trials"])
    for trial in planned:  # never take the result of another search for this one's
        claim(trial.folder, trial.recipe, resume=True)
    todo = [trial for trial in planned if not is_finished(trial.folder)]
    work = partial(_run, bar=jobs == 1)
    errors = run_all(todo, work, jobs, "trial", lambda trial: trial.folder)
    records = [_record(trial, errors.get(trial)) for trial in planned]
    best = {}
    for row in search.rows:
        done = [
            (record, trial)
            for record, trial in zip(records, planned, strict=True)
            if trial.row == row and record["dev_rsum"] is not None
        ]
        if done:
            best[row], trial = max(done, key=lambda pair: pair[0]["dev_rsum"])
            path = out / "best" / f"{slug(row)}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            trial.recipe.save(path)
    found = {"title": search.title, "budget": search.budget, "trials": records, "best": best}
    write_json(out / "trials.json", found)
    return found


def _run(trial: Trial, bar: bool) -> None:
    train(trial.recipe, trial.folder, resume=True, progress_bar=bar)


def _record(trial: Trial, error: str | None) -> dict[str, Any]:
    record = {"row": trial.row, "trial": trial.number, "fields": dict(trial.fields), "error": error}
    if error is not None:
        return {**record, "dev_rsum": None}
    metrics = read_metrics(trial.folder)
    return {**record, "dev_rsum": metrics["dev"]["rsum"], "epoch": metrics.get("epoch")}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
