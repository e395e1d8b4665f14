"""What was written under names that have changed is still read."""

from __future__ import annotations

import json
from pathlib import Path

from gaussmatch.models.features.features import MANIFEST as FEATURES
from gaussmatch.models.features.features import Manifest
from gaussmatch.models.recipe import load_recipe
from gaussmatch.models.recipe.load import identity


def test_a_recipe_with_a_field_of_its_old_name(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("model: {normalise_features: true}")
    new.write_text("model: {normalize_features: true}")
    assert load_recipe(old) == load_recipe(new)
    assert identity(load_recipe(new)) == {"model.normalise_features": True}  # runs keep theirs


def test_a_folder_of_features(tmp_path: Path) -> None:
    made = Manifest("resnet50", None, "0" * 64, "regions", 2048)
    made.save(tmp_path)
    content = json.loads((tmp_path / FEATURES).read_text())
    content["kind"] = content.pop("layout")
    (tmp_path / FEATURES).write_text(json.dumps(content))
    assert Manifest.load(tmp_path) == made
