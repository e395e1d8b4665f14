"""Jobs side by side: failures stay alone, order is kept, dead processes are survived."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from experiments.job import Job

from gaussmatch.learn.studies.study import run_jobs


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_stays_alone_and_takes_its_sequel(tmp_path: Path, jobs: int) -> None:
    items = ["fail", "sequel", "slow", "after-slow", "a"]
    after = {"sequel": "fail", "after-slow": "slow"}
    found = dict(run_jobs(items, Job(tmp_path), jobs, after))
    assert found == {
        "fail": "ValueError: fail cannot be done",
        "sequel": "what it starts from failed",
        "slow": None,
        "after-slow": None,
        "a": None,
    }
    written = {path.name: float(path.read_text()) for path in tmp_path.iterdir()}
    assert set(written) == {"slow", "after-slow", "a"}
    assert written["slow"] < written["after-slow"]


def test_a_dead_process_fails_its_own_job_only(tmp_path: Path) -> None:
    found = dict(run_jobs(["die", "slow", "a", "b"], Job(tmp_path), jobs=2))
    assert found.pop("die") is not None
    assert set(found.values()) == {None}
    assert {path.name for path in tmp_path.iterdir()} == {"slow", "a", "b"}


def test_a_sequel_that_comes_first_waits(tmp_path: Path) -> None:
    order = [item for item, _ in run_jobs(["b", "a"], Job(tmp_path), 1, {"b": "a"})]
    assert order == ["a", "b"]


def test_no_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one job"):
        list(run_jobs(["a"], Job(tmp_path), 0))


PARENT = """
import os, sys, time
from pathlib import Path
from gaussmatch.learn.studies.study import run_jobs

def sleep(name):
    (Path(sys.argv[1]) / f"{name}-{os.getpid()}").touch()
    time.sleep(600)

if __name__ == "__main__":
    list(run_jobs(["a", "b"], sleep, jobs=2))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to see processes in")
def test_a_killed_parent_leaves_no_children(tmp_path: Path) -> None:
    """Else they would train on, and write into the runs of the one that is started next."""
    script, marks = tmp_path / "parent.py", tmp_path / "marks"
    script.write_text(PARENT)
    marks.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(marks)])
    try:
        _until(lambda: len(list(marks.iterdir())) == 2)
        children = [int(mark.name.split("-")[1]) for mark in marks.iterdir()]
        assert all(_alive(child) for child in children)
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: not any(_alive(child) for child in children))


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
