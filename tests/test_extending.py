"""The worked examples of docs/architecture.md: each is registered as it says, and used."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
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
from gaussmatch.data import SOURCES, recognize
from gaussmatch.learn.evaluation.scores import Blocks
from gaussmatch.learn.training.loop import read_log, train
from gaussmatch.models.encoders.pretrained import LIBRARIES, image_tower
from gaussmatch.models.encoders.systems import SYSTEMS, TrainedSystem
from gaussmatch.models.encoders.vsepp import Projection
from gaussmatch.models.model import loss_of
from gaussmatch.models.recipe import LossRecipe, ModelRecipe
from gaussmatch.search import Index, Record

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"


def block_of(first_line: str) -> str:
    """The block of the page that begins with a line."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (block,) = [b for b in blocks if b.startswith(f"# {first_line}\n")]
    return str(block)


def example(first_line: str) -> ModuleType:
    """The same as a module."""
    module = ModuleType(first_line)
    exec(compile(block_of(first_line), first_line, "exec"), vars(module))
    return module


def written_into(first_line: str, package: Path) -> Path:
    """A block of the page, written into the file of a copy of the package that it names: fields and
    functions are added; what follows ``...`` in a method goes to the end of that method."""
    file = package.parent / first_line.partition(",")[0].removeprefix("src/")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.parse(block_of(first_line)).body:
        if not isinstance(node, ast.ClassDef):
            tree.body.append(node)
            continue
        (known,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == node.name]
        for part in node.body:
            methods = [n for n in known.body if isinstance(n, ast.FunctionDef)]
            if not isinstance(part, ast.FunctionDef):
                known.body.insert(known.body.index(methods[0]), part)
                continue
            (method,) = [n for n in methods if n.name == part.name]
            dots, *added = part.body
            assert isinstance(dots, ast.Expr)
            assert dots.value.value is ...
            method.body += added
    file.write_text(ast.unparse(tree), encoding="utf-8")
    return file


def copied(folder: Path) -> Path:
    """The package, of which only ``search`` and ``apps/cli`` can be written to."""
    source, copy = Path(gm.__file__).parent, folder / "gaussmatch"
    (copy / "apps").mkdir(parents=True)
    for path in (*source.iterdir(), *(source / "apps").iterdir()):
        target = copy / path.relative_to(source)
        if path.name in ("search", "cli"):
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name != "apps":
            target.symlink_to(path)
    return copy


def answer_of(package: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_field_of_an_answer_and_a_trust_signal(tmp_path: Path) -> None:
    package, hits = copied(tmp_path), "src/gaussmatch/search/hits.py"
    field = {written_into(f"{hits}, a field", package)}
    blocks = ["src/gaussmatch/search/trust/verdict.py", f"{hits}, a signal"]
    signal = {written_into(block, package) for block in blocks}
    assert len(field) <= 3
    assert len(signal) <= 4
    code = """
import json, torch, gaussmatch as gm
from dataclasses import asdict
from pydantic import TypeAdapter
from gaussmatch.apps.service.responses import SearchResponse

index = gm.Index.create("i", similarity="kl")
g = gm.Gaussian(torch.tensor([[0.0], [0.0], [3.0]]), torch.zeros(3, 1))
index.add(g, [gm.Record(name) for name in "abc"])
alike, apart = index.search(g[[0, 2]], 3)
print(json.dumps([asdict(alike), asdict(apart), TypeAdapter(SearchResponse).json_schema()]))
"""
    alike, apart, schema = json.loads(answer_of(package, code))
    assert (alike["ahead"], apart["ahead"]) == (0.0, pytest.approx(4.5))
    assert "The two best results score alike." in alike["verdict"]["reason"]
    assert "alike" not in apart["verdict"]["reason"]
    described = schema["$defs"]["Hits"]["properties"]["ahead"]["description"]
    assert described.startswith("How far the best result is ahead")


def test_an_option_that_verbs_share(tmp_path: Path) -> None:
    package = copied(tmp_path)
    assert written_into("src/gaussmatch/apps/cli/parser.py", package).name == "parser.py"
    code = """
import torch
from gaussmatch.apps.cli.doctor import parsers
from gaussmatch.apps.cli.parser import Parser

FLAG = "--deterministic"
having = [words for words, parser, _ in parsers() if parser and FLAG in parser.format_help()]
print(len(having), "search" in having)
Parser("x", "", examples=[], computes=True).parse([FLAG])
print(torch.are_deterministic_algorithms_enabled())
"""
    many, used = answer_of(package, code).splitlines()
    assert int(many.split()[0]) > 10
    assert many.endswith("True")
    assert used == "True"


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
    made = example("src/gaussmatch/core/losses.py").Logistic
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
    module = example("src/gaussmatch/models/encoders/pretrained/colors.py")
    with pytest.raises(ValueError, match="no encoder 'colors:mean'"):
        image_tower("colors:mean")
    monkeypatch.setitem(LIBRARIES, "colors", ("image",))
    monkeypatch.setitem(sys.modules, "gaussmatch.models.encoders.pretrained.colors", module)
    embedded = image_tower("colors:mean").encode([Image.new("RGB", (8, 6), (255, 0, 51))])
    assert torch.allclose(embedded, torch.tensor([[1.0, 0.0, 0.2]]))


def test_a_data_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = example("src/gaussmatch/data/notes.py").SOURCE
    for n in range(10):
        picture = Image.new("RGB", (32, 32), "white")
        picture.paste((25 * n, 0, 0), (8, 8, 24, 24))
        picture.save(tmp_path / f"{n}.jpg")
        (tmp_path / f"{n}.txt").write_text(f"a square on white, red by {n} tenths")
    with pytest.raises(ValueError, match="none of the files"):
        recognize(tmp_path)
    monkeypatch.setitem(SOURCES, "notes", source)
    assert recognize(tmp_path) is source
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
