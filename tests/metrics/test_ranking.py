from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gaussmatch.core.metrics import Relevance, first_ranks, over_queries, precision_at_r, recall_at
from gaussmatch.core.metrics.ranking import NEVER, check_scores

FEW = [-np.inf, -1.0, 0.0, 1.0, np.inf]


@st.composite
def rankings(draw):
    """Scores from five values only, so ties are everywhere, and any relation."""
    shape = draw(st.tuples(st.integers(1, 5), st.integers(1, 7)))
    scores = draw(hnp.arrays(np.float32, shape, elements=st.sampled_from(FEW)))
    return torch.from_numpy(scores), torch.from_numpy(draw(hnp.arrays(bool, shape)))


def worst_order(scores: torch.Tensor, relevant: torch.Tensor) -> list[bool]:
    """Whether each place of the ranking holds a right item, wrong ones first among equals."""
    pairs = sorted(zip((-scores).tolist(), relevant.tolist(), strict=True))
    return [right for _, right in pairs]


@given(rankings())
def test_first_ranks(case):
    orders = [worst_order(*row) for row in zip(*case, strict=True)]
    expected = [o.index(True) if True in o else NEVER for o in orders]
    assert first_ranks(*case).tolist() == expected


@given(rankings())
def test_precision_at_r(case):
    got = precision_at_r(*case)
    for value, *row in zip(got.tolist(), *case, strict=True):
        order = worst_order(*row)
        r = sum(order)
        assert math.isnan(value) if r == 0 else value == pytest.approx(sum(order[:r]) / r)


@pytest.mark.parametrize("level", FEW)
@given(right=st.lists(st.booleans(), min_size=1, max_size=8))
def test_equal_scores_are_never_in_the_models_favor(level, right):
    relevant = torch.tensor([right])
    scores = torch.full(relevant.shape, level)
    r, wrong = sum(right), len(right) - sum(right)
    if r:
        assert first_ranks(scores, relevant).tolist() == [wrong]
        assert precision_at_r(scores, relevant).item() == pytest.approx(max(0, r - wrong) / r)


def test_only_wrong_items_stand_in_the_way():
    scores = torch.tensor([[5.0, 4.0, 3.0, 3.0]])
    relevant = torch.tensor([[True, True, True, False]])
    assert first_ranks(scores, relevant).tolist() == [0]
    assert precision_at_r(scores, relevant).item() == pytest.approx(2 / 3)


def test_a_query_without_right_items_is_a_miss_even_beyond_the_gallery():
    scores, relevant = torch.zeros(2, 3), torch.tensor([[False] * 3, [True] * 3])
    ranks = first_ranks(scores, relevant)
    assert [recall_at(ranks, k) for k in (1, 3, 4, 1000)] == [50.0] * 4
    assert precision_at_r(scores, relevant).isnan().tolist() == [True, False]


def test_a_transposed_matrix_is_as_good_as_any():
    """Text-to-image scores are the transpose of image-to-text scores."""
    scores, relevant = torch.randn(6, 4), torch.rand(6, 4) > 0.5
    for metric in (first_ranks, precision_at_r):
        expected = metric(scores.T.contiguous(), relevant.T.contiguous())
        torch.testing.assert_close(metric(scores.T, relevant.T), expected, equal_nan=True)


# ---- block by block ----


@pytest.mark.parametrize("metric", [first_ranks, precision_at_r])
@pytest.mark.parametrize("block", [1, 2, 7, 256])
def test_the_block_size_does_not_matter(metric, block):
    scores, mask = torch.randint(0, 4, (7, 9)).float(), torch.rand(7, 9) > 0.6
    relevance = Relevance.from_sets([row.nonzero()[:, 0].tolist() for row in mask], gallery=9)
    requested = []

    def rows(start: int, stop: int) -> torch.Tensor:
        requested.append((start, stop))
        return scores[start:stop]

    got = over_queries(metric, rows, relevance, block=block)
    torch.testing.assert_close(got, metric(scores, mask), equal_nan=True)
    assert all(stop - start <= block for start, stop in requested)
    assert [q for start, stop in requested for q in range(start, stop)] == list(range(7))


@pytest.mark.parametrize("block", [1, 2, 100])
def test_a_nan_is_refused_by_name(block):
    scores = torch.zeros(5, 4)
    scores[3, 2] = torch.nan
    relevance = Relevance.from_pairs([0], [0], queries=5, gallery=4)
    with pytest.raises(ValueError, match="query 3 with gallery item 2 is NaN"):
        over_queries(first_ranks, lambda a, b: scores[a:b], relevance, block=block)


def test_infinities_are_scores():
    check_scores(torch.tensor([[torch.inf, -torch.inf, 0.0]]))
