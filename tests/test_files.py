"""Files are whole or not there."""

from __future__ import annotations

import csv
import logging
import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.files import (
    OURS,
    atomic,
    cache_root,
    claim_folder,
    load_tensors,
    made_once,
    open_below,
    read_csv,
    read_json,
    save_tensors,
    sweep,
    write_csv,
    write_json,
    write_text,
)


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


def test_a_table_for_people_holds_no_formulas(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "'quoted'", "a = b", ""]
    write_csv(tmp_path / "t.csv", ["n", "text"], [{"n": -1, "text": text} for text in texts])
    with open(tmp_path / "t.csv", encoding="utf-8", newline="") as file:
        raw = list(csv.DictReader(file))
    assert [row["text"][:1] for row in raw[:7]] == ["'"] * 7
    assert {row["n"] for row in raw} == {"-1"}  # a number stays one
    assert [row["text"] for row in read_csv(tmp_path / "t.csv", ["text"])] == texts


def test_tensors_are_readable_as_the_umask_says_and_leave_nothing(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})
        Gaussian(torch.zeros(1, 2)).save(tmp_path / "b.safetensors")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert (modes, len(list(tmp_path.iterdir()))) == ({0o640}, 2)
    assert load_tensors(tmp_path / "a.safetensors")["a"].tolist() == [1, 1]
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match=r"a\.safetensors: not a complete safetensors file"):
        load_tensors(tmp_path / "a.safetensors")


def test_what_killed_writers_left_is_swept_from_a_folder_of_ours(tmp_path: Path) -> None:
    claim_folder(tmp_path, names=["audit.csv"])
    left = [tmp_path / f".audit.csv.{n}.gaussmatch-partial" for n in ("old", "new")]
    for path in left:
        path.touch()
    os.utime(left[0], (0, 0))
    claim_folder(tmp_path, names=["audit.csv"])
    assert [path.exists() for path in left] == [False, True]  # the new one may be in use


def test_a_cache_is_private_and_one_of_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "deep" / "cache"))
    assert stat.S_IMODE(cache_root().stat().st_mode) == 0o700
    cache_root().chmod(0o777)
    with pytest.raises(PermissionError, match="other users can write"):
        cache_root()


def _write(folder: Path, text: str) -> None:
    (folder / "text").write_text(text)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "bad list"])
def test_a_damaged_folder_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    target = made_once(tmp_path / "thing", lambda folder: _write(folder, "whole"))
    victim = target / ("text" if "list" not in damage else "files.json")
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_text({"cut": "who", "changed": "whale", "bad list": "{"}[damage])
    with caplog.at_level(logging.WARNING):
        made_once(target, lambda folder: _write(folder, "whole"))
    assert "making it again" in caplog.text
    assert (target / "text").read_text() == "whole"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".thing.lock", "thing"]


def test_what_was_interrupted_is_not_seen_and_resumes(tmp_path: Path) -> None:
    def breaks(folder: Path) -> None:
        _write(folder, "half")
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError, match="no space"):
        made_once(tmp_path / "thing", breaks)
    assert not (tmp_path / "thing").exists()
    (tmp_path / ".thing.work" / ".text.abcd1234.gaussmatch-partial").touch()
    found = []
    made_once(tmp_path / "thing", lambda folder: found.append((folder / "text").read_text()))
    assert found == ["half"]
    assert sorted(p.name for p in (tmp_path / "thing").iterdir()) == ["files.json", "text"]


def test_of_two_makers_one_makes_it_and_the_other_waits(tmp_path: Path) -> None:
    target, started = tmp_path / "thing", threading.Event()

    def slow(folder: Path) -> None:
        started.set()
        time.sleep(0.2)
        _write(folder, "first")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made_once, target, slow)
        assert started.wait(30)
        second = pool.submit(made_once, target, lambda folder: _write(folder, "second"))
        assert first.result() == second.result() == target
    assert (target / "text").read_text() == "first"


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "{", "\ufeff3"])
def test_json_of_another_shape_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json.*(not valid JSON|must hold a dict)"):
        read_json(tmp_path / "config.json", dict)


@pytest.mark.parametrize(
    ("years", "held", "told"),
    [(-10, "new", nullcontext()), (10, "old", pytest.raises(FileNotFoundError, match="partial"))],
)
def test_a_clock_that_jumps_costs_at_most_the_write_it_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int, held: str, told: Any
) -> None:
    """A file that seems abandoned is removed while it is written: that is an error, not silent."""
    write_text(tmp_path / "out" / "a.txt", "old")
    write_json(tmp_path / "out" / OURS, ["a.txt"])
    jumped = time.time() + years * 365 * 24 * 60 * 60
    with told, atomic(tmp_path / "out" / "a.txt") as temporary:
        temporary.write_text("new")
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: jumped)
            claim_folder(tmp_path / "out", names=["a.txt"])  # as another process does
    assert (tmp_path / "out" / "a.txt").read_text() == held


def test_only_a_file_below_the_folder_is_opened(tmp_path: Path) -> None:
    inside, secret = tmp_path / "photos", tmp_path / "secret"
    (inside / "trip").mkdir(parents=True)
    secret.mkdir()
    for folder in (secret, inside / "trip"):
        (folder / "a.jpg").write_text(folder.name)
    (inside / "link").symlink_to(secret)
    (inside / "a.jpg").symlink_to(secret / "a.jpg")
    os.mkfifo(inside / "pipe.jpg")
    with open_below(inside, "trip/a.jpg") as file:
        assert file.read() == b"trip"
    names = [
        "a.jpg",
        "link/a.jpg",
        "trip",
        "pipe.jpg",
        "../secret/a.jpg",
        "trip/../../secret/a.jpg",
    ]
    for name in [*names, str(secret / "a.jpg"), "", "trip//a.jpg", "a\0.jpg", "x" * 5000, "gone"]:
        with pytest.raises(OSError, match=r"\[Errno"):
            open_below(inside, name)
    (tmp_path / "here").symlink_to(inside)  # the folder itself is the user's choice
    open_below(tmp_path / "here", "trip/a.jpg").close()
