"""How far a figure would move with other queries, and whether two models really differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 2**22  # numbers drawn at a time


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """b − a over the same queries, with the probability ``p`` of one as large by chance alone."""

    p: float


def bootstrap(
    values: Float[Tensor, "queries"], samples: int = 2000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Percentile bootstrap of the mean over queries; the same seed gives the same interval.

    >>> interval = bootstrap(torch.tensor([0.0, 1.0] * 200))
    >>> interval.mean, 0.44 < interval.low < 0.46, 0.54 < interval.high < 0.56
    (0.5, True, True)
    """
    x = _known(values)
    tail = (1 - level) / 2
    low, high = _resampled_means(x, samples, seed).quantile(torch.tensor([tail, 1 - tail]).double())
    return Interval(float(x.mean()), float(low), float(high))


def paired_test(
    a: Float[Tensor, "queries"],
    b: Float[Tensor, "same_queries"],
    samples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Is b better than a on the *same* queries? Mean of b − a with its bootstrap interval, and a
    two-sided p-value: how often swapping the two models at random, query by query, gives a
    difference at least as large.

    >>> paired_test(torch.zeros(50), torch.ones(50)).p < 0.001
    True
    >>> paired_test(torch.ones(50), torch.ones(50)).p
    1.0
    """
    if a.shape != b.shape:
        raise ValueError(f"not the same queries: {len(a)} and {len(b)}")
    apart = _known(b.double() - a.double())
    dice = torch.Generator().manual_seed(seed)
    moved = apart[apart != 0]
    found = abs(float(moved.sum()))
    beyond = 0
    for size in _sizes(samples, len(moved)):
        signs = torch.randint(0, 2, (size, len(moved)), generator=dice).double() * 2 - 1
        beyond += int(((signs @ moved).abs() >= found * (1 - 1e-12)).sum())
    interval = bootstrap(apart, samples, level, seed)
    return Difference(interval.mean, interval.low, interval.high, (beyond + 1) / (samples + 1))


def _known(values: Tensor) -> Tensor:
    """Queries for which the measure is defined (NaN: no right item to be found)."""
    x = values.double()
    x = x[~x.isnan()]
    if not len(x):
        raise ValueError("no queries: there is nothing to average over")
    return x


def _resampled_means(x: Tensor, samples: int, seed: int) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.cat(
        [
            x[torch.randint(0, len(x), (size, len(x)), generator=dice)].mean(1)
            for size in _sizes(samples, len(x))
        ]
    )


def _sizes(samples: int, queries: int) -> list[int]:
    step = max(1, BLOCK // max(1, queries))
    return [min(step, samples - start) for start in range(0, samples, step)]
