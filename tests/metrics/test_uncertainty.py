"""Selective retrieval, calibration, intervals and tests against slow references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.core.metrics import (
    ResultProbability,
    accuracy_by_bin,
    binary_selection,
    bootstrap,
    calibration_error,
    paired_test,
    risk_coverage,
)

QUERIES = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=6)


def split(queries):
    right = torch.tensor([float(r) for r, _ in queries])
    return right, torch.tensor([float(u) for _, u in queries])


@given(QUERIES)
def test_risk_is_the_mean_over_all_orders_of_ties(queries):
    right, uncertainty = split(queries)
    orders = [
        o
        for o in itertools.permutations(range(len(queries)))
        if all(uncertainty[a] <= uncertainty[b] for a, b in itertools.pairwise(o))
    ]
    curves = [1 - np.cumsum(right.numpy()[list(o)]) / np.arange(1, len(o) + 1) for o in orders]
    curve = risk_coverage(right, uncertainty)
    np.testing.assert_allclose(curve.risk, np.mean(curves, 0), atol=1e-12)
    assert curve.aurc == pytest.approx(np.mean(curves))
    assert curve.oracle <= curve.aurc + 1e-12
    assert curve.random == pytest.approx(1 - float(right.mean()))


def test_the_ends_of_the_scale():
    right = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert risk_coverage(right, 1 - right).gain == pytest.approx(1)
    assert risk_coverage(right, torch.zeros(4)).gain == pytest.approx(0)
    assert risk_coverage(right, right).gain < 0
    assert np.isnan(risk_coverage(torch.ones(3), torch.rand(3)).gain)
    curve = risk_coverage(right, 1 - right)
    assert [curve.accuracy_at(c) for c in (0.01, 0.5, 1.0)] == [100.0, 100.0, 50.0]
    with pytest.raises(ValueError, match="coverage"):
        curve.accuracy_at(0.0)


@given(QUERIES, st.integers(1, 8))
def test_bins_hold_every_query_once(queries, bins):
    right, uncertainty = split(queries)
    got = accuracy_by_bin(right, uncertainty, bins)
    assert sum(b.queries for b in got) == len(queries)
    assert max(b.queries for b in got) - min(b.queries for b in got) <= 1
    assert sum(b.queries * b.accuracy for b in got) == pytest.approx(100 * float(right.sum()))
    assert all(a.uncertainty <= b.uncertainty for a, b in itertools.pairwise(got))


@pytest.mark.parametrize("measure", [risk_coverage, accuracy_by_bin])
def test_degenerate_queries(measure):
    with pytest.raises(ValueError, match="no queries"):
        measure(torch.zeros(0), torch.zeros(0))
    with pytest.raises(ValueError, match="uncertainty of query 1 is NaN"):
        measure(torch.zeros(2), torch.tensor([0.0, torch.nan]))
    with pytest.raises(ValueError, match="no queries"):
        bootstrap(torch.zeros(0))


def slow_ece(p, right, bins):
    total = 0.0
    for b in range(bins):
        inside = [
            i
            for i, v in enumerate(p)
            if b / bins <= v < (b + 1) / bins or (v == 1 == (b + 1) / bins)
        ]
        if inside:
            gap = np.mean([p[i] for i in inside]) - np.mean([right[i] for i in inside])
            total += len(inside) / len(p) * abs(gap)
    return total


@given(st.lists(st.tuples(st.integers(0, 64), st.booleans()), min_size=1, max_size=12))
def test_calibration_error_against_a_slow_one(pairs):
    p, right = [n / 64 for n, _ in pairs], [float(r) for _, r in pairs]
    got = calibration_error(torch.tensor(p), torch.tensor(right), bins=8)
    assert got == pytest.approx(slow_ece(p, right, 8), abs=1e-9)


def test_a_fitted_probability_is_calibrated_where_the_model_is_right():
    score = 400 + 30 * torch.randn(20000)
    right = (torch.rand(20000) < torch.sigmoid((score - 400) / 10 - 1)).float()
    p = ResultProbability.fit(score[:10000, None], right[:10000])
    assert p.weights[0] / p.scale[0] == pytest.approx(0.1, rel=0.1)
    judged = torch.from_numpy(p(score[10000:, None].numpy()))
    assert calibration_error(judged, right[10000:]) < 0.02
    twice = torch.cat([score[:500], score[:500]])[:, None], right[:500].repeat(2)
    weighted = ResultProbability.fit(score[:500, None], right[:500], torch.full((500,), 2.0))
    assert weighted.weights == pytest.approx(ResultProbability.fit(*twice).weights, rel=0.02)


@pytest.mark.parametrize("right", [torch.zeros(5), torch.ones(5)])
def test_probability_of_one_kind_only(right):
    score = torch.arange(5.0)[:, None]
    p = ResultProbability.fit(score, right)
    found = p(score.numpy())
    assert np.isfinite(found).all()
    assert np.abs(found - right.numpy()).max() < 0.35
    assert np.isfinite(ResultProbability.fit(torch.ones(5, 1), right)(np.ones((1, 1)))).all()


def test_bad_scores_and_probabilities():
    with pytest.raises(ValueError, match="all of them finite"):
        ResultProbability.fit(torch.tensor([[0.0], [torch.nan]]), torch.ones(2))
    with pytest.raises(ValueError, match="must lie in"):
        calibration_error(torch.tensor([1.5]), torch.ones(1))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    inside = 0
    for seed in range(100):
        x = torch.rand(80, generator=torch.Generator().manual_seed(seed))
        interval = bootstrap(x, samples=300, level=0.9, seed=seed)
        inside += interval.low <= 0.5 <= interval.high
    assert 80 <= inside <= 98


def test_bootstrap_leaves_out_queries_without_a_value():
    assert bootstrap(torch.tensor([1.0, torch.nan, 1.0])).mean == 1.0


def test_paired_test_against_all_sign_flips():
    a, b = torch.rand(10), torch.rand(10) + 0.2
    apart = (b - a).double()
    sums = [
        abs(sum(s * float(v) for s, v in zip(signs, apart, strict=True)))
        for signs in itertools.product((-1, 1), repeat=10)
    ]
    exact = np.mean([s >= abs(float(apart.sum())) - 1e-9 for s in sums])
    assert paired_test(a, b, samples=20000).p == pytest.approx(exact, abs=0.01)
    assert paired_test(a, b).mean == pytest.approx(float(apart.mean()))


def test_chance_alone_is_rarely_significant():
    low = sum(paired_test(torch.rand(30), torch.rand(30), 200, seed=n).p < 0.1 for n in range(100))
    assert low <= 20


def test_paired_test_needs_the_same_queries():
    with pytest.raises(ValueError, match="not the same queries"):
        paired_test(torch.zeros(2), torch.zeros(3))


def test_selection_counts_ties_as_wrong_and_refuses_nan():
    assert set(binary_selection(torch.zeros(3, 2, 2)).values()) == {0.0}
    assert set(binary_selection(torch.eye(2).repeat(3, 1, 1)).values()) == {100.0}
    with pytest.raises(ValueError, match="no triplets"):
        binary_selection(torch.zeros(0, 2, 2))
    scores = torch.zeros(3, 2, 2)
    scores[1, 0, 1] = torch.nan
    with pytest.raises(ValueError, match="triplet 1 is NaN"):
        binary_selection(scores)
