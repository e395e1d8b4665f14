"""The worked examples of docs/architecture.md: each is registered as it says, and used."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from PIL import Image
from toy import toy_data

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.losses import LOSSES
from gaussmatch.core.metrics.measures import MEASURES, heading, shown
from gaussmatch.core.similarities import SIMILARITIES, similarity
from gaussmatch.data import SOURCES, recognise
from gaussmatch.learn.evaluation.scores import Blocks
from gaussmatch.learn.training.loop import read_log, train
from gaussmatch.models.encoders import Projection
from gaussmatch.models.encoders.pretrained import LIBRARIES, image_tower
from gaussmatch.models.encoders.systems import SYSTEMS, TrainedSystem
from gaussmatch.models.matcher import loss_of
from gaussmatch.models.recipe import LossRecipe, ModelRecipe
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


def trained(content: str, out: Path) -> gm.Model:
    """A recipe of some lines, one epoch on toy data, and the run loaded again."""
    small = {"data": {"min_count": 1}, "training": {"epochs": 1, "device": "cpu"}}
    (out.parent / "new.yaml").write_text(f"{yaml.safe_dump(small)}{content}")
    train(gm.load_recipe(out.parent / "new.yaml"), out, data=toy_data(), progress_bar=False)
    return gm.load(out)


def test_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = example("src/gaussmatch/core/losses/logistic.py").Logistic
    with pytest.raises(ValueError, match=r"loss\.name 'logistic' is not known; choose triplet"):
        LossRecipe(name="logistic")
    monkeypatch.setitem(LOSSES, made.name, made)
    with pytest.raises(ValueError, match="did you mean 'logistic'"):
        LossRecipe(name="logistics")
    alike, others = torch.zeros(5, 5), ~torch.eye(5, dtype=torch.bool)
    value = made()(alike, alike, others)["logistic"]
    assert float(value) == pytest.approx(made().collapsed_value(5))
    assert loss_of(LossRecipe(name="logistic", scale=3.0)).scale == 3.0
    trained("loss: {name: logistic, scale: 3}\nmodel: {dim: 8, word_dim: 4}", tmp_path / "run")
    (epoch,) = [r for r in read_log(tmp_path / "run") if r["event"] == "epoch"]
    assert 0 < epoch["loss"] < 2 * made().collapsed_value(128)


def test_a_trained_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = example("src/gaussmatch/models/encoders/bag.py").BagOfWords
    with pytest.raises(ValueError, match=r"model\.system 'bag' is not known; choose vse\+\+"):
        ModelRecipe(system="bag")
    monkeypatch.setitem(SYSTEMS, "bag", TrainedSystem(Projection, made))
    with pytest.raises(ValueError, match="did you mean 'bag'"):
        ModelRecipe(system="bags")
    fields = "system: bag, dim: 8, word_dim: 4, probabilistic: true, similarity: kl"
    model = trained(f"model: {{{fields}}}", tmp_path / "run")
    assert isinstance(model.matcher.text_encoder, made)
    found = model.encode_texts(["red cat", "cat red"])
    assert torch.allclose(found.mean[0], found.mean[1])  # a bag has no order
    assert found.log_var is not None


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
