"""Models as ONNX: the same Gaussians as torch, in a folder to index, search and serve from."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.base import Tokens, Vocabulary, pad
from gaussmatch.models.encoders.onnx import TOKENS, Network, write
from gaussmatch.models.model import Matcher, build
from gaussmatch.models.published import export_onnx
from gaussmatch.search import Record

pytest.importorskip("onnx", reason="needs the extra 'onnx'")
pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")

SMALL = {"model.dim": 8, "model.word_dim": 6, "model.feature_dim": 10}
WORDS = Vocabulary.build(["a red dog runs in the deep snow"], min_count=1)
RECIPES = ["vsepp", "vsepp-kl", "vsrn-kl", "pvse", "pcme", "pcmepp"]
TEXTS = ["a red dog", "the snow", "a dog runs in the deep red snow", "dog"]


def network(recipe: str, **fields: str) -> Matcher:
    torch.manual_seed(0)
    made = gm.load_recipe(f"scenes/{recipe}", {**SMALL, "model.backbone": None, **fields})
    return build(made.model, WORDS, made.loss).eval().requires_grad_(False)


def check(file: Path, inputs: tuple[torch.Tensor, ...], wanted: Gaussian) -> None:
    mean, *log_var = Network(file)(*inputs)
    torch.testing.assert_close(mean, wanted.mean, atol=1e-5, rtol=0)
    assert (not log_var) == wanted.is_point
    for found in log_var:
        torch.testing.assert_close(found, wanted.log_var, atol=1e-5, rtol=0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_texts_of_any_number_and_length(recipe: str, tmp_path: Path) -> None:
    matcher, file = network(recipe), tmp_path / "t.onnx"
    first = pad(WORDS.rows(TEXTS[:2]))
    write(lambda *given: matcher.text(Tokens(*given)), [first], TOKENS, file)
    for texts in (TEXTS, TEXTS[2:3], TEXTS[3:]):
        tokens = pad(WORDS.rows(texts))
        with torch.no_grad():
            check(file, tokens, matcher.encode_texts(tokens))


@pytest.mark.parametrize("recipe", RECIPES)
def test_images_of_any_number(recipe: str, tmp_path: Path) -> None:
    matcher, file = network(recipe), tmp_path / "i.onnx"
    shape = (10,) if recipe.startswith("vsepp") else (36, 10)
    write(matcher.image, [(torch.randn(2, *shape),)], {"features": ("n",)}, file)
    for n in (1, 5):
        features = torch.randn(n, *shape)
        with torch.no_grad():
            check(file, (features,), matcher.encode_images(features))


@pytest.mark.parametrize("state", ["final", "last-token"])
def test_both_states_of_a_gru_in_both_directions(state: str, tmp_path: Path) -> None:
    matcher, file = network("pvse", **{"model.pvse.state": state}), tmp_path / "t.onnx"
    write(lambda *given: matcher.text(Tokens(*given)), [pad(WORDS.rows(TEXTS[:2]))], TOKENS, file)
    tokens = pad(WORDS.rows(TEXTS))
    check(file, tokens, matcher.encode_texts(tokens))


def test_a_difference_from_torch_is_refused(tmp_path: Path) -> None:
    """Dropout that was left on, say: what is written is not what was measured."""
    calls = iter(range(100))
    with pytest.raises(ValueError, match="differs from torch"):
        write(lambda x: x + next(calls), [(torch.ones(1),)], {"x": ("n",)}, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_an_exported_model_is_indexed_searched_and_served(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fastapi", reason="needs the extra 'service'")
    from starlette.testclient import TestClient

    from gaussmatch.apps.service.app import create_app

    out, photos = tmp_path / "exported", tmp_path / "photos"
    photos.mkdir()
    for i, colour in enumerate(["red", "green", "blue", "white"]):
        Image.new("RGB", (40, 40), colour).save(photos / f"{i}.png")
    assert main(["export", str(tiny_run), "--onnx", str(out)]) == 0
    assert "texts.onnx" in capsys.readouterr().out
    assert main(["export", str(tiny_run), "--onnx", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert not (out / "model.safetensors").exists()
    hits = []
    for run in (tiny_run, out):
        place = tmp_path / f"{run.name}.index"
        assert main(["index", str(run), str(photos), "--out", str(place)]) == 0
        index = gm.open_index(place)
        assert main(["search", str(place), "a red star"]) == 0
        hits.append(index.search_text(["a red star and a blue circle"], 4)[0])
    theirs, ours = hits
    assert ours.ids == theirs.ids
    assert ours.percentile == pytest.approx(theirs.percentile, abs=0.5)
    for a, b in zip(theirs.hits, ours.hits, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-4)
    assert {p.name for p in (place / "run").iterdir()} == {
        *("recipe.yaml", "vocabulary.json", "images.onnx", "texts.onnx")
    }
    with TestClient(create_app(index)) as client:
        answer = client.get("/api/search", params={"text": "a red star", "k": 2})
        assert answer.status_code == 200, answer.text
    assert main(["index", "verify", str(place)]) == 0
    shutil.copy(out / "images.onnx", place / "run" / "texts.onnx")
    with pytest.raises(ValueError, match="is not the file that the index was made with"):
        _ = gm.open_index(place).model


def test_heads_on_ready_embeddings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(120, 12)).astype(np.float32)
    np.save(tmp_path / "i.npy", images)
    np.save(tmp_path / "t.npy", images + 0.1 * rng.normal(size=(120, 12)).astype(np.float32))
    lines = "\n".join(f"{i},{i}" for i in range(120))
    (tmp_path / "pairs.csv").write_text(f"image,text\n{lines}")
    files = {"images": "i.npy", "texts": "t.npy", "pairs": "pairs.csv", "out": "run"}
    words = [word for k, v in files.items() for word in (f"--{k}", str(tmp_path / v))]
    assert main(["adapt", *words, "--training.epochs=1", "--model.adapter.hidden=8"]) == 0
    assert max(export_onnx(tmp_path / "run", tmp_path / "onnx").values()) <= 1e-5
    a, b = gm.load(tmp_path / "run"), gm.load(tmp_path / "onnx")
    for encode in ("encode_images", "encode_texts"):
        ours, theirs = (getattr(model, encode)(images) for model in (a, b))
        assert torch.equal(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.log_var, theirs.log_var, atol=1e-5, rtol=0)
    scores = (m.similarity(m.encode_images(images), m.encode_texts(images)) for m in (a, b))
    assert torch.equal(*scores)


def test_gaussians_out_as_parquet_and_in_again(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'arrow'")
    first, second = tmp_path / "a.index", tmp_path / "b.index"
    assert main(["index", str(tiny_run), "--split", "test", "--out", str(first)]) == 0
    for gallery in ("images", "captions"):
        file = tmp_path / f"{gallery}.parquet"
        words = ["export", str(first), "--parquet", str(file), "--gallery", gallery]
        assert main(words) == 0
        assert main(words) == 2  # nothing is overwritten
        assert main(["index", str(tiny_run), str(file), "--out", str(second)]) == 0
    a, b = gm.open_index(first), gm.open_index(second)
    for gallery in ("images", "captions"):
        held, again = ({r.id: r.meta for r in index.records(gallery)} for index in (a, b))
        assert held == again
    id_ = next(iter(a.records())).id
    assert torch.equal(a.gaussian(id_).mean, b.gaussian(id_).mean)
    assert torch.equal(a.gaussian(id_).log_var, b.gaussian(id_).log_var)
    table = parquet.read_table(tmp_path / "images.parquet").to_pydict()
    names = ["id", "mean", "log_variance", "uncertainty", "percentile", "metadata"]
    assert list(table) == names
    (hit,) = (h for h in a.search_text(["a red star"], 100)[0].hits if h.id == id_)
    row = table["id"].index(id_)
    assert table["uncertainty"][row] == pytest.approx(hit.uncertainty, rel=1e-5)
    if hit.percentile is not None:
        assert table["percentile"][row] == pytest.approx(hit.percentile, abs=0.1)
    capsys.readouterr()


def test_parquet_of_other_programs_and_of_other_models(tiny_run: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra 'arrow'")
    import pyarrow.parquet

    from gaussmatch.search.tables import index_parquet, write_parquet

    file = tmp_path / "theirs.parquet"
    vectors = np.eye(4, dtype=np.float32)
    table = pa.table({"id": ["a", "b", "c", "d"], "mean": list(vectors)})
    pyarrow.parquet.write_table(table, file)
    points = gm.Index.create(tmp_path / "points", similarity="cosine")
    assert index_parquet(points, file, progress=False) == 4
    assert points.search(Gaussian(torch.tensor([[0.0, 0.1, 1.0, 0.0]])), 1)[0].ids == ["c"]
    beside = table.append_column("year", pyarrow.array([2020, 2021, None, 2023]))
    pyarrow.parquet.write_table(beside, tmp_path / "beside.parquet")
    texts = gm.Index.create(tmp_path / "texts", similarity="cosine")
    assert index_parquet(texts, tmp_path / "beside.parquet", "captions", progress=False) == 4
    assert (texts.size("images"), texts.size("captions")) == (0, 4)
    assert sorted(str(r.meta.get("year")) for r in texts.records("captions")) == [
        "2020",
        "2021",
        "2023",
        "None",
    ]
    nobody = table.set_column(0, "id", pyarrow.array(["a", None, "c", "d"]))
    pyarrow.parquet.write_table(nobody, tmp_path / "nobody.parquet")
    with pytest.raises(ValueError, match="a row has no id"):
        index_parquet(texts, tmp_path / "nobody.parquet", progress=False)
    out = tmp_path / "points.parquet"
    write_parquet(points, out, progress=False)
    with pytest.raises(ValueError, match="holds images, not captions"):
        index_parquet(texts, out, "captions", progress=False)
    assert pyarrow.parquet.read_table(out).column_names == ["id", "mean", "metadata"]
    pyarrow.parquet.write_table(table.select(["mean"]), tmp_path / "bare.parquet")
    with pytest.raises(ValueError, match="needs the columns id and mean; it has mean"):
        index_parquet(points, tmp_path / "bare.parquet", progress=False)
    mine = gm.Index.create(tmp_path / "mine", tiny_run)
    shape = (2, int(mine.model.recipe.model.dim))
    mine.add(Gaussian(torch.randn(shape), torch.randn(shape)), [Record("x"), Record("y")])
    write_parquet(mine, tmp_path / "mine.parquet", progress=False)
    other = gm.Index.create(tmp_path / "other", similarity="kl")
    other.backend.manifest = replace(other.manifest, run={"recipe.yaml": "0"})
    with pytest.raises(ValueError, match="made by another model"):
        index_parquet(other, tmp_path / "mine.parquet", progress=False)


def test_modules_of_ones_own_become_a_model_without_a_recipe(tmp_path: Path) -> None:
    class Tower(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.body, self.head = torch.nn.Linear(width, 8), torch.nn.Linear(8, 4)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.drop(self.body(x).relu()))

    images, captions = (gm.Probabilistic(Tower(width), part="head") for width in (6, 5))
    x, c, out = torch.randn(7, 6), torch.randn(7, 5), tmp_path / "mine"
    differs = gm.export(images, captions, out, inputs=(x, c), similarity="query_kl")
    assert set(differs) == {"images.onnx", "texts.onnx"}
    assert images.training  # the user's module is left as it was
    index = gm.Index.create(tmp_path / "index", out)
    index.add(index.model.encode_images(x), [Record(str(i)) for i in range(7)])
    images.eval(), captions.eval()
    with torch.no_grad():
        scores = gm.similarity("query_kl").for_query("captions").matrix(images(x), captions(c))
    (hits,) = gm.open_index(tmp_path / "index").search(gm.load(out).encode_texts(c[:1]), 7)
    assert hits.ids == [str(i) for i in scores[:, 0].argsort(descending=True).tolist()]
    with pytest.raises(FileExistsError, match="is not empty"):
        gm.export(images, captions, out, inputs=(x, c))
    for (modules, given, name), message in {
        ((images, captions), (x[:1], c), "kl"): "two items or more",
        ((images, Tower(5)), (x, c), "kl"): "the captions are points",
        ((images, captions), (x, c), "kull"): "unknown similarity 'kull'",
    }.items():
        with pytest.raises(ValueError, match=message):
            gm.export(*modules, tmp_path / "other", inputs=given, similarity=name)
        assert not (tmp_path / "other").exists()
    gm.export(Tower(6), Tower(5), tmp_path / "points", inputs=(x, c), similarity="cosine")
    assert gm.load(tmp_path / "points").encode_images(x).is_point
