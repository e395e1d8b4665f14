"""What the tests of experiments share: one small reproduction of everything."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from reproduced import MINI

from gaussmatch.apps.cli import main


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The folder of ``reproduce all`` on very few scenes, made once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    out = shared / "reproduced"
    with open(shared / "reproduced.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "report.html").exists():
            assert main(["reproduce", "all", "--out", str(out), *MINI]) == 0
    return out
