"""Heads on frozen encoders: embeddings in, a run out that searches like any other."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoders.small import pictures, small_bert, small_hf, small_open_clip, small_open_siglip
from safetensors.numpy import save_file

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.data import embeddings
from gaussmatch.data.embeddings import open_embeddings
from gaussmatch.data.language import canonical
from gaussmatch.data.queries import read_corpus
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained import TextTower, image_tower, text_tower
from gaussmatch.models.encoders.pretrained.base import Subwords
from gaussmatch.models.features import embedded_once
from gaussmatch.models.run import save_weights

IMAGES, WIDTH = 60, 12
QUICK = ["--training.epochs=2", "--training.batch_size=32", "--model.adapter.hidden=16"]


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Embeddings of 60 images with two captions each, that belong together but for noise."""
    rng = np.random.default_rng(0)
    images = unit(rng.normal(size=(IMAGES, WIDTH)))
    texts = unit(np.repeat(images, 2, 0) + 0.2 * rng.normal(size=(2 * IMAGES, WIDTH)))
    np.save(tmp_path / "img.npy", images)
    np.save(tmp_path / "txt.npy", texts)
    splits = ["train"] * 40 + ["dev"] * 10 + ["test"] * 10
    lines = [f"{i // 2},{i},{splits[i // 2]}" for i in range(2 * IMAGES)]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,text,split", *lines]))
    return tmp_path


def adapt(folder: Path, *words: str) -> int:
    files = [
        word
        for name, file in (("images", "img.npy"), ("texts", "txt.npy"), ("pairs", "pairs.csv"))
        for word in (f"--{name}", str(folder / file))
    ]
    return main(["adapt", *files, "--out", str(folder / "run"), *QUICK, *words])


def test_keep_leaves_means_and_order_as_they_are(arrays: Path) -> None:
    assert adapt(arrays) == 0
    model = gm.load(arrays / "run")
    images, texts = np.load(arrays / "img.npy"), np.load(arrays / "txt.npy")
    g, c = model.encode_images(images), model.encode_texts(texts)
    assert np.array_equal(g.mean.numpy(), images)
    assert np.array_equal(c.mean.numpy(), texts)
    many = np.random.default_rng(1).normal(size=(11_000, WIDTH)).astype(np.float32)
    gallery, queries = model.encode_images(many[:10_000]), model.encode_texts(many[10_000:])
    scores = model.similarity(gallery, queries)
    given = (gm.Gaussian(torch.from_numpy(part)) for part in (many[:10_000], many[10_000:]))
    points = gm.similarity("cosine").matrix(*given)
    assert torch.equal(scores.argsort(dim=0, stable=True), points.argsort(dim=0, stable=True))
    assert g.log_var is not None
    assert g.log_var.std() > 0
    state = model.matcher.state_dict()
    assert not any("encoder.head" in name for name in state)
    train = images[:40]
    np.testing.assert_allclose(state["image.encoder.standardize.mean"], train.mean(0), atol=1e-6)
    np.testing.assert_allclose(
        state["image.encoder.standardize.deviation"], train.std(0), atol=1e-6
    )
    assert torch.equal(state["text.encoder.standardize.deviation"], torch.ones(WIDTH))
    named = model.recipe.model.adapter
    assert (named.text_encoder, named.text_width, named.text_sha256) == ("arrays", WIDTH, None)
    assert (named.image_encoder, named.image_sha256) == (None, None)
    assert not (arrays / "run" / "vocabulary.json").exists()  # there are no words


def test_it_ends_with_the_verdict_that_a_probe_of_the_run_gives(
    arrays: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(arrays)
    files = ["--images", "img.npy", "--texts", "txt.npy", "--pairs", "pairs.csv"]
    assert main(["adapt", *files, "--out", "run", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "the given embeddings, ranking kept" in said  # with its rsum
    assert "pairs, images with texts, by its column split: 40 with 80 to train, 10 with 20" in said
    verdict = said[said.index("verdict of the probe on pairs/dev") :].splitlines()
    assert len(verdict) == 3
    (arrays / "elsewhere").mkdir()
    monkeypatch.chdir(arrays / "elsewhere")  # the files are found from any folder
    assert main(["probe", "../run"]) == 0
    probed = capsys.readouterr().out
    for line in verdict:
        assert line in probed
    assert main(["probe", "../run", "--split", "dev"]) == 0
    assert " alone: " not in capsys.readouterr().out  # the same probe on the same split


@pytest.mark.filterwarnings("default:searches will show neither")
def test_pairs_without_splits_are_divided_and_more_training_drops_the_verdict(
    arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{i // 2},{i}" for i in range(2 * IMAGES)]
    (arrays / "pairs.csv").write_text("\n".join(["image,text", *lines]))
    assert adapt(arrays) == 0
    said = capsys.readouterr()
    assert "pairs, images with texts, 80/10/10 by image id: 48 with 96 to train" in said.out
    assert "no verdict in the run" in said.out
    assert "6 images and 12 captions; a calibration needs at least 10" in said.err
    run = arrays / "run"
    for name in ("calibration.json", "probe.json"):
        (run / name).write_text("{}")
    save_weights(gm.load(run).matcher.state_dict(), run)
    assert not (run / "calibration.json").exists()
    assert not (run / "probe.json").exists()


def test_embeddings_of_texts_with_a_nan_are_refused(arrays: Path) -> None:
    assert adapt(arrays) == 0
    texts = np.load(arrays / "txt.npy")[:4]
    texts[2, 1] = np.nan
    with pytest.raises(ValueError, match="the embedding of text 2 holds a NaN"):
        gm.load(arrays / "run").encode_texts(texts)


def test_improve_learns_means_and_is_measured_beside_the_given(
    arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = adapt(arrays, "--ranking", "improve", "--model.dim", "8", "--training.epochs=1")
    said = capsys.readouterr()
    assert "the given embeddings" in said.out
    assert code == 2  # one epoch on 40 images is worse than what was given
    assert "use --ranking keep" in said.err
    g = gm.load(arrays / "run").encode_images(np.load(arrays / "img.npy"))
    assert g.dim == 8
    torch.testing.assert_close(g.mean.norm(dim=-1), torch.ones(IMAGES))


def test_an_adapted_run_is_evaluated_indexed_and_searched(arrays: Path) -> None:
    assert adapt(arrays) == 0
    run, index = arrays / "run", arrays / "index"
    assert main(["evaluate", str(run)]) == 0
    assert main(["index", str(run), "--split", "test", "--out", str(index)]) == 0
    assert main(["calibrate", str(run)]) == 0
    assert main(["probe", str(run)]) == 0
    opened = gm.Index.open(index)
    found = opened.search(opened.model.encode_texts(np.load(arrays / "txt.npy")[100:101]), 1)
    assert found[0].hits[0].id.endswith("/0")
    assert 0 <= found[0].hits[0].probability <= 1
    assert found[0].familiar is None  # a Gaussian does not say what it was made of
    shown = opened.calibration.gauges["captions"]
    assert (0 <= found[0].percentile <= 100) if shown else found[0].percentile is None
    probed = json.loads((run / "probe.json").read_text())
    assert set(probed["verdict"]) == {"captions", "images"}  # by what acting on it gains
    assert "surest_half" in probed
    assert "edits" not in probed  # there are no texts to edit
    with pytest.raises(ValueError, match="its text encoder is not known"):
        opened.model.encode_texts(["a dog"])


def test_an_index_of_embeddings_is_served_without_words(arrays: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'service'")
    from starlette.testclient import TestClient

    from gaussmatch.apps.service.app import create_app

    assert adapt(arrays) == 0
    words = ["index", str(arrays / "run"), str(arrays / "img.npy"), "--out", str(arrays / "i")]
    assert main(words) == 0
    with TestClient(create_app(gm.Index.open(arrays / "i"))) as client:
        assert client.get("/api/about").json()["examples"] == []
        found = client.get("/api/similar", params={"id": "7", "k": 1})
        assert found.status_code == 200, found.text
        for path in ("search", "suggest", "uncertainty"):
            refused = client.get(f"/api/{path}", params={"text": "a dog"})
            assert refused.status_code == 422, path
            assert "reads no words" in refused.json()["error"]["message"]


def test_embeddings_of_every_format_are_indexed_under_their_ids_with_metadata(
    arrays: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra 'arrow'")
    import pyarrow.feather
    import pyarrow.parquet

    monkeypatch.setenv("GAUSSMATCH_CACHE", str(arrays / "cache"))
    monkeypatch.setattr(embeddings, "BLOCK", 25)  # several blocks
    assert adapt(arrays) == 0
    run, vectors = arrays / "run", np.load(arrays / "img.npy")
    ids = [f"photo {i}" for i in range(IMAGES)]
    np.save(arrays / "mine.npy", vectors)
    (arrays / "mine_ids.txt").write_text("\n".join(ids))
    save_file({"embedding": vectors.astype(np.float16)}, arrays / "half.safetensors")
    (arrays / "half_ids.txt").write_text("\n".join(ids))
    columns = {
        "id": ids,
        "taken": [date(2020 + i // 20, 5, 17) for i in range(IMAGES)],
        "stars": [None if i == 3 else i % 5 for i in range(IMAGES)],
        "embedding": list(vectors),
        "other": list(vectors),
    }
    pyarrow.parquet.write_table(pa.table(columns), arrays / "t.parquet")
    pyarrow.feather.write_feather(pa.table(columns), arrays / "t.feather")
    wanted = gm.load(run).encode_images(vectors)
    for name in ("mine.npy", "half.safetensors", "t.parquet", "t.feather"):
        index = arrays / f"{name}.index"
        words = ["index", str(run), str(arrays / name), "--out", str(index)]
        assert main(words) == 0
        assert "60 added" in capsys.readouterr().out
        assert main(words) == 0  # again
        assert "0 added" in capsys.readouterr().out
        opened = gm.Index.open(index)
        half = 1e-3 if name.startswith("half") else 1e-6
        for i in (0, 3, 59):
            found = opened.gaussian(ids[i])
            np.testing.assert_allclose(found.mean, wanted.mean[i : i + 1], atol=half)
            np.testing.assert_allclose(found.log_var, wanted.log_var[i : i + 1], atol=20 * half)
    assert opened.get(ids[20]).meta == {"taken": "2021-05-17", "stars": 0}
    assert opened.get(ids[3]).meta == {"taken": "2020-05-17"}
    assert main(["search", str(index), "--like", ids[7], "--where", "taken>=2022", "-k", "99"]) == 0
    said = capsys.readouterr().out
    assert ids[40] in said
    assert f" {ids[39]}" not in said
    with pytest.raises(SystemExit):
        main(["index", str(arrays / "mine.npy"), "--out", str(arrays / "none")])
    assert "name the run that was adapted to such embeddings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v[:, :5], "of 5 dimensions; the model was adapted to images of 12"),
        (lambda v: np.where(np.arange(len(v))[:, None] == 2, np.nan, v), "'2' holds a NaN"),
        (lambda v: np.where(np.arange(len(v))[:, None] == 3, 0, v), "'3' is zero"),
        (lambda v: v.astype(np.int64), "must be float16, float32 or float64"),
        (lambda v: v[0], "shape"),
    ],
)
def test_embeddings_that_do_not_fit_are_named(
    arrays: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adapt(arrays) == 0
    np.save(arrays / "bad.npy", change(np.load(arrays / "img.npy")))
    words = ["index", str(arrays / "run"), str(arrays / "bad.npy"), "--out", str(arrays / "i")]
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("side", ["img", "txt"])
@pytest.mark.parametrize(("value", "fault"), [(np.nan, "holds a NaN"), (0.0, "is zero")])
def test_embeddings_without_a_direction_are_named_before_training(
    arrays: Path, side: str, value: float, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = np.load(arrays / f"{side}.npy")
    vectors[7] = value
    np.save(arrays / f"{side}.npy", vectors)
    assert adapt(arrays) == 2
    assert f"{side}.npy: the embedding of '7' {fault}" in capsys.readouterr().err


def test_embeddings_whose_text_encoder_is_named_are_searched_in_words(arrays: Path) -> None:
    (arrays / "bert").mkdir()
    name = small_bert(arrays / "bert")
    said = [f"dog {'abcdefghij'[i % 10]} {'klmnop'[i // 10 % 6]}" for i in range(2 * IMAGES)]
    texts = text_tower(name).encode(said).numpy()
    np.save(arrays / "txt.npy", texts)
    np.save(arrays / "img.npy", texts[::2])
    assert adapt(arrays, "--text-encoder", name) == 0
    words = ["index", str(arrays / "run"), str(arrays / "img.npy"), "--out", str(arrays / "i")]
    assert main(words) == 0
    (found,) = gm.Index.open(arrays / "i").search_text([said[8]], 1)
    assert found.hits[0].id == "4"
    assert found.hits[0].score == pytest.approx(1, abs=1e-5)


def test_an_encoder_of_another_width_is_refused(
    arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (arrays / "bert").mkdir()
    name = small_bert(arrays / "bert")
    assert adapt(arrays, "--text-encoder", name) == 2
    assert "makes embeddings of 16 dimensions, but the texts of pairs/train have 12" in (
        capsys.readouterr().err
    )


def test_vectors_of_several_widths_and_missing_captions(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra 'arrow'")
    import pyarrow.parquet

    file = tmp_path / "t.parquet"
    uneven = pa.table({"id": ["a", "b"], "embedding": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0, 8.0]]})
    pyarrow.parquet.write_table(uneven, file)
    with pytest.raises(ValueError, match="incomplete or not all of one width"):
        open_embeddings(file)
    silent = pa.table({"id": ["a", "b"], "caption": ["x", None], "embedding": [[1.0], [2.0]]})
    pyarrow.parquet.write_table(silent, file)
    assert open_embeddings(file).texts == ["x", ""]


def test_embeddings_of_every_format_are_the_same(arrays: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra 'arrow'")
    import pyarrow.feather
    import pyarrow.parquet

    vectors = np.load(arrays / "txt.npy")
    save_file({"embedding": vectors}, arrays / "t.safetensors")
    ids = [f"t{i}" for i in range(len(vectors))]
    table = pa.table({"id": ids, "caption": ids, "embedding": list(vectors)})
    pyarrow.parquet.write_table(table, arrays / "t.parquet")
    pyarrow.feather.write_feather(table, arrays / "t.arrow", compression="uncompressed")
    names = {"txt.npy": "3", "t.safetensors": "3", "t.parquet": "t3", "t.arrow": "t3"}
    for name, third in names.items():
        found = open_embeddings(arrays / name)
        assert np.array_equal(found.vectors, vectors), name
        assert found.ids[3] == third
    assert isinstance(open_embeddings(arrays / "t.safetensors").vectors, np.memmap)


@pytest.mark.parametrize(
    ("line", "message"),
    [("999,0,train", r"line 2: img\.npy has no '999'"), ("0,0,other", "line 2: no split 'other'")],
)
def test_bad_pairs_are_named(
    arrays: Path, line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (arrays / "pairs.csv").write_text(f"image,text,split\n{line}\n")
    assert adapt(arrays) == 2
    assert re.search(message, capsys.readouterr().err)


class Letters(TextTower):
    """A tower whose embedding counts letters."""

    name, width = "letters", 26

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = Subwords(lambda texts: [[ord(c) % 26 for c in t] for t in texts], 26)
        self.calls = 0

    def forward(self, tokens: Tokens) -> torch.Tensor:
        self.calls += 1
        return torch.nn.functional.one_hot(tokens.ids, 26).sum(1).float()


def test_texts_are_embedded_once_and_a_kill_loses_one_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path))
    monkeypatch.setattr("gaussmatch.models.features.SHARD", 4)
    tower, texts = Letters(), [f"text{c}" for c in "abcdefghij"]
    wanted = tower.encode(texts).numpy()
    whole = tower.encode

    def dies(chunk: list[str]) -> torch.Tensor:
        if chunk[0] == "texti":
            raise KeyboardInterrupt
        return whole(chunk)

    monkeypatch.setattr(tower, "encode", dies)
    with pytest.raises(KeyboardInterrupt):
        embedded_once(tower, texts, progress=False)
    monkeypatch.setattr(tower, "encode", whole)
    tower.calls = 0
    assert np.array_equal(embedded_once(tower, texts, progress=False), wanted)
    assert tower.calls == 1
    assert np.array_equal(embedded_once(tower, texts, progress=False), wanted)
    assert tower.calls == 1
    assert not list(tmp_path.rglob("shards"))


def test_of_two_processes_one_embeds_and_the_other_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path))
    towers, texts = [Letters(), Letters()], [f"text{c}" for c in "abcdefghij"]
    wanted, started = towers[0].encode(texts).numpy(), threading.Event()
    whole = towers[0].encode

    def slowly(some: list[str]) -> torch.Tensor:
        started.set()
        time.sleep(0.3)
        return whole(some)

    monkeypatch.setattr(towers[0], "encode", slowly)
    monkeypatch.setattr(towers[1], "encode", lambda some: pytest.fail("embedded twice"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(embedded_once, towers[0], texts, False)
        assert started.wait(30)
        second = pool.submit(embedded_once, towers[1], texts, False)
        assert np.array_equal(first.result(), wanted)
        assert np.array_equal(second.result(), wanted)


def test_texts_of_another_list_are_not_embedded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path))
    tower, texts = Letters(), [f"text{c}" for c in "abcdefghij"]
    wanted, seen = tower.encode(texts).numpy(), []
    whole = tower.encode
    monkeypatch.setattr(tower, "encode", lambda some: seen.extend(some) or whole(some))
    embedded_once(tower, texts[:3], progress=False)
    embedded_once(tower, texts[4:8], progress=False)
    seen.clear()
    assert np.array_equal(embedded_once(tower, texts[::-1], progress=False), wanted[::-1])
    assert sorted(seen) == ["textd", "texti", "textj"]


@pytest.mark.filterwarnings("default:searches will show neither")
@pytest.mark.parametrize("kind", ["open_clip", "open_siglip", "clip", "siglip", "siglip2"])
def test_a_published_model_is_adapted_exported_indexed_searched_and_served(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'service'")
    from starlette.testclient import TestClient

    from gaussmatch.apps.service.app import create_app

    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    own = {"open_clip": small_open_clip, "open_siglip": small_open_siglip}
    make = own.get(kind) or partial(small_hf, kind=kind)
    name, root = make(tmp_path / "model"), tmp_path / "photos"
    root.mkdir()
    for i, picture in enumerate(pictures(12)):
        picture.save(root / f"{i}.png")
    lines = [f"{i}.png,a dog number {'abcdefghijkl'[i]}" for i in range(12)]
    (root / "captions.csv").write_text("\n".join(["image,caption", *lines]))
    run, index = tmp_path / "run", tmp_path / "index"
    words = ["--image-encoder", name, "--text-encoder", "same", "--data", "folder"]
    quick = ["--data.root", str(root), "--out", str(run), *QUICK, "--training.epochs=1"]
    assert main(["adapt", *words, *quick]) == 0
    assert main(["index", str(run), str(root), "--out", str(index)]) == 0
    assert "photos/dev has 1 images and 1 captions; a calibration needs" in capsys.readouterr().err
    opened = gm.Index.open(index)
    (found,) = opened.search_text(["a dog"], 3)
    assert len(found.hits) == 3
    assert found.unknown == []
    towers = image_tower(name), text_tower(name)
    scores = towers[0].encode(pictures(12)) @ towers[1].encode([canonical("a dog")]).T
    assert found.hits[0].id == f"{int(scores.argmax())}.png"  # the order of the encoders
    with TestClient(create_app(opened)) as client:
        answer = client.get("/api/search", params={"text": "a dog", "k": 2})
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["results"]["hits"]) == 2
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    pytest.importorskip("onnx", reason="needs the extra 'onnx'")
    onnx = tmp_path / "onnx"
    if kind == "siglip2":
        assert main(["export", str(run), "--onnx", str(onnx)]) == 2
        assert "its transform is code, which cannot be changed" in capsys.readouterr().err
        return
    assert main(["export", str(run), "--onnx", str(onnx)]) == 0
    shutil.rmtree(tmp_path / "model")  # the exported files are all that is needed
    assert main(["index", str(onnx), str(root), "--out", str(tmp_path / "again")]) == 0
    again = gm.Index.open(tmp_path / "again")
    (same,) = again.search_text(["a dog"], 12)
    theirs = {hit.id: hit.score for hit in opened.search_text(["a dog"], 12)[0].hits}
    assert {hit.id: hit.score for hit in same.hits} == pytest.approx(theirs, abs=1e-5)
    for texts in (["a dog"], ["two cats", "a dog on a sofa " * 9, "x"]):
        a, b = (index.model.encode_texts(texts) for index in (opened, again))
        torch.testing.assert_close(a.mean, b.mean, atol=1e-5, rtol=0)
        torch.testing.assert_close(a.log_var, b.log_var, atol=1e-5, rtol=0)
    with TestClient(create_app(again)) as client:
        assert client.get("/api/search", params={"text": "a dog"}).status_code == 200


# ---- from captions alone ----


def test_captions_alone_teach_which_texts_are_vague(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No photo is seen, and the order of results stays that of the encoder."""
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    name, run, index = small_open_clip(tmp_path), tmp_path / "run", tmp_path / "index"
    dice = np.random.default_rng(0)
    things = ["dog", "cat", "bus", "man", "bird", "boat", "horse", "child"]
    places = ["snow", "street", "grass", "water", "kitchen", "forest"]

    def caption() -> str:
        a, b = dice.choice(things, 2, replace=False)
        longer = f" with a red {b} beside an old wooden fence" if dice.random() < 0.5 else ""
        return (
            f"a {dice.choice(['big', 'small', 'brown'])} {a} in the {dice.choice(places)}{longer}"
        )

    lines = [f"{at // 2}.jpg#{at % 2}\t{caption()}" for at in range(1200)]
    (tmp_path / "captions.txt").write_text("\n".join(lines))
    words = ["adapt", "--encoder", name, "--captions", str(tmp_path / "captions.txt")]
    assert main([*words, "--out", str(run)]) == 0
    assert "learned from 1,080 captions; edits of 120 others" in capsys.readouterr().out
    model = gm.load(run)
    texts = ["dog", "a brown dog in the snow with a red boat beside an old wooden fence"]
    g, images = model.encode_texts(texts), model.encode_images(pictures(2))
    towers = image_tower(name), text_tower(name)
    assert torch.equal(g.mean, towers[1].encode(texts))
    assert torch.equal(images.mean, towers[0].encode(pictures(2)))
    assert model.uncertainty(g)[0] > model.uncertainty(g)[1]
    assert model.uncertainty(images).std() == 0
    (tmp_path / "photos").mkdir()
    for i, picture in enumerate(pictures(12)):
        picture.save(tmp_path / "photos" / f"{i}.png")
    assert main(["index", str(run), str(tmp_path / "photos"), "--out", str(index)]) == 0
    (found,) = gm.Index.open(index).search_text(["a dog"], 3)
    assert found.verdict.reason.startswith("Not calibrated")
    assert found.familiar is not None
    assert found.hits[0].probability is None
    passed = json.loads((run / "probe.json").read_text())["verdict"]["captions"]["passed"]
    assert (found.percentile is not None) == passed
    assert main([*words, "--out", str(run)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    (tmp_path / "captions.txt").write_text("a dog\na cat\n")
    assert main([*words, "--out", str(tmp_path / "other")]) == 2
    assert "captions.txt: 2 captions; to count by them, 1,000 are" in capsys.readouterr().err


def test_captions_of_every_kind_of_file_are_read(tmp_path: Path) -> None:
    said = [("7", "a dog"), ("7", "a cat"), ("9", "a bus")] * 400
    coco = {"annotations": [{"image_id": int(i), "caption": c} for i, c in said]}
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    (tmp_path / "own.csv").write_text("\n".join(["image,caption", *(f"{i},{c}" for i, c in said)]))
    (tmp_path / "flickr.txt").write_text("\n".join(f"{i}#0\t{c}" for i, c in said))
    for name in ("coco.json", "own.csv", "flickr.txt"):
        captions, image_of = read_corpus(tmp_path / name)
        assert captions == [caption for _, caption in said]
        assert image_of.tolist() == [0, 0, 1] * 400
    (tmp_path / "plain.txt").write_text("\n".join(c for _, c in said))
    assert len(set(read_corpus(tmp_path / "plain.txt")[1].tolist())) == 1200
    with pytest.raises(FileNotFoundError, match=r"none\.txt: no such file of captions"):
        read_corpus(tmp_path / "none.txt")
    (tmp_path / "bad.json").write_text(json.dumps({"annotations": [{"caption": "a"}]}))
    with pytest.raises(ValueError, match=r"bad\.json, annotation 0: no field 'image_id'"):
        read_corpus(tmp_path / "bad.json")
