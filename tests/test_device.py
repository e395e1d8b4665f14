"""``--device``: one option, one home, every verb that computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gaussmatch.apps.cli import main
from gaussmatch.device import VARIABLE, choose_device, default_device
from gaussmatch.models.run import load


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")


@pytest.mark.parametrize("verb", ["evaluate", "index", "search", "serve", "probe", "calibrate"])
def test_a_device_that_is_not_there_is_one_line(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    words = {"index": ["run", "--out", "x"], "search": ["index", "words"]}.get(verb, ["run"])
    assert main([verb, *words, "--device", "cuda:1"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "device 'cuda:1': torch finds no cuda device here" in line


def test_models_are_loaded_onto_the_device_chosen(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(tiny_run).device.type == "cpu"
    monkeypatch.setenv(VARIABLE, "meta")
    assert load(tiny_run).device.type == "meta"
    assert load(tiny_run, "cpu").device.type == "cpu"


def test_training_takes_it_where_the_recipe_says_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("auto") == torch.device("cuda")
    monkeypatch.setenv(VARIABLE, "cpu")
    assert choose_device("auto") == default_device() == torch.device("cpu")
    assert choose_device("cuda") == torch.device("cuda")
