"""What all tests share: shapes that are checked, numbers that repeat, the shared data found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxtyping import install_import_hook

CORE = (
    "gaussmatch.core.gaussian",
    "gaussmatch.core.similarities",
    "gaussmatch.core.losses",
    "gaussmatch.core.metrics",
)
install_import_hook(list(CORE), "beartype.beartype")  # before anything imports the core

import pytest  # noqa: E402
import torch  # noqa: E402
from chromium import CHROMIUM, chromium  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent

settings.register_profile(
    "gaussmatch",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.differing_executors],  # contract tests are inherited
)
settings.load_profile("gaussmatch")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the programs that tests start


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data, beside the repository; without it the test is skipped."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}")
    return folder


@pytest.fixture(scope="module")  # its event loop would stand in the way of other tests
def browser() -> Iterator[Any]:
    """Chromium, for the tests of the web page and of the report."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of VSE++ KL, one epoch on tiny scenes; only to be read."""
    from gaussmatch.apps.cli import main

    out = tmp_path_factory.mktemp("tiny-run") / "run"
    quick = ["--data.size", "tiny", "--training.epochs", "1"]
    assert main(["train", "scenes/vsepp-kl", "--out", str(out), *quick]) == 0
    return out
