"""The worked examples of docs/architecture.md: each is registered as it says, and used."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from gaussmatch.apps.cli import main
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics.measures import MEASURES, heading, shown
from gaussmatch.core.similarities import SIMILARITIES, similarity
from gaussmatch.data import SOURCES, recognise
from gaussmatch.learn.evaluation.blocks import Blocks
from gaussmatch.models.encoders.pretrained import LIBRARIES, image_tower
from gaussmatch.models.recipe import ModelRecipe
from gaussmatch.search import Index, Record

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"


def example(first_line: str) -> ModuleType:
    """The block of the page that begins with a line, as a module."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (block,) = [b for b in blocks if b.startswith(f"# {first_line}\n")]
    module = ModuleType(first_line)
    exec(compile(block, first_line, "exec"), vars(module))
    return module


def test_a_similarity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = example("src/gaussmatch/core/similarities/euclid.py").Euclid
    with pytest.raises(ValueError, match="euclid"):
        ModelRecipe(similarity="euclid")
    monkeypatch.setitem(SIMILARITIES, made.name, made)
    assert ModelRecipe(similarity="euclid").similarity == "euclid"
    images, captions = Gaussian(torch.randn(6, 3)), Gaussian(torch.randn(4, 3))
    scores = -torch.cdist(images.mean, captions.mean).square()
    assert torch.allclose(similarity("euclid").matrix(images, captions), scores, atol=1e-5)
    ranks = Blocks(similarity("euclid"), images, captions).rows(0, 6).argsort(1)
    assert torch.equal(ranks, scores.argsort(1))
    index = Index.create(tmp_path / "index", similarity="euclid")
    index.add(images, [Record(str(n)) for n in range(6)])
    found = index.search(captions, 1)
    assert [int(hits[0].id) for hits in found] == scores.argmax(0).tolist()


def test_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("src/gaussmatch/models/encoders/pretrained/colours.py")
    with pytest.raises(ValueError, match="no encoder 'colours:mean'"):
        image_tower("colours:mean")
    monkeypatch.setitem(LIBRARIES, "colours", ("image",))
    monkeypatch.setitem(sys.modules, "gaussmatch.models.encoders.pretrained.colours", module)
    embedded = image_tower("colours:mean").encode([Image.new("RGB", (8, 6), (255, 0, 51))])
    assert torch.allclose(embedded, torch.tensor([[1.0, 0.0, 0.2]]))


def test_a_data_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = example("src/gaussmatch/data/notes.py").SOURCE
    for n in range(10):
        Image.new("RGB", (32, 32), (25 * n, 0, 0)).save(tmp_path / f"{n}.jpg")
        (tmp_path / f"{n}.txt").write_text(f"red, {n} tenths")
    with pytest.raises(ValueError, match="none of the files"):
        recognise(tmp_path)
    monkeypatch.setitem(SOURCES, "notes", source)
    assert recognise(tmp_path) is source
    assert main(["data", "check", str(tmp_path), "--sheet", str(tmp_path / "sheet.png")]) == 0
    assert main(["data", "where", "notes"]) == 0
    printed = capsys.readouterr().out
    assert "notes" in printed
    assert "Photos, each with a .txt beside it." in printed


def test_a_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = example("one entry of MEASURES in src/gaussmatch/core/metrics/measures.py").entry
    with pytest.raises(ValueError, match="unknown measure 'i2t_r50'"):
        heading("i2t_r50")
    monkeypatch.setitem(MEASURES, entry.key, entry)
    assert (heading("1k_i2t_r50"), shown("t2i_r50", 87.654)) == ("1K i2t R@50", "87.7")
