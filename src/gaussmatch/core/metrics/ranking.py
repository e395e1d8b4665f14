"""Where the right items end up in a ranking, block by block and with an explicit rule for ties.

The rule: **a tie never counts in the model's favour.** Where a wrong item scores exactly as much
as a right one, the wrong one is taken to stand before it. A model that gives every item the same
score is therefore last, not first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gaussmatch.core.metrics.relevance import Relevance

ScoreRows = Callable[[int, int], Tensor]
"""``score_rows(start, stop)`` → (stop − start, gallery): the scores of some queries."""

NEVER = torch.iinfo(torch.int64).max
"""The rank of what is not there: outside the first k for every k."""
KS = (1, 5, 10)


def first_ranks(
    scores: Float[Tensor, "queries gallery"], relevant: Bool[Tensor, "queries gallery"]
) -> Int[Tensor, "queries"]:
    """Rank (0 = first) of the best right item of each query: the wrong items that score as much
    or more. A query without a right item gets ``NEVER``, so it is a miss at every k.

    >>> first_ranks(torch.tensor([[0.9, 0.5, 0.9]]), torch.tensor([[False, False, True]]))
    tensor([1])
    """
    best = scores.masked_fill(~relevant, -torch.inf).amax(-1, keepdim=True)
    ranks = ((scores >= best) & ~relevant).sum(-1)
    return torch.where(relevant.any(-1), ranks, NEVER)


def precision_at_r(
    scores: Float[Tensor, "queries gallery"], relevant: Bool[Tensor, "queries gallery"]
) -> Float[Tensor, "queries"]:
    """R-Precision of each query: the share of right items among its first r, where r is the number
    of its right items. NaN for a query without any.

    >>> precision_at_r(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[True, False, True]]))
    tensor([0.5000])
    """
    r = relevant.sum(-1, keepdim=True)
    if scores.shape[-1] == 0 or int(r.max() if len(r) else 0) == 0:
        return torch.full_like(r[:, 0], torch.nan, dtype=scores.dtype)
    last = scores.topk(int(r.max())).values.gather(-1, (r - 1).clamp_min(0))  # the r-th best
    above, level = scores > last, scores == last
    # Places left at the level of the r-th best go to the wrong ones first.
    left = r - above.sum(-1, keepdim=True) - (level & ~relevant).sum(-1, keepdim=True)
    found = (above & relevant).sum(-1, keepdim=True) + left.clamp_min(0)
    return torch.where(r > 0, found / r, torch.nan).to(scores.dtype)[:, 0]


def over_queries(
    per_query: Callable[[Tensor, Tensor], Tensor],
    score_rows: ScoreRows,
    relevance: Relevance,
    block: int = 256,
) -> Tensor:
    """Apply ``first_ranks`` or ``precision_at_r`` to all queries, ``block`` rows at a time.

    Memory: a few block × gallery matrices, whatever the number of queries.
    """
    parts = []
    for start in range(0, relevance.queries, block):
        stop = min(start + block, relevance.queries)
        scores = score_rows(start, stop)
        check_scores(scores, start)
        relevant = relevance.dense(start, stop).to(scores.device)
        parts.append(per_query(scores, relevant).cpu())
    return torch.cat(parts) if parts else torch.zeros(0)


def check_scores(scores: Tensor, first_query: int = 0) -> None:
    """NaN compares false with everything and would pass for a good rank: refuse it."""
    bad = scores.isnan()
    if bad.any():
        query, item = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the score of query {first_query + query} with gallery item {item} is NaN; "
            "look at the embeddings of these two"
        )


def recall_at(ranks: Int[Tensor, "queries"], k: int) -> float:
    """Percentage of queries whose best right item is among the first ``k`` (ranks from 0).

    >>> recall_at(torch.tensor([0, 4, 5]), 5)
    66.66666666666667
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not len(ranks):
        raise ValueError("no queries: there is nothing to average over")
    return 100 * int((ranks < k).sum()) / len(ranks)


def median_rank(ranks: Int[Tensor, "queries"]) -> float:
    """Median rank of the queries that have a right item, counted from 1; of an even number of
    queries, the lower median.

    >>> median_rank(torch.tensor([0, 2, NEVER, NEVER]))
    1.0
    """
    if not len(ranks):
        raise ValueError("no queries: there is no median rank")
    found = ranks[ranks != NEVER]
    return float(found.median()) + 1 if len(found) else math.inf


def summary(i2t: Int[Tensor, "images"], t2i: Int[Tensor, "captions"]) -> dict[str, float]:
    """R@1/5/10 and the median rank both ways, and rsum, the sum of the six recalls.

    >>> summary(torch.tensor([0, 1]), torch.tensor([0, 0]))["rsum"]
    550.0
    """
    recalls = {
        f"{way}_r{k}": recall_at(ranks, k)
        for way, ranks in (("i2t", i2t), ("t2i", t2i))
        for k in KS
    }
    return {
        **recalls,
        "i2t_median_rank": median_rank(i2t),
        "t2i_median_rank": median_rank(t2i),
        "rsum": sum(recalls.values()),
    }
