"""PVSE, PCME and PCME++ in the one training loop, and measured as any other run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from toy import killed_at
from training.test_vsrn import region_data

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.core.losses import (
    PCMEPPLoss,
    SoftContrastive,
    TripletLoss,
    bottleneck,
    diversity,
    mean_discrepancy,
)
from gaussmatch.files import read_json
from gaussmatch.learn.evaluation.evaluate import measure_run
from gaussmatch.learn.training.batches import Batch, Batches, mixed
from gaussmatch.learn.training.loop import CollapseWatch, read_log, train
from gaussmatch.learn.training.step import Gradients, Objective, Precision
from gaussmatch.models.encoders.base import Vocabulary
from gaussmatch.models.model import Matcher, build
from gaussmatch.models.recipe import (
    DataRecipe,
    LossRecipe,
    ModelRecipe,
    PCMEPPRecipe,
    PCMERecipe,
    PVSERecipe,
    Recipe,
    TrainingRecipe,
)

PVSE = Recipe(
    title="PVSE",
    data=DataRecipe(min_count=1),
    model=ModelRecipe(
        system="pvse",
        dim=16,
        word_dim=12,
        similarity="mil",
        feature_dim=4,
        pvse=PVSERecipe(embeddings=3, dropout=0.1),
    ),
    loss=LossRecipe(reduction="mean", warmup_epochs=2, diversity=0.1, mmd=0.01),
    training=TrainingRecipe(
        epochs=3, batch_size=24, learning_rate=0.02, decay_epoch=3, device="cpu"
    ),
)
PCME = replace(
    PVSE,
    title="PCME",
    model=ModelRecipe(
        system="pcme",
        dim=16,
        word_dim=12,
        similarity="match_prob",
        feature_dim=4,
        pcme=PCMERecipe(samples=3, log_sigma=-3.0),
    ),
    loss=LossRecipe(name="soft-contrastive", vib=1e-5),
)
PCMEPP = replace(
    PVSE,
    title="PCME++",
    model=ModelRecipe(
        system="pcmepp",
        dim=16,
        word_dim=12,
        similarity="csd",
        feature_dim=4,
        pcmepp=PCMEPPRecipe(log_var=-4.0),
    ),
    loss=LossRecipe(
        name="pcmepp", scale=5.0, bias=5.0, pseudo_positives=0.1, label_smoothing=1e-4, vib=1e-4
    ),
    training=replace(PVSE.training, mix=0.25),
)
RECIPES = pytest.mark.parametrize("recipe", [PVSE, PCME, PCMEPP], ids=lambda r: r.title)


def run(recipe: Recipe, out: Path, *, resume: bool = False) -> gm.Model:
    return train(recipe, out, data=region_data(), resume=resume, progress_bar=False)


def first_batch(recipe: Recipe) -> tuple[Matcher, Batch]:
    torch.manual_seed(0)
    pairs = region_data().train
    matcher = build(recipe.model, Vocabulary.build(pairs.captions, 1))
    batches = Batches(pairs, matcher.text_encoder, TrainingRecipe(batch_size=16))
    return matcher, next(iter(batches.epoch(1)))


@RECIPES
def test_it_learns_and_loads_again(tmp_path: Path, recipe: Recipe) -> None:
    more, reached = (16, 150) if recipe is PCMEPP else (6, 200)  # whose steps are small
    longer = replace(recipe, training=replace(recipe.training, epochs=more, decay_epoch=more - 1))
    model = run(longer, tmp_path)
    epochs = [r for r in read_log(tmp_path) if r["event"] == "epoch"]
    assert max(r["rsum"] for r in epochs) > reached  # chance is about 100
    pairs = region_data().dev
    images, captions = model.encode_pairs(pairs)
    expected = (len(pairs.images), 3) if recipe is PVSE else (len(pairs.images),)
    assert images.shape == expected
    assert captions.is_point is (recipe is PVSE)
    scores = model.similarity(images, captions)
    assert not scores.requires_grad
    again = gm.load(tmp_path)
    assert torch.equal(again.similarity(*again.encode_pairs(pairs)), scores)


@RECIPES
def test_resumed_equals_uninterrupted(tmp_path: Path, recipe: Recipe) -> None:
    """Dropout and the samples of PCME go on where they were."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(recipe, whole)
    with killed_at(8):  # in the second epoch
        run(recipe, broken)
    run(recipe, broken, resume=True)
    a, b = (torch.load(f / "checkpoint.pt", weights_only=True)["matcher"] for f in (whole, broken))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert read_json(whole / "metrics.json") == read_json(broken / "metrics.json")


def test_a_learned_similarity_is_trained_and_saved_with_the_weights(tmp_path: Path) -> None:
    model = run(PCME, tmp_path)
    state = model.matcher.state_dict()
    assert {"similarity.scale", "similarity.shift"} <= set(state)
    assert state["similarity.scale"].item() != 15
    assert gm.load(tmp_path).matcher.similarity.scale.item() == state["similarity.scale"].item()


def test_the_terms_of_pvse() -> None:
    matcher, batch = first_batch(PVSE)
    matcher.eval()  # no dropout
    terms = Objective.of_epoch(PVSE.loss, 3)(matcher, batch)
    assert list(terms) == ["triplet", "diversity", "mmd"]
    seen = {}
    for side in ("image", "text"):
        part = matcher.part(f"{side}.pie.residual")
        part.register_forward_hook(lambda m, i, out, side=side: seen.update({side: out}))
    images, captions = matcher(batch.images, batch.texts)
    apart = diversity(seen["image"]) + diversity(seen["text"])
    torch.testing.assert_close(terms["diversity"], 0.1 * apart)
    gap = mean_discrepancy(images.mean, captions.mean)
    torch.testing.assert_close(terms["mmd"], 0.01 * gap)


@pytest.mark.parametrize("name", ["vib", "vib_as_published"])
def test_the_terms_of_pcme(name: str) -> None:
    matcher, batch = first_batch(PCME)
    loss = LossRecipe(name="soft-contrastive", **{name: 1e-5})
    terms = Objective.of_epoch(loss, 1)(matcher, batch)
    assert list(terms) == ["soft_contrastive", name]
    kl = sum(bottleneck(g, as_published=name != "vib") for g in matcher(batch.images, batch.texts))
    torch.testing.assert_close(terms[name], 1e-5 * kl)


def test_the_terms_of_pcmepp() -> None:
    """VIB is a mean over items and dimensions; mixed images are parts of two matches."""
    matcher, batch = first_batch(PCMEPP)
    matcher.eval()
    matcher.heads["loss"] = PCMEPPLoss(5.0, 5.0, label_smoothing=1e-4)
    batch = mixed(batch, 0.5)
    share, partner = batch.mixture
    assert 0 < (share < 1).sum() < 16
    objective = Objective.of_epoch(PCMEPP.loss, 1, matcher.heads)
    terms = objective(matcher, batch)
    assert list(terms) == ["pcmepp", "pseudo_positives", "vib"]
    images, captions = matcher(batch.images, batch.texts)
    kl = sum(bottleneck(g) for g in (images, captions)) / images.mean.numel()
    torch.testing.assert_close(terms["vib"], 1e-4 * kl)
    scores = matcher.similarity.matrix(images, captions)
    target = torch.diag(share)
    target[torch.arange(16), partner] += 1 - share
    smooth = target + 1e-4 * (1 - 2 * target)
    logits, negative = 5 - 5 * -scores, batch.image_ids[:, None] != batch.image_ids
    each = binary_cross_entropy_with_logits(logits, smooth, reduction="none")
    plain = 2 * each[negative | (target > 0)].sum() / 16**2
    torch.testing.assert_close(terms["pcmepp"], plain)
    cut = share < 1  # an image of regions keeps some, or is a mean of two
    assert torch.equal(batch.images[~cut], first_batch(PCMEPP)[1].images[~cut])


def test_parts_of_matches_go_through_micro_batches() -> None:
    """The gradients of a mixed batch in parts are those of the whole."""
    found = []
    for size in (None, 4):
        matcher, batch = first_batch(replace(PCMEPP, model=replace(PCMEPP.model, dim=8)))
        flat = replace(PCMEPP.model, dim=8, pcmepp=PCMEPPRecipe(deep=False, drop=0.0, log_var=-4.0))
        torch.manual_seed(0)
        matcher = build(flat, matcher.text_encoder.tokenizer, PCMEPP.loss)
        torch.manual_seed(1)
        gradients = Gradients(matcher, Precision("float32", torch.device("cpu")), size)
        gradients(Objective.of_epoch(PCMEPP.loss, 1, matcher.heads), mixed(batch, 0.5))
        found.append({name: p.grad for name, p in matcher.named_parameters()})
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, atol=1e-6, rtol=1e-4)


def test_the_loss_of_an_epoch_is_that_of_the_recipe() -> None:
    losses = [Objective.of_epoch(PVSE.loss, epoch).ranking for epoch in (2, 3)]
    assert losses == [TripletLoss(0.2, "sum", "mean"), TripletLoss(0.2, "hardest", "mean")]
    assert Objective.of_epoch(PCME.loss, 1).ranking == SoftContrastive("sum")


def test_gradients_reach_everything_that_is_trained() -> None:
    for recipe in (PVSE, PCME, PCMEPP):
        matcher, batch = first_batch(recipe)
        matcher.train()
        torch.stack(
            list(Objective.of_epoch(recipe.loss, 3)(matcher, batch).values())
        ).sum().backward()
        for name, p in matcher.named_parameters():
            assert p.grad is not None, name
            assert p.grad.isfinite().all(), name
            assert p.grad.any(), name


def test_a_loss_that_stands_at_a_guess_is_reported() -> None:
    watch, loss = CollapseWatch(patience=2), SoftContrastive()
    stuck = loss.collapsed_value(24)
    assert [watch.update(loss, stuck, 24) for _ in range(3)] == [False, True, False]
    assert "all pairs score alike" in watch.advice(loss, stuck, PCME.loss)


# ---- measured ----


def test_pcme_is_measured_by_match_probability_and_by_mean_distance(tmp_path: Path) -> None:
    run(PCME, tmp_path)
    data = region_data()
    own = measure_run(tmp_path, data=data).measures
    means = measure_run(tmp_path, data=data, by="cosine").measures
    assert own["provenance"]["similarity"] == "match_prob"
    assert means["provenance"]["similarity"] == "cosine"
    assert read_json(tmp_path / "evaluation-test.json") == own
    assert read_json(tmp_path / "evaluation-test-similarity-cosine.json") == means
    assert "by cosine" in (tmp_path / "evaluation-test-similarity-cosine.md").read_text()
    assert "t2i_aurc" in own
    assert measure_run(tmp_path, data=data).measures["rsum"] == own["rsum"]  # the same samples


def test_pvse_is_measured_and_refuses_what_does_not_fit(tmp_path: Path) -> None:
    run(PVSE, tmp_path)
    data = region_data()
    measures = measure_run(tmp_path, data=data).measures
    assert "t2i_aurc" not in measures  # points have no uncertainty
    assert "t2i_score_aurc" in measures
    with pytest.raises(ValueError, match="mil compares several embeddings"):
        measure_run(tmp_path, data=data, by="cosine")
    with pytest.raises(ValueError, match="match_prob has weights of its own"):
        measure_run(tmp_path, data=data, by="match_prob")


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--data.size", "tiny", "--training.epochs", "1", "--model.dim", "8"]
    out = str(tmp_path / "pcme")
    assert main(["train", "scenes/pcme", "--out", out, *quick]) == 0
    assert main(["evaluate", out, "--similarity", "cosine"]) == 0
    printed = capsys.readouterr().out
    assert "evaluation-test-similarity-cosine.json" in printed
    assert not (tmp_path / "pcme" / "evaluation-test.json").exists()
    assert "selection" in read_json(tmp_path / "pcme" / "evaluation-test-similarity-cosine.json")
    assert main(["evaluate", out, "--similarity", "mil"]) == 0  # of one embedding: the cosine
    same = [
        read_json(tmp_path / "pcme" / f"evaluation-test-similarity-{name}.json")["rsum"]
        for name in ("mil", "cosine")
    ]
    assert same[0] == same[1]
