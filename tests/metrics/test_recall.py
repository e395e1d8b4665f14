from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.core.metrics import median_rank, recall_at, summary

RANKS = st.lists(st.integers(0, 20), min_size=1, max_size=12)


@given(RANKS, st.integers(1, 30))
def test_recall_is_the_share_of_queries_within_k(ranks, k):
    hits = [100.0 if rank + 1 <= k else 0.0 for rank in ranks]
    assert recall_at(torch.tensor(ranks), k) == pytest.approx(sum(hits) / len(hits))


@pytest.mark.parametrize("k", [0, -1])
def test_recall_needs_a_k(k):
    with pytest.raises(ValueError, match=f"k must be at least 1, got {k}"):
        recall_at(torch.tensor([0]), k)


@given(RANKS)
def test_median_rank_counts_from_one_and_takes_the_lower_median(ranks):
    assert median_rank(torch.tensor(ranks)) == sorted(ranks)[(len(ranks) - 1) // 2] + 1


@given(RANKS, RANKS)
def test_summary_is_six_recalls_their_sum_and_two_medians(i2t, t2i):
    got = summary(torch.tensor(i2t), torch.tensor(t2i))
    expected = {}
    for way, ranks in (("i2t", torch.tensor(i2t)), ("t2i", torch.tensor(t2i))):
        expected |= {f"{way}_r{k}": recall_at(ranks, k) for k in (1, 5, 10)}
    assert got.pop("rsum") == pytest.approx(sum(expected.values()))
    expected["i2t_median_rank"] = median_rank(torch.tensor(i2t))
    expected["t2i_median_rank"] = median_rank(torch.tensor(t2i))
    assert got == expected


def test_no_queries_is_an_error_not_a_number():
    with pytest.raises(ValueError, match="no queries"):
        recall_at(torch.tensor([]).long(), 1)
    with pytest.raises(ValueError, match="no queries"):
        median_rank(torch.tensor([]).long())
