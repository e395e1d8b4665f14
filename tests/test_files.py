"""Files are whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gaussmatch.files import atomic, read_json, sweep, write_json, write_text


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})

    def fail() -> None:
        with atomic(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert read_json(target) == {"old": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_broken_json_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"a": 1,\n "b" 2}')
    with pytest.raises(ValueError, match=r"b\.json, line 2, column 6"):
        read_json(path)


def test_a_power_cut_keeps_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is on disk before it takes its name, and the name before anything goes on."""
    events: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(handle: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def renamed(old: Path, new: Path) -> None:
        events.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write_text(tmp_path / "a", "whole")
    assert events == ["file", "rename", "folder"]


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    kept = [tmp_path / name for name in (".a.json.swp", "a.json", ".b.json.abcd1234.mine")]
    for path in kept:
        path.touch()
    left = []

    def die() -> None:
        with atomic(tmp_path / "a.json") as outer, atomic(outer) as inner:
            left.extend([outer, inner])
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a kill removes nothing
        with pytest.raises(Killed):
            die()
    assert all(path.exists() for path in left)
    sweep(tmp_path, ["a.json", "b.json"])
    assert sorted(tmp_path.iterdir()) == sorted(kept)
