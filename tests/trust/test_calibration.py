"""What a calibration says is right where the truth is known: synthetic Gaussians."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import (
    QuantileLine,
    Relevance,
    RiskControl,
    calibration_error,
    partial_spearman,
    spearman,
)
from gaussmatch.core.metrics.fitting import TOP, Level, expected_count, falling, sigmoid
from gaussmatch.core.similarities import similarity
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.models.encoders.base import Reading
from gaussmatch.search.trust import Calibration, Familiarity, calibrate_gaussians
from gaussmatch.search.trust import judged as learning
from gaussmatch.search.trust.familiarity import Features, Words

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
    scores = query_scores(similarity("kl"), queries, items, "images").double()
    best = scores.topk(min(TOP, len(items)))
    some = scores.numpy(), len(items)
    found = calibration.judge(queries, "captions", "images", best.values.numpy(), *some)
    return found, best.indices


@pytest.mark.parametrize("size", [150, 600, 2400])
def test_p_fits_is_honest_in_galleries_of_any_size(calibration, size):
    images, captions, _ = world(size, 2)
    found, rows = judged(calibration, captions, images)
    right = (rows == torch.arange(size)[:, None]).double()
    known = torch.from_numpy(found.probability)
    familiar = ~known.isnan().any(1)
    assert familiar.double().mean() > 0.95
    error = calibration_error(known[familiar].flatten(), right[familiar].flatten())
    assert error < 0.02
    assert (known[familiar].diff(dim=1) <= 0).all()  # in the order shown


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
    assert np.nanmedian(there.absent[::2]) < 0.05  # of the sharp captions
    assert 0.3 < np.nanmedian(gone.absent) < 0.7  # a p-value is uniform under its hypothesis


@pytest.mark.parametrize("promise", ["recall", "one"])
def test_both_guarantees_hold_in_every_tertile(calibration, promise):
    images, captions, _ = world(1200, 5)
    found, _ = judged(calibration, captions, images)
    scores = query_scores(similarity("kl"), captions, images, "images").double()
    logits = found.reader.logits(scores.numpy()).diagonal()
    held = torch.from_numpy(logits >= found.reader.needed(promise, 0.9)).double()
    assert 0.86 < held.mean() < 0.95
    for tertile in captions.uncertainty().argsort().tensor_split(3):
        assert held[tertile].mean() > 0.83


@pytest.mark.parametrize("size", [150, 2400])
def test_guarantees_and_intervals_hold_in_galleries_of_any_size(calibration, size):
    """One threshold for all sizes held 0.97 in small galleries and 0.8 in large ones."""
    images, captions, _ = world(size, 8)
    found, _ = judged(calibration, captions, images)
    scores = query_scores(similarity("kl"), captions, images, "images").double()
    logits = found.reader.logits(scores.numpy()).diagonal()
    assert 0.86 < (logits >= found.reader.needed("one", 0.9)).mean() < 0.94
    low, about, high = found.count[~np.isnan(found.count[:, 1])].T
    assert ((low <= 1) & (high >= 1)).mean() > 0.75
    assert (np.rint(found.count) == found.count)[~np.isnan(found.count)].all()
    assert ((low <= about) & (about <= high)).all()


def test_what_is_learned_on_training_photos_is_not_promised_for_others():
    """A model matches the photos it was trained on better: a third of the noise, as wide."""

    def source(n: int, seed: int, seen: bool) -> learning.Judged:
        images, captions, truth = world(n, seed)
        if seen:
            noise = captions.mean - images.mean
            captions = Gaussian(images.mean + noise / 3, captions.log_var)
        name = "seen" if seen else "unseen"
        found = learning.Judged.of_pairs(name, captions, images, truth, truth, "whole")
        keys = [f"{seed} {q}" for q in range(n)]
        return replace(found, seen=seen, keys=keys)

    s, both = similarity("kl"), [source(1600, 1, True), source(400, 2, False)]
    new = source(400, 3, False)
    told = learning.learn_way(s, "images", both)
    untold = learning.learn_way(s, "images", [replace(one, seen=False) for one in both])
    (held, error), (_, untold_error) = (
        np.mean([(row["one"], row["ece"]) for row in learning.measure(way, s, "images", [new])], 0)
        for way in (told, untold)
    )
    assert 0.86 < held < 0.95
    assert error < 0.9 * untold_error


def test_index_misses_make_the_sets_larger_or_are_refused(calibration):
    images, captions, _ = world(60, 6)
    reader = judged(calibration, captions, images)[0].reader
    assert (reader.needed("one", 0.9, missed=0.05) < reader.needed("one", 0.9)).all()
    with pytest.raises(ValueError, match="cannot be given"):
        reader.needed("one", 0.9, missed=0.1)


def test_the_number_that_fits_is_within_its_interval():
    """Ten images for each caption, in galleries that it was not learned on."""
    images, captions, _ = world(60, 1, blur=0.1)
    dice = torch.Generator().manual_seed(3)

    def ten(g: Gaussian) -> Gaussian:
        mean = g.mean.repeat(10, 1)
        noise = 0.1 * torch.randn(mean.shape, generator=dice)
        return Gaussian(mean + noise, g.log_var.repeat(10, 1))

    rows = torch.arange(600) % 60
    truth = Relevance.from_pairs(rows, torch.arange(600), queries=60, gallery=600)
    learned = calibrate_gaussians(similarity("kl"), ten(images), captions, truth)
    others, asked, _ = world(60, 2, blur=0.1)
    low, about, high = judged(learned, asked, ten(others))[0].count[::2].T
    assert 7 < np.median(about) < 14
    assert ((np.floor(low) <= 10) & (np.ceil(high) >= 10)).mean() > 0.7


def test_intervals_hold_in_large_galleries_as_in_small_ones():
    """One width for all held 0.95 of them among 1,000 photos and 0.29 among 33,000."""
    chance = np.random.default_rng(0)
    size = np.repeat([100, 1000, 8000], 400)
    there = np.log(size)[:, None]
    noise = 0.3 * np.log(size / 20) * chance.normal(size=1200)
    true = np.rint(np.exp(there[:, 0] - 3 + noise))
    line = QuantileLine((1.0,), -3.0)
    kind = replace(learning._EMPTY, counts=(line, line, line))
    cells = np.array([("photos", at) for at in there[:, 0]], learning._CELL)
    widened = learning._widened(kind, learning._Half(cells, true, there, there, true, []))
    for one in (100, 1000, 8000):
        low, _, high = widened.count(there[size == one], one).T
        assert 0.72 < ((low <= true[size == one]) & (true[size == one] <= high)).mean() < 0.9


def test_a_large_source_does_not_outvote_a_hard_one():
    """Nine in ten queries are easy; alone they would make the intervals too narrow for the rest."""
    chance = np.random.default_rng(0)
    there = np.full((1000, 1), 4.0)
    hard = np.arange(1000) % 10 == 0
    true = np.rint(np.exp(there[:, 0] + np.where(hard, 1.0, 0.1) * chance.normal(size=1000)))
    line, names = QuantileLine((1.0,), 0.0), np.where(hard, "words", "boxes")
    kind = replace(learning._EMPTY, counts=(line, line, line))
    wider = []
    for name in (names, np.full(1000, "all")):
        cells = np.array([(one, np.log(1000)) for one in name], learning._CELL)
        half = learning._Half(cells, true, there, there, true, [])
        wider.append(learning._widened(kind, half).wider[0][1])
    assert wider[0] > 3 * wider[1]


def test_a_kind_of_query_that_was_not_judged_has_no_probability(calibration):
    images, captions, _ = world(60, 6)
    scores = query_scores(similarity("kl"), captions[:2], images, "images").double()
    best = scores.topk(TOP).values.numpy()
    some = best, scores.numpy(), len(images)
    found = calibration.judge(captions[:2], "captions", "images", *some, ["whole", "1"])
    assert not np.isnan(found.probability[0]).any()
    assert np.isnan(found.probability[1]).all()
    assert np.isnan(found.count[1]).all()
    assert np.isnan(found.reader.needed("one", 0.9)).tolist() == [False, True]


def test_a_calibration_is_the_same_after_saving(calibration, tmp_path: Path):
    path = tmp_path / "calibration.json"
    calibration = replace(calibration, gauges={"captions": True})
    calibration.save(path)
    again = Calibration.load(path)
    images, captions, _ = world(100, 7)
    a, b = judged(calibration, captions, images)[0], judged(again, captions, images)[0]
    for name in ("percentile", "familiar", "probability", "absent", "count"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-9)
    path.write_text('{"quantiles": {"captions": 3}, "about": {}}')
    with pytest.raises(ValueError, match="not a calibration"):
        Calibration.load(path)


def test_too_few_items_are_refused_and_everything_matching_is_not():
    images, captions, _ = world(10, 7)
    few = Relevance.from_pairs(torch.arange(9), torch.arange(9), queries=9, gallery=9)
    with pytest.raises(ValueError, match="validation has 9 images and 9 captions; a calibration"):
        calibrate_gaussians(similarity("kl"), images[:9], captions[:9], few)
    rows, columns = torch.ones(10, 10).nonzero().unbind(1)
    every = Relevance.from_pairs(rows, columns, queries=10, gallery=10)
    found = calibrate_gaussians(similarity("kl"), images, captions, every)
    assert found.ways["images"].kinds["whole"].queries


@pytest.mark.parametrize("gauges", [{"captions": False}, {"images": True}, {}])
def test_a_gauge_that_did_not_pass_shows_no_percentile(gauges):
    c = Calibration({"captions": tuple(np.linspace(0, 10, 1001))}, gauges=gauges)
    assert c.percentile("captions", np.zeros(1)) is None


def test_words_without_a_token_are_unknown_unless_training_held_them(tmp_path: Path):
    Calibration(words=Words({"labradoodle": 3})).save(tmp_path / "c.json")
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


def features(x: torch.Tensor) -> Features:
    return Features(x.numpy(), of_means=False)


def test_familiarity_is_measured_by_features_where_means_are_alike():
    """A head may map an X-ray and a beach to one place; what it is made of knows better."""
    chance = torch.Generator().manual_seed(0)
    kinds = torch.eye(16)[:8].repeat_interleave(60, 0)
    seen = kinds + 0.1 * torch.randn(480, 16, generator=chance)
    near = Familiarity.fit(features(seen[::2]), features(seen[1::2]), 8)
    again = Familiarity.from_arrays(near.arrays())
    strange = torch.eye(16)[8:] + 0.1 * torch.randn(8, 16, generator=chance)
    for known in (near, again):
        assert (known.p_value(features(strange)) < 0.01).all()
        assert (known.p_value(features(5 * seen)) < 0.01).mean() < 0.05  # length says nothing
    assert near.p_value(Features(strange.numpy(), of_means=True)) is None  # of another kind
    assert near.p_value(features(strange[:, :9])) is None


def test_an_odd_word_is_forgiven_and_an_odd_text_of_odd_words_is_not():
    chance = torch.Generator().manual_seed(1)
    seen = torch.randn(600, 12, generator=chance) * torch.tensor([1.0] * 4 + [0.05] * 8)
    usual = torch.rand(300, generator=chance).tolist()
    usual[::20] = [0.0] * 15  # one query in twenty has an odd word
    near = Familiarity.fit(features(seen[:300]), features(seen[300:]), 64, usual)
    far = torch.zeros(1, 12)
    far[0, 11] = 1.0
    plain = seen[:1]
    assert near.p_value(features(plain), [0])[0] > 0.01  # one odd word
    assert near.p_value(features(far), [0])[0] < 0.01
    assert near.p_value(features(far), [1])[0] > near.p_value(features(far), [0])[0]


def test_rare_words_add_up_and_one_among_many_is_forgiven():
    known = ["a man rides a bike on a street"] * 90 + ["a map", "a subway"] * 2
    words = Words.of(known)
    assert words.usual("a map of the subway") < words.usual("a map") < 0.05
    assert words.usual("a man rides a bike on a street with a map") > 2 * words.usual("a map")
    assert words.usual("subway x-ray") == words.usual("subway map")  # as rare as can be known


def test_familiarity_of_a_nearly_collapsed_model_is_finite():
    chance = torch.Generator().manual_seed(0)
    same = Gaussian(torch.ones(400, D) + 1e-5 * torch.randn(400, D, generator=chance))
    seen, held_out = (Features.of_gaussians(g) for g in (same[:300], same[300:]))
    near = Familiarity.fit(seen, held_out, 64)
    assert np.isfinite(near.distance(held_out)).all()
    assert (near.p_value(held_out) < 0.01).mean() < 0.05


# ---- the mathematics, against slow references ----


def test_risk_control_keeps_what_it_promises():
    """Of queries with one to nine items each, in the mean over queries."""
    dice = np.random.default_rng(0)
    held = []
    for _ in range(300):
        each = [dice.normal(dice.normal(), 1, dice.integers(1, 10)) for _ in range(60)]
        held.append(np.mean(each[-1] >= RiskControl.fit(each[:-1]).threshold(0.9)))
    assert 0.88 < np.mean(held) < 0.95


def test_a_sample_stands_for_a_gallery():
    chance = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 6000, generator=chance).double()
    scores[:, :30] += 4
    top = scores.topk(TOP).values.numpy()
    sample = scores[:, torch.randperm(6000, generator=chance)[:2048]].numpy()
    every = scores.numpy()
    exact, near = (Level.of(top, some, 6000, 0.5) for some in (every, sample))
    log_sum = torch.logsumexp(scores / 0.5, 1).numpy()
    np.testing.assert_allclose(exact.log_sum, log_sum, rtol=1e-12)
    np.testing.assert_allclose(near.log_sum, exact.log_sum, rtol=0, atol=0.05)
    np.testing.assert_allclose(near.high, exact.high, rtol=0, atol=0.25)
    p_top, p_sample, p = (sigmoid(3 * (x - 3)) for x in (top, sample, every))
    estimate = expected_count(p_top, p_sample, top, sample, 6000)
    np.testing.assert_allclose(estimate, p.sum(1), rtol=0.1, atol=0)
    assert np.array_equal(expected_count(p_top, p, top, every, 6000), p.sum(1))


def test_values_never_rise_as_scores_fall():
    values, scores = np.array([[1.0, 3.0, 2.0]]), np.array([[5.0, 1.0, 9.0]])
    assert falling(values, scores).tolist() == [[1.0, 1.0, 2.0]]


def test_partial_correlation_against_residuals_of_ranks():
    chance = torch.Generator().manual_seed(0)
    z = torch.randn(200, generator=chance)
    x, y = (z + torch.randn(200, generator=chance) for _ in range(2))
    ranks = [v.argsort().argsort().double().numpy() for v in (x, y, z)]
    design = np.stack([ranks[2], np.ones(200)], 1)
    left = [r - design @ np.linalg.lstsq(design, r, rcond=None)[0] for r in ranks[:2]]
    assert partial_spearman(x, y, z) == pytest.approx(np.corrcoef(*left)[0, 1], abs=1e-9)
    assert partial_spearman(x, y, torch.ones(200)) == spearman(x, y)
