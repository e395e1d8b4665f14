"""A search on validation: the same budget for every row, chosen on dev, run again for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gaussmatch.apps.cli import main
from gaussmatch.files import read_json
from gaussmatch.learn.studies.study import Search, load_search, trials
from gaussmatch.models.recipe import load_recipe, recipe_folder

SEARCH = """
title: two rows
budget: 2
fields: {data.size: mini, training.epochs: 1, training.steps: 1, model.dim: 16}
grid:
  loss:
    - {loss.name: triplet, loss.margin: 0.1}
    - {loss.name: infonce, loss.scale: 20}
rows:
  point: {recipe: scenes/vsepp}
  KL: {recipe: scenes/vsepp-kl, grid: {model.shape: [ellipsoidal, spherical-avgpool]}}
"""


def test_a_larger_budget_keeps_the_trials_that_were_made() -> None:
    grid = {"a": list(range(8)), "b": list(range(8))}
    draws = [
        Search("", budget, {"r": {"recipe": "x"}}, grid=grid).draws("r") for budget in (5, 6, 64)
    ]
    assert draws[0] == draws[1][:5] == draws[2][:5]


def test_every_row_gets_as_many_trials_and_the_best_on_dev_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "search.yaml").write_text(SEARCH)
    words = ["tune", str(tmp_path / "search.yaml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    found = read_json(tmp_path / "out" / "trials.json")
    assert [t["row"] for t in found["trials"]] == ["point", "KL", "point", "KL"]
    for row, best in found["best"].items():
        mine = [t for t in found["trials"] if t["row"] == row]
        assert len({str(t["fields"]) for t in mine}) == 2
        assert best["dev_rsum"] == max(t["dev_rsum"] for t in mine)
        recipe = load_recipe(tmp_path / "out" / "best" / f"{row.lower()}.yaml")
        assert recipe.loss.name == best["fields"]["loss.name"]
    monkeypatch.setattr("gaussmatch.learn.studies.study.train", None)  # nothing is trained again
    assert main(words) == 0
    assert main([*words, "--model.dim", "8"]) == 2  # another search, the same folder
    assert "another recipe" in capsys.readouterr().err


def test_a_row_with_too_small_a_grid_is_refused() -> None:
    search = Search("", 3, {"a": {"recipe": "scenes/vsepp"}}, grid={"loss.margin": [0.1, 0.2]})
    with pytest.raises(ValueError, match="row 'a': 2 points in its grid, but a budget of 3"):
        search.draws("a")
    with pytest.raises(ValueError, match="did you mean 'recipe'"):
        Search("", 1, {"a": {"recipe": "x", "recipes": "y"}})


@pytest.mark.parametrize("path", sorted((recipe_folder() / "search").glob("*.yaml")))
def test_searches_that_come_with_the_package_are_whole(path: Path, tmp_path: Path) -> None:
    search = load_search(path.stem)
    assert len(trials(search, tmp_path).cells) == search.budget * len(search.rows)
