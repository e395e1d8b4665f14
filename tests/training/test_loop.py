"""Training on a toy: it learns, it can be killed and resumed, and it says what goes wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import Rows, killed_at, toy_data

import gaussmatch as gm
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.files import read_json
from gaussmatch.learn.training.loop import CollapseWarning, read_log, train
from gaussmatch.learn.training.start import CheckpointWarning
from gaussmatch.learn.training.step import Objective
from gaussmatch.models import run as run_folder
from gaussmatch.models.recipe import DataRecipe, LossRecipe, ModelRecipe, Recipe, TrainingRecipe

RECIPE = Recipe(
    title="toy",
    data=DataRecipe(min_count=1),
    model=ModelRecipe(dim=16, word_dim=12, probabilistic=True, similarity="kl"),
    loss=LossRecipe(warmup_epochs=1),
    training=TrainingRecipe(
        epochs=4, batch_size=16, learning_rate=0.01, decay_epoch=3, device="cpu"
    ),
)


LEARNED = replace(
    RECIPE,
    model=replace(RECIPE.model, similarity="query_kl", variance_relative=True),
    loss=LossRecipe(name="infonce", scale=2.0, reduction="mean", inclusion=0.1, rivals=0.1),
    training=replace(RECIPE.training, shorten=0.3, shorten_as="add", frame=0.5),
)
MIXED = replace(
    RECIPE,
    loss=LossRecipe(name="sigmoid", scale=2.0, bias=-1.0),
    training=replace(RECIPE.training, mix=0.5),
)


def run(out: Path, recipe: Recipe = RECIPE, *, resume: bool = False) -> gm.Model:
    return train(recipe, out, resume=resume, data=toy_data(), progress_bar=False)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return gm.load(folder).matcher.state_dict()


def test_shortened_captions_can_be_queries_that_no_image_searches_for(tmp_path: Path) -> None:
    """The term of the whole captions does not depend on them, and each has one of its own."""
    losses = {}
    for shorten_as in ("query", "add", "replace"):
        training = replace(LEARNED.training, epochs=1, steps=1, shorten=1.0, shorten_as=shorten_as)
        loss = replace(LEARNED.loss, inclusion=0.0)
        run(tmp_path / shorten_as, replace(LEARNED, loss=loss, training=training))
        losses[shorten_as] = next(r for r in read_log(tmp_path / shorten_as) if "infonce" in r)
    run(
        tmp_path / "whole",
        replace(LEARNED, loss=loss, training=replace(training, shorten=0.0)),
    )
    whole = next(r for r in read_log(tmp_path / "whole") if "infonce" in r)
    assert losses["query"]["infonce"] == pytest.approx(whole["infonce"], rel=1e-5)
    assert losses["query"]["queries"] > 0
    assert losses["add"]["infonce"] != pytest.approx(whole["infonce"], rel=1e-5)
    assert "queries" not in losses["add"]
    with pytest.raises(ValueError, match=r"shorten_as query needs loss\.name infonce, not triplet"):
        replace(RECIPE, training=replace(RECIPE.training, shorten=0.3, shorten_as="query"))


def test_it_learns_and_leaves_a_whole_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(out)
    names = {p.name for p in out.iterdir()}
    assert names == {
        ".lock",
        "run.json",
        "recipe.yaml",
        "vocabulary.json",
        "model.safetensors",
        "metrics.json",
        "log.jsonl",
        "checkpoint.pt",
        "checkpoint.previous.pt",
        "tensorboard",
    }
    epochs = [r for r in read_log(out) if r["event"] == "epoch"]
    assert [r["epoch"] for r in epochs] == [1, 2, 3, 4]
    assert epochs[-1]["rsum"] > 250  # chance is about 100
    assert all(0 <= r["waiting"] <= 1 for r in read_log(out) if r["event"] == "step")
    metrics = read_json(out / "metrics.json")
    best = max(epochs, key=lambda r: r["rsum"])
    assert metrics["finished"]
    assert metrics["epoch"] == best["epoch"]
    assert metrics["dev"]["rsum"] == best["rsum"]
    assert epochs[0]["learning_rate"] == 0.01
    assert epochs[3]["learning_rate"] == pytest.approx(0.001)


def test_the_kept_model_is_the_best_on_validation(tmp_path: Path) -> None:
    model = run(tmp_path / "run")
    pairs = toy_data().dev
    from gaussmatch.learn.evaluation.retrieval import recalls

    dev = recalls(model.matcher.similarity, *model.encode_pairs(pairs), pairs)
    assert dev["rsum"] == read_json(tmp_path / "run" / "metrics.json")["dev"]["rsum"]


@pytest.mark.parametrize(
    ("recipe", "killed_in"),
    [(RECIPE, 2), (RECIPE, 3), (LEARNED, 2), (MIXED, 2)],
    ids=["2", "3", "learned-2", "mixed-2"],
)
def test_resumed_equals_uninterrupted(tmp_path: Path, recipe: Recipe, killed_in: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole, recipe)
    with killed_at((killed_in - 1) * 8 + 3):  # within an epoch
        run(broken, recipe)
    run(broken, recipe, resume=True)
    a, b = weights(whole), weights(broken)
    assert all(torch.equal(a[k], b[k]) for k in a)

    def without_clock(folder: Path) -> list[dict[str, float]]:
        clock = ("seconds", "cpu_seconds", "pairs_per_s", "waiting")
        return [{k: v for k, v in r.items() if k not in clock} for r in read_log(folder)]

    assert without_clock(whole) == without_clock(broken)
    assert read_json(whole / "metrics.json") == read_json(broken / "metrics.json")


@pytest.mark.parametrize("name", ["infonce", "sigmoid"])
@pytest.mark.parametrize("similarity", ["cosine", "query_kl", "wasserstein"])
def test_losses_that_learn_a_scale_train_every_similarity(
    tmp_path: Path, name: str, similarity: str
) -> None:
    """Points too: the baseline has the same choice of losses."""
    recipe = replace(
        RECIPE,
        model=replace(RECIPE.model, similarity=similarity, probabilistic=similarity != "cosine"),
        loss=LossRecipe(name=name, scale=4.0, reduction="mean"),
        training=replace(RECIPE.training, epochs=2),
    )
    run(tmp_path / "run", recipe)
    scale = weights(tmp_path / "run")["heads.loss.log_scale"].exp()
    assert scale > 0
    assert scale != pytest.approx(4.0)  # it was trained, and saved with the model
    epochs = [r for r in read_log(tmp_path / "run") if r["event"] == "epoch"]
    assert epochs[-1]["loss"] < epochs[0]["loss"]
    assert epochs[-1]["rsum"] > 150  # chance is about 100


def test_a_model_whose_direction_counts_wants_the_side_of_the_query(tmp_path: Path) -> None:
    model = run(tmp_path / "run", replace(LEARNED, training=replace(LEARNED.training, epochs=1)))
    images, captions = model.encode_pairs(toy_data().dev)
    by_caption = model.similarity(images, captions, query="captions")
    torch.testing.assert_close(by_caption, gm.similarity("kl").matrix(images, captions) / 16)
    assert not torch.allclose(by_caption, model.similarity(images, captions, query="images"))
    with pytest.raises(ValueError, match="choose the side of the query"):
        model.similarity(images, captions)


def test_seeds_matter_and_repeat(tmp_path: Path) -> None:
    one_epoch = replace(RECIPE, training=replace(RECIPE.training, epochs=1))
    other = replace(one_epoch, training=replace(one_epoch.training, seed=1))
    run(tmp_path / "a", one_epoch)
    run(tmp_path / "b", one_epoch)
    run(tmp_path / "c", other)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert any(not torch.equal(a[k], c[k]) for k in a)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    run(tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.pt").stat().st_mtime_ns
    run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoint.pt").stat().st_mtime_ns == before


def test_never_over_another_run(tmp_path: Path) -> None:
    short = replace(RECIPE, training=replace(RECIPE.training, epochs=1))
    run(tmp_path / "run", short)
    with pytest.raises(FileExistsError, match="--resume"):
        run(tmp_path / "run", short)
    other = replace(short, training=replace(short.training, seed=1))
    with pytest.raises(ValueError, match=r"another recipe.*see training\.seed"):
        run(tmp_path / "run", other, resume=True)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing"])
def test_a_damaged_checkpoint_costs_an_epoch_and_not_the_run(tmp_path: Path, damage: str) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    run(whole)
    with killed_at(27):  # in the fourth epoch, after three checkpoints
        run(out)
    path = out / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    after = {"flipped": bytes(content), "cut": bytes(content[:99]), "empty": b"", "missing": None}
    path.unlink() if after[damage] is None else path.write_bytes(after[damage])
    with pytest.warns(CheckpointWarning, match=r"the older checkpoint\.previous\.pt"):
        run(out, resume=True)
    a, b = weights(whole), weights(out)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert [r["step"] for r in read_log(whole)] == [r["step"] for r in read_log(out)]


def test_with_both_checkpoints_damaged_nothing_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with killed_at(27):
        run(out)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (out / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"checkpoint\.pt is damaged.*no other checkpoint"):
        run(out, resume=True)


@pytest.mark.parametrize("content", [b"", b"PK"])
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "run"
    with killed_at(11):
        run(out)
    (out / "checkpoint.pt").write_bytes(content)
    run_folder.seal(out, "checkpoint.pt")
    with pytest.raises(ValueError, match=r"checkpoint\.pt: damaged, truncated"):
        run(out, resume=True)


def test_nan_features_are_named(tmp_path: Path) -> None:
    data = toy_data()
    features = np.stack([data.train.images[i] for i in range(len(data.train.images))])
    features[7, 3] = np.nan
    bad = Pairs("toy/train", Rows(features), data.train.captions, data.train.image_of)
    with pytest.raises(ValueError, match=r"toy/train: the features of image 7 hold a NaN.*\(3,\)"):
        train(RECIPE, tmp_path / "run", data=DataSet("toy", bad, data.dev, data.test))


def test_collapse_is_reported_with_its_cure(tmp_path: Path) -> None:
    """All features alike and no learning: every pair scores alike, for as long as one looks."""
    data = toy_data(400)
    flat = Rows(np.ones((400, 16), dtype=np.float32))
    same = Pairs("toy/train", flat, ["red cat"] * 800, data.train.image_of)
    recipe = replace(
        RECIPE,
        loss=LossRecipe(warmup_epochs=0),
        training=replace(RECIPE.training, epochs=1, batch_size=8, learning_rate=1e-9),
    )
    with pytest.warns(CollapseWarning, match=r"set loss\.warmup_epochs to 1") as caught:
        train(
            recipe,
            tmp_path / "run",
            data=DataSet("toy", same, data.dev, data.test),
            progress_bar=False,
        )
    assert len(caught) == 1


def test_warm_up_sums_then_mines() -> None:
    assert [Objective.of_epoch(RECIPE.loss, e).ranking.mining for e in (1, 2, 3)] == [
        "sum",
        "hardest",
        "hardest",
    ]


def test_log_survives_a_line_cut_short(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(json.dumps({"epoch": 1}) + "\n" + '{"epoch": 2, "lo')
    assert read_log(tmp_path) == [{"epoch": 1}]


def test_wrong_feature_width_is_reported(tmp_path: Path) -> None:
    recipe = replace(RECIPE, model=replace(RECIPE.model, feature_dim=9))
    with pytest.raises(ValueError, match=r"feature_dim is 9, but toy/train has 16"):
        run(tmp_path / "run", recipe)
