"""The run folder while it is being made: whose it is, and whether it is finished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gaussmatch.files import read_json, write_json
from gaussmatch.recipe import Recipe, load_recipe


def check_folder(out: Path, recipe: Recipe, resume: bool) -> None:
    """Never write over another run, and never go on with another recipe."""
    if not (out / "recipe.yaml").exists():
        return
    if not resume:
        raise FileExistsError(
            f"{out} already holds a run; go on with --resume, or choose another folder with --out"
        )
    before = load_recipe(out / "recipe.yaml")
    asked = replace(recipe, model=replace(recipe.model, feature_dim=before.model.feature_dim))
    if asked != before:
        raise ValueError(
            f"{out / 'recipe.yaml'} is another recipe than the one given; "
            "resume with the same, or choose another folder with --out"
        )


def is_finished(run: Path) -> bool:
    metrics = run / "metrics.json"
    return metrics.exists() and bool(read_json(metrics)["finished"])


def write_metrics(run: Path, **changes: Any) -> None:
    """Write or update ``metrics.json``: best epoch, its validation measures, finished or not."""
    path = run / "metrics.json"
    before = read_json(path) if path.exists() else {}
    write_json(path, {**before, **changes})
