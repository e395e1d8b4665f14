"""Recall@K, their sum, and the median rank, from ranks."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

KS = (1, 5, 10)


def recall_at(ranks: Int[Tensor, "queries"], k: int) -> float:
    """Percentage of queries whose best right item is among the first ``k`` (ranks from 0).

    >>> import torch
    >>> recall_at(torch.tensor([0, 4, 5]), 5)
    66.66666666666667
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not len(ranks):
        raise ValueError("no queries: there is nothing to average over")
    return 100 * int((ranks < k).sum()) / len(ranks)


def median_rank(ranks: Int[Tensor, "queries"]) -> float:
    """Median rank, counted from 1; of an even number of queries, the lower median."""
    if not len(ranks):
        raise ValueError("no queries: there is no median rank")
    return float(ranks.median()) + 1


def summary(i2t: Int[Tensor, "images"], t2i: Int[Tensor, "captions"]) -> dict[str, float]:
    """R@1/5/10 and the median rank both ways, and rsum, the sum of the six recalls.

    >>> import torch
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
