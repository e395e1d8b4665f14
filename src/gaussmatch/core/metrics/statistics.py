"""Statistics of values query by query: intervals and tests, selective answering, rank correlation,
and choices between two.

``correct`` is 1 for a query whose answer is right (its first item, say) and 0 otherwise;
``uncertainty`` is anything that is higher where the model is less sure.
"""

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
    x, tail = _known(values), (1 - level) / 2
    dice = torch.Generator().manual_seed(seed)
    draws = (
        torch.randint(0, len(x), (size, len(x)), generator=dice) for size in _sizes(samples, len(x))
    )
    means = torch.cat([x[drawn].mean(1) for drawn in draws])
    low, high = means.quantile(torch.tensor([tail, 1 - tail]).double())
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


def _sizes(samples: int, queries: int) -> list[int]:
    step = max(1, BLOCK // max(1, queries))
    return [min(step, samples - start) for start in range(0, samples, step)]


@dataclass(frozen=True)
class RiskCoverage:
    """The curve of selective answering, with its area and what that is to be held against.

    Args:
        coverage: (n), the share of queries answered, 1/n … 1, the surest first.
        risk: (n), the share of wrong answers among them.
        aurc: the area under the curve: mean risk over all coverages, lower is better.
        oracle: the area if the uncertainty put every wrong answer last.
        random: the area if it knew nothing, which is the risk at full coverage.
    """

    coverage: Float[Tensor, "n"]
    risk: Float[Tensor, "n"]
    aurc: float
    oracle: float
    random: float

    @property
    def gain(self) -> float:
        """How much of the way from random to the oracle: 1 is perfect, 0 knows nothing, below 0
        is worse than chance; NaN where all answers are equally good."""
        room = self.random - self.oracle
        return (self.random - self.aurc) / room if room > 0 else float("nan")

    def accuracy_at(self, coverage: float) -> float:
        """Percentage right when only the surest ``coverage`` of queries is answered."""
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage must lie in (0, 1], got {coverage}")
        answered = max(1, round(coverage * len(self.risk)))
        return 100 * (1 - float(self.risk[answered - 1]))


def risk_coverage(correct: Float[Tensor, "n"], uncertainty: Float[Tensor, "n"]) -> RiskCoverage:
    """Answer only the surest queries: how does the share of wrong answers fall?

    Equally sure queries count as answered in random order (the expected curve), so a constant
    uncertainty gives exactly the random area.

    >>> curve = risk_coverage(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.1, 0.2, 0.9]))
    >>> curve.risk, round(curve.gain, 6)
    (tensor([0.0000, 0.0000, 0.3333], dtype=torch.float64), 1.0)
    """
    _check(correct, uncertainty)
    right = correct.double()
    risk = _expected_risk(right, uncertainty)
    return RiskCoverage(
        coverage=torch.arange(1, len(right) + 1).double() / len(right),
        risk=risk,
        aurc=float(risk.mean()),
        oracle=float(_expected_risk(right, -right).mean()),
        random=float(1 - right.mean()),
    )


@dataclass(frozen=True)
class Bin:
    """Some queries of neighboring uncertainty: the mean of it, how many, and percentage right."""

    uncertainty: float
    queries: int
    accuracy: float


def accuracy_by_bin(
    correct: Float[Tensor, "n"], uncertainty: Float[Tensor, "n"], bins: int = 10
) -> list[Bin]:
    """Percentage right in ``bins`` equally filled bins of uncertainty, from sure to unsure.

    Fewer queries than bins give one bin each.

    >>> bins = accuracy_by_bin(torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.arange(4.0), bins=2)
    >>> [b.accuracy for b in bins]
    [100.0, 50.0]
    """
    _check(correct, uncertainty)
    if bins < 1:
        raise ValueError(f"at least one bin is needed, got {bins}")
    order = uncertainty.argsort(stable=True)
    return [
        Bin(
            float(uncertainty[part].double().mean()),
            len(part),
            100 * float(correct[part].double().mean()),
        )
        for part in order.tensor_split(min(bins, len(order)))
    ]


def auroc(positive: Float[Tensor, "n"], negative: Float[Tensor, "m"]) -> float:
    """The probability that a positive value exceeds a negative one; a tie counts one half.

    >>> auroc(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0, 2.0]))
    0.9166666666666666
    """
    if not len(positive) or not len(negative):
        raise ValueError(f"need values of both classes, got {len(positive)} and {len(negative)}")
    ranks = average_ranks(torch.cat([positive.double(), negative.double()]))
    n, m = len(positive), len(negative)
    return float((ranks[:n].sum() - n * (n - 1) / 2) / (n * m))


def spearman(x: Float[Tensor, "n"], y: Float[Tensor, "n"]) -> float:
    """Spearman's ρ: Pearson's correlation of the ranks, ties sharing their mean rank.

    NaN where one side is constant; NaN among the values is refused.

    >>> round(spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 40.0])), 6)
    1.0
    """
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise ValueError(f"need two vectors of one length ≥ 2, got {x.shape} and {y.shape}")
    if x.isnan().any() or y.isnan().any():
        raise ValueError("a NaN has no rank; look at where these values come from")
    a, b = average_ranks(x), average_ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = a.norm() * b.norm()
    return float((a @ b) / scale) if scale > 0 else float("nan")


def partial_spearman(
    x: Float[Tensor, "n"], y: Float[Tensor, "n"], given: Float[Tensor, "n"]
) -> float:
    """Spearman's ρ of x and y with a third variable held fixed.

        ρ_xy|z = (ρ_xy − ρ_xz ρ_yz) / √((1 − ρ_xz²)(1 − ρ_yz²))

    Equals ρ_xy where ``given`` is constant; NaN where it determines x or y completely.

    >>> length = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> x = length + torch.tensor([0.0, 3, 0, 3, 0, 3])
    >>> round(spearman(x, x), 3), round(partial_spearman(x, -length, length), 3)
    (1.0, nan)
    """
    if bool((given == given[:1]).all()):
        return spearman(x, y)
    xy, xz, yz = spearman(x, y), spearman(x, given), spearman(y, given)
    scale = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / scale**0.5 if scale > 1e-12 else float("nan")


def average_ranks(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Ranks from 0, equal values sharing the mean of theirs, in float64."""
    _, group, counts = torch.unique(x, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks: Tensor = (ends - (counts.double() + 1) / 2)[group]
    return ranks


def _expected_risk(right: Tensor, uncertainty: Tensor) -> Tensor:
    """Risk at each coverage, every query of a tie standing for their mean."""
    place = average_ranks(uncertainty)
    _, group = torch.unique(place, return_inverse=True)
    size = torch.bincount(group)
    mean = torch.zeros(len(size)).double().index_add_(0, group, right) / size
    in_order = mean.repeat_interleave(size)
    return 1 - in_order.cumsum(0) / torch.arange(1, len(right) + 1)


def _check(correct: Tensor, uncertainty: Tensor) -> None:
    if correct.shape != uncertainty.shape or correct.ndim != 1:
        raise ValueError(
            f"need two vectors of one length, got {correct.shape}, {uncertainty.shape}"
        )
    if not len(correct):
        raise ValueError("no queries: there is nothing to average over")
    for name, values in (("correctness", correct), ("uncertainty", uncertainty)):
        if values.isnan().any():
            raise ValueError(f"the {name} of query {int(values.isnan().nonzero()[0])} is NaN")


def binary_selection(
    scores: Float[Tensor, "triplets 2 2"],
    caption_queries: Float[Tensor, "triplets 2 2"] | None = None,
) -> dict[str, float]:
    """Percentage of right choices for each query; a tie is a wrong choice.

    Args:
        scores: of crop A and crop C (rows) with caption A and caption C (columns).
        caption_queries: the same scores for caption queries, if they differ.

    Returns:
        ``crop_a`` and ``crop_c``: image-to-text, a crop selects its caption. ``caption_a`` and
        ``caption_c``: text-to-image, a caption selects its crop.

    >>> binary_selection(torch.tensor([[[3.0, 1.0], [2.0, 1.0]]]))
    {'crop_a': 100.0, 'crop_c': 0.0, 'caption_a': 100.0, 'caption_c': 0.0}
    """
    if not len(scores):
        raise ValueError("no triplets: there is nothing to select")
    if scores.isnan().any():
        raise ValueError(f"a score of triplet {int(scores.isnan().nonzero()[0, 0])} is NaN")
    by_caption = (scores if caption_queries is None else caption_queries).transpose(1, 2)
    right = {
        side: table.diagonal(dim1=1, dim2=2) > torch.stack([table[:, 0, 1], table[:, 1, 0]], -1)
        for side, table in (("crop", scores), ("caption", by_caption))
    }
    return {
        f"{side}_{name}": 100 * float(chosen[:, n].double().mean())
        for side, chosen in right.items()
        for n, name in enumerate("ac")
    }
