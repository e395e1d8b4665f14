"""What was written under names that have changed is still read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.features.features import MANIFEST as FEATURES
from gaussmatch.models.features.features import Manifest
from gaussmatch.models.recipe import load_recipe
from gaussmatch.models.recipe.migrations import identity
from gaussmatch.search import Index, IndexSettings, Record
from gaussmatch.search.manifest import MANIFEST


def test_a_recipe_with_a_field_of_its_old_name(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("model: {normalise_features: true}")
    new.write_text("model: {normalize_features: true}")
    assert load_recipe(old) == load_recipe(new)
    assert identity(load_recipe(new)) == {"model.normalise_features": True}  # runs keep theirs


def test_an_index_of_format_3(tmp_path: Path) -> None:
    settings = IndexSettings(structure="hnsw")
    index = Index.create(tmp_path / "index", similarity="cosine", settings=settings)
    index.add(Gaussian(torch.eye(3)), [Record(str(n)) for n in range(3)])
    index.close()
    path = tmp_path / "index" / MANIFEST
    content = json.loads(path.read_text())
    content["settings"]["kind"] = content["settings"].pop("structure")
    content |= {"format": 3}
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    path.write_text(json.dumps(content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}))
    again = Index.open(tmp_path / "index")
    assert again.settings == settings
    assert again.search(Gaussian(torch.eye(3)[:1]), 1)[0].ids == ["0"]


def test_a_folder_of_features(tmp_path: Path) -> None:
    made = Manifest("resnet50", None, "0" * 64, "regions", 2048)
    made.save(tmp_path)
    content = json.loads((tmp_path / FEATURES).read_text())
    content["kind"] = content.pop("layout")
    (tmp_path / FEATURES).write_text(json.dumps(content))
    assert Manifest.load(tmp_path) == made
