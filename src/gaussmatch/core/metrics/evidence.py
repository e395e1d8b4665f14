"""How much better than by chance a result fits its query, whatever the gallery.

A score is comparable among the results of one query, not among queries: a vague caption scores
alike with everything. Its evidence compares it with what the same query scores with a fixed
reference of r items:

    e(q, i) = s(q, i) / τ − w · ln (1/r) Σ_j exp(s(q, j) / τ)

with w = 1, or less where the score by itself says something too. At w = 1, e = 0 is an average
item of the reference and e = 3 one that is e³ ≈ 20 times as likely. Evidence does not change when
the gallery grows, and it orders the results of a query as their scores do.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def evidence(
    scores: Float[Tensor, "n k"],
    reference: Float[Tensor, "n r"],
    temperature: float,
    weight: float = 1.0,
) -> Float[Tensor, "n k"]:
    """Evidence of k results of each of n queries, from the scores of the same queries with r
    reference items.

    >>> evidence(torch.tensor([[2.0, 0.0]]), torch.zeros(1, 5), temperature=0.5)
    tensor([[4., 0.]], dtype=torch.float64)
    """
    level = (reference.double() / temperature).logsumexp(1) - math.log(reference.shape[1])
    return scores.double() / temperature - weight * level[:, None]


def log_perplexity(scores: Float[Tensor, "n r"], temperature: float) -> Float[Tensor, "n"]:
    """Entropy of the posterior of each query over r items, softmax(s/τ): ln of how many of them
    remain possible, from 0 (one) to ln r (all alike).

    >>> log_perplexity(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), 0.1).exp().round()
    tensor([2., 1.], dtype=torch.float64)
    """
    log_p = (scores.double() / temperature).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def fit_temperature(match: Float[Tensor, "n"], reference: Float[Tensor, "n r"]) -> float:
    """τ of highest likelihood that each match is chosen among itself and the reference items,
    p = exp(s/τ) / (exp(s/τ) + Σ_j exp(s_j/τ)), searched over five orders of magnitude.

    >>> reference = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(8, 1)
    >>> sure, unsure = torch.full((8,), 9.0), torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7])
    >>> fit_temperature(sure, reference) < fit_temperature(unsure, reference)
    True
    """
    if not len(match):
        raise ValueError("no matches to fit a temperature to")
    spread = float(reference.double().std(1, unbiased=False).mean()) or 1.0
    joined = torch.cat([match[:, None], reference], 1).double() / spread
    joined = joined - joined.amax(1, keepdim=True)

    def loss(log_t: float) -> float:
        scaled = joined / math.exp(log_t)
        return float((scaled.logsumexp(1) - scaled[:, 0]).mean())

    low, high = math.log(1e-3), math.log(1e2)
    for _ in range(4):
        grid = torch.linspace(low, high, 12).tolist()
        best = min(range(len(grid)), key=lambda at: loss(grid[at]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return spread * math.exp((low + high) / 2)
