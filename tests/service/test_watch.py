"""Photos that come while the service runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from PIL import Image

from gaussmatch.apps.service.server import Watcher, state, watched
from gaussmatch.search import Index, update


def photo(path: Path, colour: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 40), colour).save(path)


@pytest.fixture
def index(tiny_run: Path, tmp_path: Path) -> Index:
    photo(tmp_path / "photos" / "a.jpg", "red")
    index = Index.create(tmp_path / "index", tiny_run)
    update(index, tmp_path / "photos", progress=False)
    return index


def test_the_state_is_that_of_photos_and_tables(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", "red")
    before = state(tmp_path)
    (tmp_path / "note.txt").write_text("no photo")
    photo(tmp_path / ".hidden" / "b.jpg", "red")
    assert state(tmp_path) == before
    photo(tmp_path / "trip" / "b.jpg", "blue")
    assert state(tmp_path) != before


def test_new_photos_are_indexed_while_others_read(index: Index, tmp_path: Path) -> None:
    watcher = Watcher(index.place, watched(index), every=0.2)
    watcher.start()
    try:
        photo(tmp_path / "photos" / "new" / "b.jpg", "blue")
        for _ in range(1200):  # a process starts, which takes long on a busy machine
            if index.reload() and index.size() == 2:
                break
            time.sleep(0.1)
    finally:
        watcher.stop()
    index.reload()
    assert {record.id for record in index.records()} == {"a.jpg", "new/b.jpg"}


def test_an_index_without_a_folder_here_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", tiny_run)
    with pytest.raises(ValueError, match="was not made from a folder by you"):
        watched(index)
