"""Data sets of the library `datasets`: by folder, with splits or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.data import datasets as source
from gaussmatch.data import recognize
from gaussmatch.models.recipe import DataRecipe

library: Any = pytest.importorskip("datasets", reason="needs the extra 'datasets'")


def rows(count: int, captions: Any) -> Any:
    rng = np.random.default_rng(count)
    photos = [Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)) for _ in range(count)]
    features = library.Features(
        {"picture": library.Image(), "caption": library.List(library.Value("string"))}
        if isinstance(captions(0), list)
        else {"picture": library.Image(), "caption": library.Value("string")}
    )
    held = {"picture": photos, "caption": [captions(i) for i in range(count)]}
    return library.Dataset.from_dict(held, features=features)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))


def test_splits_and_several_captions(tmp_path: Path) -> None:
    made = library.DatasetDict(
        {
            "train": rows(5, lambda i: [f"a dog with {i} spots", "again"]),
            "validation": rows(2, lambda i: [f"dev {i}"]),
            "test": rows(3, lambda i: [f"test\n{i}"]),
        }
    )
    made.save_to_disk(tmp_path / "saved")
    recipe = DataRecipe(name="datasets", root=str(tmp_path / "saved"), features="pixels", crop=16)
    data = gm.load_data(recipe)
    assert [len(split.images) for split in (data.train, data.dev, data.test)] == [5, 2, 3]
    assert len(data.train.captions) == 10
    assert list(data.test.captions) == ["test 0", "test 1", "test 2"]
    assert data.train.images[0].shape == (3, 16, 16)
    picture = data.train.images.picture(0)
    assert picture is not None
    assert np.array_equal(np.asarray(picture), np.asarray(made["train"][0]["picture"]))
    assert source.written(str(tmp_path / "saved")) == source.written(str(tmp_path / "saved"))
    assert recognize(tmp_path / "saved").name == "datasets"
    assert main(["data", "check", str(tmp_path / "saved")]) == 0


def test_without_splits_they_are_cut_and_missing_columns_are_named(tmp_path: Path) -> None:
    whole = rows(20, lambda i: f"a dog with {i} spots")
    whole.save_to_disk(tmp_path / "saved")
    recipe = DataRecipe(name="datasets", root=str(tmp_path / "saved"), features="pixels", crop=16)
    data = gm.load_data(recipe)
    assert sorted(len(s.images) for s in (data.train, data.dev, data.test)) == [2, 2, 16]
    whole.remove_columns("caption").save_to_disk(tmp_path / "bare")
    with pytest.raises(ValueError, match="needs a column of images and one of caption"):
        gm.load_data(DataRecipe(name="datasets", root=str(tmp_path / "bare")))


def test_offline_a_name_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match="nobody/none is not in the cache"):
        gm.load_data(DataRecipe(name="datasets", root="nobody/none"))
