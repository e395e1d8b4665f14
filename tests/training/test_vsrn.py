"""VSRN in the one training loop: its generation term is reported apart, weighted, and resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import Rows, killed_at, toy_data, toy_encoder, toy_words

import gaussmatch as gm
from gaussmatch.core.losses import sum_of
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.learn.training.batches import Batch, Batches
from gaussmatch.learn.training.loop import read_log, train
from gaussmatch.learn.training.step import Objective
from gaussmatch.models.encoders.base import Tokenizer
from gaussmatch.models.model import build
from gaussmatch.models.recipe import (
    DataRecipe,
    GeneratorRecipe,
    LossRecipe,
    ModelRecipe,
    Recipe,
    TrainingRecipe,
    VSRNRecipe,
)

MODEL = ModelRecipe(
    system="vsrn",
    dim=16,
    word_dim=12,
    probabilistic=True,
    similarity="kl",
    feature_dim=4,
    vsrn=VSRNRecipe(generator=GeneratorRecipe(hidden=8, word_dim=6, dropout=0.3)),
)
RECIPE = Recipe(
    title="toy",
    data=DataRecipe(min_count=1),
    model=MODEL,
    loss=LossRecipe(warmup_epochs=2, generation=1.0),
    training=TrainingRecipe(
        epochs=3, batch_size=24, learning_rate=0.02, decay_epoch=3, device="cpu"
    ),
)


def region_data() -> DataSet:
    """The toy's four attributes as four regions of an image."""

    def regions(pairs: Pairs) -> Pairs:
        array = np.stack([pairs.images[i] for i in range(len(pairs.images))])
        rows = Rows(array.reshape(len(array), 4, 4))
        return Pairs(pairs.name, rows, pairs.captions, pairs.image_of)

    data = toy_data()
    return DataSet("toy", regions(data.train), regions(data.dev), regions(data.test))


def run(out: Path, recipe: Recipe = RECIPE, *, resume: bool = False) -> gm.Model:
    return train(recipe, out, resume=resume, data=region_data(), progress_bar=False)


def first_batch() -> tuple[Batch, Tokenizer]:
    pairs = region_data().train
    encoder = toy_encoder(pairs.captions)
    return next(Batches(pairs, encoder, RECIPE.training).epoch(1)), encoder.tokenizer


@pytest.mark.parametrize("similarity", ["cosine", "kl"])
def test_it_learns_and_reports_its_terms(tmp_path: Path, similarity: str) -> None:
    model = replace(MODEL, similarity=similarity, probabilistic=similarity != "cosine")
    longer = replace(RECIPE.training, epochs=8, decay_epoch=7)
    run(tmp_path / "run", replace(RECIPE, model=model, training=longer))
    log = read_log(tmp_path / "run")
    epochs = [r for r in log if r["event"] == "epoch"]
    assert max(r["rsum"] for r in epochs) > 200  # chance is about 100
    steps = [r for r in log if r["event"] == "step"]
    assert all(r["loss"] == pytest.approx(r["triplet"] + r["generation"]) for r in steps)
    assert steps[-1]["generation"] < 0.8 * steps[0]["generation"]


def test_resumed_equals_uninterrupted_with_its_dropout(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole)
    with killed_at(7):  # within the second epoch
        run(broken)
    torch.manual_seed(123)  # what the generator drops must come from the checkpoint
    run(broken, resume=True)
    a, b = (torch.load(f / "checkpoint.pt")["matcher"] for f in (whole, broken))
    assert any(name.startswith("heads.generator") for name in a)
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_the_weight_multiplies_and_zero_leaves_it_out() -> None:
    batch, words = first_batch()
    matcher = build(MODEL, words).eval()
    values = {
        weight: Objective.of_epoch(LossRecipe(generation=weight), 1)(matcher, batch)
        for weight in (0.0, 1.0, 2.5)
    }
    assert set(values[0.0]) == {"triplet"}
    torch.testing.assert_close(values[2.5]["generation"], 2.5 * values[1.0]["generation"])
    assert torch.equal(values[0.0]["triplet"], values[1.0]["triplet"])


@pytest.mark.parametrize("duplicate", ["gru", "all"])
def test_the_generator_reads_and_teaches_the_graph_of_the_mean(duplicate: str) -> None:
    batch, words = first_batch()
    vsrn = replace(MODEL.vsrn, duplicate=duplicate)
    matcher = build(replace(MODEL, vsrn=vsrn), words)
    for name, p in matcher.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.ones_(p)  # the blocks start silent
    terms = Objective.of_epoch(LossRecipe(generation=1.0), 1)(matcher, batch)
    terms["generation"].backward()
    taught = {n for n, p in matcher.named_parameters() if p.grad is not None and p.grad.any()}
    assert {n for n, _ in matcher.named_parameters() if n.startswith("heads.")} <= taught
    graph = {n for n in taught if n.startswith("image.")}
    assert graph
    assert all(n.startswith("image.encoder.reasoning.graph.") for n in graph)
    assert not any(n.startswith("text.") for n in taught)


def test_every_parameter_of_the_system_is_trained() -> None:
    batch, words = first_batch()
    matcher = build(MODEL, words)
    for name, p in matcher.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.ones_(p)
    sum_of(Objective.of_epoch(RECIPE.loss, 1)(matcher, batch).values()).backward()
    missing = [n for n, p in matcher.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []


def test_a_run_keeps_its_generator(tmp_path: Path) -> None:
    recipe = replace(RECIPE, training=replace(RECIPE.training, epochs=1))
    model = run(tmp_path / "run", recipe)
    loaded = gm.load(tmp_path / "run")
    regions = torch.rand(3, 4, 4)
    assert torch.equal(loaded.encode_images(regions).mean, model.encode_images(regions).mean)
    assert "generator" in loaded.matcher.heads


def test_a_model_without_generator_has_no_head() -> None:
    without = replace(MODEL, vsrn=VSRNRecipe(generator=GeneratorRecipe(used=False)))
    assert not build(without, toy_words(20)).heads


@pytest.mark.parametrize(
    "model",
    [ModelRecipe(), replace(MODEL, vsrn=VSRNRecipe(generator=GeneratorRecipe(used=False)))],
    ids=["vse++", "no generator"],
)
def test_a_term_without_its_network_is_refused(model: ModelRecipe) -> None:
    with pytest.raises(ValueError, match=r"loss\.generation is 1\.0, but only a model with"):
        Recipe(model=model, loss=LossRecipe(generation=1.0))


def test_pooled_features_are_refused(tmp_path: Path) -> None:
    recipe = replace(RECIPE, model=replace(MODEL, feature_dim=None))
    with pytest.raises(ValueError, match=r"got \(24, 16\); set data\.features to regions"):
        train(recipe, tmp_path / "run", data=toy_data(), progress_bar=False)
