"""A few kills; benchmarks/kills.py and index_kills.py do twenty and more."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from index.kills import ENVIRONMENT, check, contents, gaussmatch, kill_at, one_kill

from gaussmatch.search import Index

ROOT = Path(__file__).parent.parent.parent


def test_a_kill_breaks_nothing_and_loses_nothing(tmp_path):
    dice = random.Random(0)
    for _ in range(2):
        one_kill(tmp_path / "i", tmp_path / "log", dice, within=1.0)
        held, promised = check(tmp_path / "i", tmp_path / "log")
        assert held - promised in (0, 20)  # at most one addition was made and not yet promised


def test_index_killed_in_the_fill_goes_on_to_the_same_index(tiny_run: Path, tmp_path: Path):
    """Its manifests: 1 empty, 2 all 100 images, 3 and 4 the captions in 256 and 244."""
    words = ["index", str(tiny_run), "--out"]
    gaussmatch([*words, str(tmp_path / "whole")])
    whole = contents(Index.open(tmp_path / "whole"))
    path = tmp_path / "killed"
    kill_at("before", 3, [*words, str(path)])  # its segment is written, but does not count
    assert len(list((path / "segments").iterdir())) == 2
    for held in (100, 356):
        index = Index.open(path)
        some = contents(index)
        assert len(some) == len(index) == held
        assert some.items() <= whole.items()
        assert set(index.search_text(["a star"], 200)[0].ids) == {i for g, i in some if g[0] == "i"}
        if held == 100:
            kill_at("after", 1, [*words, str(path)])  # the first that the second process writes
    gaussmatch([*words, str(path)])
    assert contents(Index.open(path)) == whole
    name = "calibration.json"
    assert (path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_kills_before_a_sync_leave_the_old_or_the_new_and_nothing_else():
    works = ["add", "compact", "merge", "backup"]
    command = [sys.executable, "benchmarks/kills.py", "--kills", "4", "--only", *works]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 0 failures") == 4


def test_a_full_disk_loses_nothing_and_what_is_told_is_so():
    alone = ["unshare", "--user", "--map-root-user", "--mount", "true"]
    if shutil.which("unshare") is None or subprocess.run(alone, capture_output=True).returncode:
        pytest.skip("a process cannot mount a disk of its own here")
    command = [sys.executable, "benchmarks/full_disk.py", "--tries", "4", "--only", "add", "merge"]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no room" in done.stdout
