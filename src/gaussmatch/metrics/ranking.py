"""Where the right items end up in a ranking, block by block and with an explicit rule for ties.

The rule: **a tie never counts in the model's favour.** Where a wrong item scores exactly as much
as a right one, the wrong one is taken to stand before it. A model that gives every item the same
score is therefore last, not first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gaussmatch.metrics.relevance import Relevance

ScoreRows = Callable[[int, int], Tensor]
"""``score_rows(start, stop)`` → (stop − start, gallery): the scores of some queries."""

NEVER = torch.iinfo(torch.int64).max
"""The rank of what is not there: outside the first k for every k."""


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
