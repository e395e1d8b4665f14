"""What a calibration says is right where the truth is known: synthetic Gaussians."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import (
    Guarantee,
    Relevance,
    calibration_error,
    conformal_threshold,
    coverage_over_splits,
    partial_spearman,
    spearman,
)
from gaussmatch.core.similarities import similarity
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.models.encoders.base import Reading
from gaussmatch.search.trust import Calibration, Familiarity, calibrate_gaussians
from gaussmatch.search.trust.calibration import TOP

D = 8


def world(n: int, seed: int, blur: float = 0.35) -> tuple[Gaussian, Gaussian, Relevance]:
    """Images with one caption each; every other caption is far more blurred, and wider."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(n, D, generator=chance)
    vague = torch.where(torch.arange(n) % 2 == 0, 1.0, 2.5)
    wide = (blur * vague * (1 + 0.2 * torch.rand(n, generator=chance)))[:, None]
    c = x + wide * torch.randn(n, D, generator=chance)
    images = Gaussian(x, torch.full((n, 1), 2 * np.log(blur)))
    captions = Gaussian(c, 2 * wide.log())
    ids = torch.arange(n)
    return images, captions, Relevance.from_pairs(ids, ids, queries=n, gallery=n)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    images, captions, truth = world(1500, 1)
    seen_images, seen_captions, _ = world(2000, 0)
    seen = {"images": seen_images, "captions": seen_captions}
    return calibrate_gaussians(similarity("kl"), images, captions, truth, seen=seen)


def judged(calibration: Calibration, queries: Gaussian, items: Gaussian):
    best = query_scores(similarity("kl"), queries, items, "images").topk(TOP)
    unsure = items.uncertainty()[best.indices].double().numpy()
    found = calibration.judge(
        similarity("kl"), queries, "captions", "images", best.values.numpy(), unsure, len(items)
    )
    return found, best.indices


@pytest.mark.parametrize("size", [150, 600, 2400])
def test_the_match_probability_is_honest_in_galleries_of_any_size(calibration, size):
    images, captions, _ = world(size, 2)
    found, rows = judged(calibration, captions, images)
    right = (rows == torch.arange(size)[:, None]).double()
    known = torch.from_numpy(found.probability)
    familiar = ~known.isnan().any(1)
    assert familiar.double().mean() > 0.95
    error = calibration_error(known[familiar].flatten(), right[familiar].flatten())
    assert error < 0.02
    assert (known[familiar].diff(dim=1) <= 0).all()  # in the order shown


def test_it_beats_isotonic_regression_on_the_score(calibration):
    about = calibration.about["images"]
    assert about["brier"] < about["isotonic_brier"]


def test_what_lies_elsewhere_is_unfamiliar_and_has_no_probability(calibration):
    images, captions, _ = world(300, 3)
    strange = Gaussian(captions.mean + 6, captions.log_var)
    found, _ = judged(calibration, strange, images)
    assert (found.familiar < 0.01).mean() > 0.95
    assert np.isnan(found.probability[found.familiar < 0.01]).all()
    ordinary, _ = judged(calibration, captions, images)
    assert (ordinary.familiar < 0.01).mean() < 0.05


def test_a_missing_match_is_noticed(calibration):
    images, captions, _ = world(600, 4)
    half = 300
    there, _ = judged(calibration, captions[:half], images[:half])
    gone, _ = judged(calibration, captions[half:], images[:half])
    assert np.median(there.absent[::2]) < 0.05  # of the sharp captions
    assert 0.3 < np.median(gone.absent) < 0.7  # a p-value is uniform under its hypothesis


def test_the_guarantee_holds_in_every_tertile(calibration):
    images, captions, _ = world(2000, 5)
    scores = query_scores(similarity("kl"), captions, images, "images")
    needed = torch.from_numpy(calibration.needed_score(similarity("kl"), captions, "images", 0.9))
    held = (scores.diagonal() >= needed).double()
    assert 0.85 < held.mean() < 0.95
    for tertile in captions.uncertainty().argsort().tensor_split(3):
        assert held[tertile].mean() > 0.84


def test_index_misses_make_the_sets_larger_or_are_refused(calibration):
    _, captions, _ = world(50, 6)
    plain = calibration.needed_score(similarity("kl"), captions, "images", 0.9)
    missing = calibration.needed_score(similarity("kl"), captions, "images", 0.9, missed=0.05)
    assert (missing < plain).all()
    with pytest.raises(ValueError, match="cannot be given"):
        calibration.needed_score(similarity("kl"), captions, "images", 0.9, missed=0.1)


def test_a_calibration_is_the_same_after_saving(calibration, tmp_path: Path):
    path = tmp_path / "calibration.json"
    calibration = replace(calibration, gauges={"captions": True})
    calibration.save(path)
    again = Calibration.load(path)
    images, captions, _ = world(100, 7)
    a, b = judged(calibration, captions, images)[0], judged(again, captions, images)[0]
    for name in ("percentile", "familiar", "evidence", "probability", "absent"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-9)
    path.write_text('{"quantiles": {"captions": 3}, "about": {}}')
    with pytest.raises(ValueError, match="not a calibration"):
        Calibration.load(path)


def test_a_calibration_that_does_not_know_the_last_feature_still_judges(
    calibration, tmp_path: Path
):
    """As version 0.2 wrote it first: without the perplexity over the best results."""
    path = tmp_path / "calibration.json"
    calibration.save(path)
    content = json.loads(path.read_text())
    fit = content["ways"]["images"]["probability"]
    assert len(fit["weights"]) == 8
    for name in ("weights", "centre", "scale"):
        fit[name].pop()
    path.write_text(json.dumps(content))
    images, captions, _ = world(100, 7)
    old, new = (
        judged(each, captions, images)[0].probability
        for each in (Calibration.load(path), calibration)
    )
    known = np.isfinite(new)  # the others are unfamiliar
    assert known.mean() > 0.9
    assert np.isfinite(old[known]).all()
    assert not np.allclose(old[known], new[known])


def test_short_queries_join_the_captions_in_their_percentiles():
    images, captions, truth = world(100, 1)
    short = Gaussian(captions.mean, captions.log_var + 9)  # all vaguer than any caption
    seen = {"images": images, "captions": captions}
    alone, both = (
        replace(
            calibrate_gaussians(similarity("kl"), images, captions, truth, seen=s),
            gauges={"captions": True},
        )
        for s in (seen, {**seen, "queries": short})
    )
    vague = captions.uncertainty().double().max(0, keepdim=True).values.numpy()
    assert alone.percentile("captions", vague) == pytest.approx(100)
    assert both.percentile("captions", vague) == pytest.approx(50, abs=1)
    assert alone.quantiles["images"] == both.quantiles["images"]


def test_an_absent_topic_is_easier_to_notice_than_an_absent_match(calibration):
    for gallery in ("images", "captions"):
        about = calibration.about[gallery]
        assert about["absent_topic_auroc"] > about["absent_auroc"] > 0.5


def test_too_few_items_are_refused_and_everything_matching_is_not():
    images, captions, _ = world(10, 7)
    few = Relevance.from_pairs(torch.arange(9), torch.arange(9), queries=9, gallery=9)
    with pytest.raises(ValueError, match="validation has 9 images and 9 captions; a calibration"):
        calibrate_gaussians(similarity("kl"), images[:9], captions[:9], few)
    rows, columns = torch.ones(10, 10).nonzero().unbind(1)
    every = Relevance.from_pairs(rows, columns, queries=10, gallery=10)
    found = calibrate_gaussians(similarity("kl"), images, captions, every)
    assert "absent_auroc" not in found.about["images"]


@pytest.mark.parametrize("gauges", [{"captions": False}, {"images": True}, {}])
def test_a_gauge_that_did_not_pass_shows_no_percentile(gauges):
    c = Calibration({"captions": tuple(np.linspace(0, 10, 1001))}, gauges=gauges)
    assert c.percentile("captions", np.zeros(1)) is None


def test_words_without_a_token_are_unknown_unless_training_held_them(tmp_path: Path):
    Calibration(words=frozenset({"labradoodle"})).save(tmp_path / "c.json")
    c = Calibration.load(tmp_path / "c.json")
    read = Reading("the Labradoodle blorf", None, [], True, ["Labradoodle", "blorf"])
    assert c.unknown_words(read) == ["blorf"]
    assert Calibration().unknown_words(read) == []  # nothing is known of its training
    word_level = Reading("a blorf", None, ["blorf"], True)
    assert c.unknown_words(word_level) == Calibration().unknown_words(word_level) == ["blorf"]


def test_percentiles_are_shares_of_the_reference():
    passed = {"captions": True, "images": True}
    c = Calibration({"captions": tuple(np.linspace(0, 10, 1001))}, gauges=passed)
    share = c.percentile("captions", np.array([-1.0, 0.0, 2.5, 10.0, 11.0]))
    np.testing.assert_allclose(share, [0, 0, 25, 100, 100])
    tied = Calibration({"captions": (0.0,) * 400 + (1.0,) * 301 + (2.0,) * 300}, gauges=passed)
    share = tied.percentile("captions", np.array([0.0, 0.5, 1.0, 2.0, 3.0]))
    np.testing.assert_allclose(share, [0, 40, 40, 70.1, 100], atol=0.1)
    assert c.percentile("images", np.zeros(1)) is None


def test_familiarity_of_a_nearly_collapsed_model_is_finite():
    """Its whitening does not fit into float16."""
    chance = torch.Generator().manual_seed(0)
    same = Gaussian(torch.ones(400, D) + 1e-5 * torch.randn(400, D, generator=chance))
    fitted = Familiarity.fit(same[:300], same[300:])
    again = Familiarity.from_tensors(fitted.tensors())
    for familiarity in (fitted, again):
        distance = familiarity.distance(same[300:])
        assert distance.isfinite().all()
        assert 0.5 < float(distance.mean()) < 2
    torch.testing.assert_close(again.whitening, fitted.whitening)


def test_familiarity_is_about_directions_not_the_distance_from_the_centre():
    chance = torch.Generator().manual_seed(0)
    flat = torch.randn(500, D, generator=chance) * torch.tensor([1.0] * 4 + [0.01] * 4)
    near = Familiarity.fit(Gaussian(flat[:400]), Gaussian(flat[400:]))
    along, across = torch.zeros(2, 1, D)
    along[0, 0], across[0, 7] = 1.0, 1.0
    p = [near.p_value(near.distance(Gaussian(x)))[0] for x in (along, across)]
    assert p[0] > 0.2
    assert p[1] < 0.02


# ---- the mathematics, against slow references ----


def test_conformal_thresholds_cover_what_they_promise():
    chance = torch.Generator().manual_seed(0)
    covered = []
    for _ in range(400):
        values = torch.randn(50, generator=chance)
        covered.append(float(values[-1] >= conformal_threshold(values[:-1], 0.9)))
    assert 0.87 < np.mean(covered) < 0.95


def test_each_tertile_has_its_own_threshold():
    match, unsure = torch.arange(90.0), torch.arange(90.0) // 30
    g = Guarantee.fit(match, unsure, (1.0, 2.0))
    assert g.threshold(np.array([0.0, 1.0, 2.0]), 0.9).tolist() == [2.0, 32.0, 62.0]


def coverage_of(n: int, seed: int, constant: bool = False) -> dict:
    """Of captions whose level differs, so that a bare score is not comparable among them."""
    images, captions, _ = world(n, seed)
    level = 30 * torch.randn(n, 1, generator=torch.Generator().manual_seed(0))

    def scores(items: Gaussian) -> torch.Tensor:
        return query_scores(similarity("kl"), captions, items, "images").double() + level

    own, unsure = scores(images), captions.uncertainty().double()
    reference = scores(world(64, seed + 1)[0])
    return coverage_over_splits(
        lambda start, stop: own[start:stop],
        own.diagonal(),
        reference,
        torch.zeros(n) if constant else unsure,
    )


def test_sets_are_smaller_than_those_of_a_fixed_threshold():
    found = coverage_of(600, 8)
    assert abs(found["coverage"] - 0.9) < 0.02
    assert min(found["coverage_by_tertile"]) > 0.87
    assert found["splits"] == 20
    assert found["size"] < 0.7 * found["fixed_size"]
    sure, _, vague = found["size_by_tertile"]
    assert sure < vague


def test_without_uncertainty_there_is_one_group():
    found = coverage_of(300, 8, constant=True)
    assert abs(found["coverage"] - 0.9) < 0.03
    assert found["size_by_tertile"][1:] == [None, None]


def test_partial_correlation_against_residuals_of_ranks():
    chance = torch.Generator().manual_seed(0)
    z = torch.randn(200, generator=chance)
    x, y = (z + torch.randn(200, generator=chance) for _ in range(2))
    ranks = [v.argsort().argsort().double().numpy() for v in (x, y, z)]
    design = np.stack([ranks[2], np.ones(200)], 1)
    left = [r - design @ np.linalg.lstsq(design, r, rcond=None)[0] for r in ranks[:2]]
    assert partial_spearman(x, y, z) == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-9)
    assert partial_spearman(x, y, torch.ones(200)) == spearman(x, y)
