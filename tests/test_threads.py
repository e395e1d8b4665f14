"""The number of threads: as given, as the environment says, or as many as help."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from gaussmatch import device
from gaussmatch.apps.cli import main
from gaussmatch.device import helpful_threads, use_threads


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("two_take", "chosen"), [(0.6, 2), (3.0, 1)])
def test_one_thread_where_more_do_not_help(
    two_take: float, chosen: int, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(device, "_trial", lambda n: 1.0 if n == 1 else two_take)
    assert use_threads() == torch.get_num_threads() == chosen
    assert capsys.readouterr().err == ""  # a log, not a terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    torch.set_num_threads(2)
    assert use_threads() == chosen
    assert ("cores are busy" in capsys.readouterr().err) == (chosen == 1)


def test_what_was_given_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_trial", lambda n: pytest.fail("measured although given"))
    assert use_threads(1) == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    assert use_threads() == 2
    with pytest.raises(ValueError, match="at least 1"):
        use_threads(0)


def test_a_search_is_not_worth_a_trial(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(device, "_trial", lambda n: pytest.fail("measured for one question"))
    assert main(["search", str(tmp_path / "none"), "two dogs"]) == 2
    assert torch.get_num_threads() == 1


def test_a_trial_measures_and_leaves_the_number_as_it_was() -> None:
    assert helpful_threads() in (1, 2)
    assert torch.get_num_threads() == 2
