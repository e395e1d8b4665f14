"""Published uncertainties on a frozen pair: formulas, the ranking kept, real CLIP embeddings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from reproduced import MINI
from torch.nn.functional import normalize

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.core import losses, metrics
from gaussmatch.data.queries import FittingCounts
from gaussmatch.files import read_json
from gaussmatch.learn.studies.paper import experiment
from gaussmatch.learn.studies.study import Setting, reproduction
from gaussmatch.models.encoders.posthoc import (
    METHODS,
    OURS,
    BayesVLM,
    FromCaptions,
    ProbVLM,
    Sizes,
    curvature,
    nll,
    prior_precision,
    temperature,
)

EVERY = (OURS, *(name for name in METHODS if name != "captions"))  # which needs the texts
WIDTH = 12
CLIP = Path(__file__).parents[3] / "shared" / "data" / "clip" / "coco_val2017_500_clip_b16.npz"


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images with two captions each; every second caption is between its image and another."""
    folder, rng = tmp_path_factory.mktemp("pair"), np.random.default_rng(0)
    images = rng.normal(size=(60, WIDTH))
    mixed = images + np.roll(images, 7, 0)
    texts = np.stack([images, mixed], 1).reshape(120, WIDTH) + 0.1 * rng.normal(size=(120, WIDTH))
    for name, values in (("img", images), ("txt", texts)):
        unit = values / np.linalg.norm(values, axis=1, keepdims=True)
        np.save(folder / f"{name}.npy", unit.astype(np.float32))
    splits = ["train"] * 40 + ["dev"] * 10 + ["test"] * 10
    lines = [f"{i // 2},{i},{splits[i // 2]}" for i in range(120)]
    (folder / "pairs.csv").write_text("\n".join(["image,text,split", *lines]))
    return folder


def adapt(folder: Path, method: str, out: Path, *words: str) -> int:
    files = [f"--images={folder / 'img.npy'}", f"--texts={folder / 'txt.npy'}"]
    small = ["--training.epochs=2", "--training.batch_size=32", "--model.posthoc.hidden=16"]
    small += ["--model.posthoc.reference=64", "--model.adapter.hidden=16"]
    files += [f"--pairs={folder / 'pairs.csv'}", f"--out={out}", f"--method={method}"]
    return main(["adapt", *files, *small, *words])


@pytest.mark.parametrize("method", EVERY)
def test_a_method_keeps_the_embeddings_and_says_how_unsure_they_are(
    method: str, arrays: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert adapt(arrays, method, run) == 0
    model = gm.load(run)
    images, texts = np.load(arrays / "img.npy"), np.load(arrays / "txt.npy")
    g, c = model.encode_images(images), model.encode_texts(texts)
    assert np.array_equal(g.mean.numpy(), images)
    assert np.array_equal(c.mean.numpy(), texts)
    points = (gm.Gaussian(torch.from_numpy(side)) for side in (images, texts))
    assert torch.equal(model.similarity(g, c), gm.similarity("cosine").matrix(*points))
    assert c.log_var is not None
    assert model.uncertainty(c).isfinite().all()
    assert model.uncertainty(c).std() > 0
    assert (model.uncertainty(g).std() > 0) == (method != "asymvlm")  # whose images are points
    if method == "perplexity":  # a caption of two training images is less sure
        unsure = c.uncertainty().reshape(60, 2)[7:40]
        assert (unsure[:, 1] > unsure[:, 0]).float().mean() > 0.9
    trained = method == OURS
    assert read_json(run / "metrics.json")["epoch"] == (
        2 if trained else 0
    )  # the last, not the best
    again = tmp_path / "again"
    assert adapt(arrays, method, again) == 0
    same = gm.load(again).encode_texts(texts)
    assert torch.equal(same.log_var, c.log_var)


@pytest.mark.parametrize("method", ["asymvlm", "bayesvlm"])
def test_a_run_is_indexed_searched_calibrated_and_probed(
    method: str, arrays: Path, tmp_path: Path
) -> None:
    run, index = tmp_path / "run", tmp_path / "index"
    assert adapt(arrays, method, run) == 0
    assert main(["calibrate", str(run)]) == 0
    assert main(["probe", str(run)]) == 0
    assert main(["evaluate", str(run)]) == 0
    assert set(json.loads((run / "probe.json").read_text())["verdict"]) == {"captions", "images"}
    assert main(["index", str(run), str(arrays / "img.npy"), "--out", str(index)]) == 0
    opened = gm.Index.open(index)
    query = opened.model.encode_texts(np.load(arrays / "txt.npy")[100:101])
    found = opened.search(query, 3, guarantee=0.9)[0]
    assert found.hits[0].id == "50"
    assert 0 <= found.hits[0].probability <= 1


def test_images_and_texts_of_two_widths_are_refused_in_one_line(
    arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("img.npy", "txt.npy"):
        np.save(tmp_path / name, np.load(arrays / name)[:, : 5 if name == "txt.npy" else WIDTH])
    (tmp_path / "pairs.csv").write_text((arrays / "pairs.csv").read_text())
    assert adapt(tmp_path, "bayesvlm", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert "needs images and texts of one space" in said
    assert "img.npy has 12 dimensions" in said
    assert "txt.npy 5" in said
    assert adapt(arrays, "bayesvlm", tmp_path / "run", "--ranking=improve") == 2
    assert "--method keeps the ranking" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model.posthoc.method": "bayes"}, "unknown model.posthoc.method|bayesvlm"),
        ({"model.posthoc.method": "probvlm", "model.probabilistic": True,
          "model.similarity": "kl"}, "needs model.probabilistic false"),
        ({"model.posthoc.method": "ours"}, "needs model.probabilistic true"),
        ({"model.posthoc.method": "probvlm", "model.system": "pvse", "model.similarity": "mil"},
         "takes points"),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gm.load_recipe("scenes/vsepp", fields)


def test_a_method_without_means_to_keep_is_refused(tmp_path: Path) -> None:
    recipe = gm.load_recipe(
        "scenes/vsepp-posthoc", {"training.start_from": None, "data.size": "small"}
    )
    with pytest.raises(ValueError, match="name the run whose means they are"):
        gm.train(recipe, tmp_path / "run")


# ---- formulas ----


def test_probvlm_has_the_variance_of_its_density() -> None:
    x = torch.linspace(-400, 400, 800_001, dtype=torch.float64)
    one = torch.ones_like(x)
    method = ProbVLM(Sizes("captions", 4, 4, 8, 0.0, 1))
    for log_alpha, beta in ((0.3, 1.0), (-0.4, 2.0), (0.1, 0.8)):
        p = (-nll(x, log_alpha * one, beta * one)).exp() / 2
        step = float(x[1] - x[0])
        assert float(p.sum() * step) == pytest.approx(1, abs=2e-3)
        density = torch.zeros(1, 4), torch.full((1, 4), log_alpha), torch.full((1, 4), beta)
        method.density = lambda e, d=density: d  # type: ignore[method-assign]
        found = method(torch.ones(1, 4), torch.ones(1, 4)).exp()
        assert float(found[0, 0]) == pytest.approx(float((p * x**2).sum() * step), rel=0.02)


def test_curvature_is_the_hessian_of_infonce() -> None:
    dice = torch.Generator().manual_seed(0)
    own = torch.randn(5, 6, generator=dice, dtype=torch.float64)
    other = own + 0.5 * torch.randn(5, 6, generator=dice, dtype=torch.float64)
    y, tau = normalize(other, dim=-1), temperature(own, other)

    def logits(g: torch.Tensor) -> torch.Tensor:
        return y @ normalize(g, dim=-1) / tau

    total = torch.zeros(6, 6, dtype=torch.float64)
    for g in own:  # the generalized Gauss–Newton matrix: Jᵀ (diag p − ppᵀ) J
        jacobian = torch.autograd.functional.jacobian(logits, g)
        p = logits(g).softmax(0)
        total += jacobian.T @ (p.diag() - torch.outer(p, p)) @ jacobian
    torch.testing.assert_close(curvature(own, other, 5, 5), total / 5)


def test_bayesvlm_is_the_kronecker_laplace_in_closed_form() -> None:
    dice = torch.Generator().manual_seed(0)
    inner = torch.randn(300, 5, generator=dice) * torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1])
    own = inner @ torch.randn(5, 4, generator=dice)
    other = own + 0.3 * torch.randn(300, 4, generator=dice)
    method = BayesVLM(Sizes("images", 4, 5, 8, 0.0, 1))
    method.fit(own, inner, other)
    a = inner.T.double() @ inner.double() / 300 * 300**0.5
    b = curvature(own, other, 256, 1024).double() * 300**0.5
    weight = torch.linalg.lstsq(inner.double(), own.double()).solution.square().sum()
    lam = prior_precision(torch.linalg.eigvalsh(a), torch.linalg.eigvalsh(b), float(weight))
    root = math.sqrt(lam)
    covariance = torch.linalg.inv(
        torch.kron(a + root * torch.eye(5), b + root * torch.eye(4))
    )  # of vec W, φ first
    phi = inner[7].double()
    mapped = torch.kron(phi[None], torch.eye(4, dtype=torch.float64))
    wanted = (mapped @ covariance @ mapped.T).diagonal()
    found = method(own[7:8], inner[7:8]).exp()[0].double()
    torch.testing.assert_close(found, wanted / own[7].double().square().sum(), rtol=1e-3, atol=0)
    strange = torch.tensor([[0.0, 0.0, 0.0, 0.0, 3.0]])  # a direction that training never took
    seen = torch.tensor([[3.0, 0.0, 0.0, 0.0, 0.0]])
    assert (method(own[:1], strange) > method(own[:1], seen) + 1).all()


# ---- real CLIP ----


@pytest.mark.skipif(not CLIP.is_file(), reason=f"needs the CLIP embeddings of {CLIP.name}")
def test_clip_ranks_as_before_and_perplexity_knows_its_sure_half(tmp_path: Path) -> None:
    stored = np.load(CLIP)
    images, texts = stored["image"].astype(np.float32), stored["text"].astype(np.float32)
    order = np.random.default_rng(0).permutation(500)
    np.save(tmp_path / "img.npy", images)
    np.save(tmp_path / "txt.npy", texts)
    splits = ["train"] * 300 + ["dev"] * 20 + ["test"] * 180
    lines = [f"{i},{i},{split}" for i, split in zip(order, splits, strict=True)]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,text,split", *lines]))
    assert adapt(tmp_path, "perplexity", tmp_path / "run", "--model.posthoc.reference=300") == 0
    model = gm.load(tmp_path / "run")
    g, c = model.encode_images(images), model.encode_texts(texts)
    right = (model.similarity(g, c).argmax(0) == torch.arange(500)).double()
    assert 100 * float(right.mean()) == pytest.approx(50.6, abs=0.11)  # as published with them
    unseen = order[300:].tolist()
    among = model.similarity(g[unseen], c[unseen]).argmax(0) == torch.arange(200)
    curve = metrics.risk_coverage(among.double(), c.uncertainty()[unseen].double())
    assert curve.aurc < curve.random - 0.04  # six random splits: 0.084 ± 0.013 below


# ---- the table ----


def test_the_table_of_peers_is_measured_row_by_row(tmp_path: Path) -> None:
    rows = [f"--rows={row}" for row in ("points", "points + ours", "points + perplexity")]
    chains = tmp_path / "chains.csv"
    chains.write_text("level_1,level_2\na shape,a red circle\na thing,a blue square\n")
    fitting = tmp_path / "fits.jsonl"
    said = (("a red circle", 3), ("a shape", 9), ("a blue square", 2), ("a circle", 5))
    fitting.write_text("".join(json.dumps({"caption": c, "fits": n}) + "\n" for c, n in said))
    people = [f"--chains={chains}", f"--fitting={fitting}"]
    assert main(["reproduce", "peers", "--out", str(tmp_path / "out"), *MINI, *rows, *people]) == 0
    cells = tmp_path / "out" / "peers" / "cells"
    found = {p.name: read_json(p) for p in cells.iterdir()}
    points = found["points-seed-0.json"]["measures"]
    kept = found["points-perplexity-seed-0.json"]["measures"]
    assert kept["rsum"] == points["rsum"]
    assert found["points-ours-seed-0.json"]["measures"]["rsum"] == points["rsum"]
    assert "t2i_aurc" not in points
    assert {"t2i_aurc", "ood_auroc", "chain_steps", "people_rho", "set_size"} <= set(kept)
    table = (tmp_path / "out" / "peers" / "table.md").read_text(encoding="utf-8")
    assert "points + perplexity" in table


@pytest.mark.parametrize("data", ["scenes", "flickr8k", "coco_real"])
def test_every_row_of_the_peers_has_a_recipe_and_shares_its_points(
    data: str, tmp_path: Path
) -> None:
    one = experiment("peers", data)
    assert {"points", "PCME++", "ProLIP", "recommended", "points + ours"} <= {
        row.title for row in one.rows
    }
    made = reproduction(["peers"], Setting(data, seeds=1), tmp_path)
    runs = {cell.row.title: cell.run for cell in made.cells}
    assert None not in runs.values(), [cell.problem for cell in made.cells]
    kept = [row.title for row in one.rows if row.title.startswith("points + ")]
    assert len(kept) == 7
    for row in kept:
        run = runs[row]
        assert run is not None
        assert run.start == runs["points"]


@pytest.mark.skipif(not CLIP.is_file(), reason="no shared data with real CLIP embeddings")
def test_real_clip_embeddings_tell_how_many_captions_say_the_same() -> None:
    """400 of CLIP's texts are enough to know of 100 others how common they are among 25,000 public
    captions, better than their length does."""
    held = np.load(CLIP)
    said = read_json(CLIP.parents[1] / "coco" / "captions_val2017.json")["annotations"]
    counts = FittingCounts([a["caption"] for a in said], np.array([a["image_id"] for a in said]))
    texts, target = torch.from_numpy(held["text"]), counts.by_words(held["captions"], held["ids"])
    known, train = torch.from_numpy(target), torch.arange(len(texts)) % 5 > 0
    torch.manual_seed(0)
    method = FromCaptions(Sizes("captions", texts.shape[1], 0, 64, 0.3, 256))
    inputs, _ = method.refer(texts[train], torch.from_numpy(held["ids"])[train], texts[train])
    optimizer = torch.optim.AdamW(method.network.parameters(), 1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        losses.disorder(method.network(inputs)[:, 0], known[train]).backward()
        optimizer.step()
    with torch.no_grad():
        found = method.eval()(texts[~train], texts[~train])[:, 0]
    length = torch.tensor([-float(len(text.split())) for text in held["captions"]])
    rho = [metrics.spearman(gauge, known[~train]) for gauge in (found, length[~train])]
    assert rho[0] > 0.4 > rho[1]
