"""Does a result fit its query? Features of a result among all scores of its query in the gallery,
and its probability from them.

A score is comparable among the results of one query, not among queries: a vague one scores alike
with everything. So a score is read beside the others of its query: the mean and the deviation over
the gallery, the best, the one that a hundredth exceeds, and the softmax. A gallery of thousands is
stood for by a random sample of it and by the best results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from gaussmatch.lazy import torch

TOP = 50
"""Results of a query that are judged exactly, whatever its gallery."""
SAMPLE = 2048
"""Items that stand for the others; a gallery of no more is judged exactly."""
HIGH = 0.99
LOWEST = -1e6
Array = np.ndarray


def log_sigmoid(x: Array) -> Array:
    """ln of the probability whose log-odds are x.

    >>> np.exp(log_sigmoid(np.array([0.0, -1000.0]))).tolist()
    [0.5, 0.0]
    """
    return np.asarray(-np.logaddexp(0.0, -x))


def sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(log_sigmoid(x)))


@dataclass(frozen=True, eq=False)
class Level:
    """What n queries score in a gallery as a whole.

    Args:
        size: items in the gallery.
        mean, deviation: (n), over the gallery.
        best, high: (n), the best score, and the one that one item in a hundred exceeds.
        log_sum: (n), ln Σ_j exp(s_j / τ).
    """

    size: int
    mean: Array
    deviation: Array
    best: Array
    high: Array
    log_sum: Array

    @staticmethod
    def of(
        top: Float[Array, "n k"], sample: Float[Array, "n r"], size: int, temperature: float
    ) -> Level:
        """From the best scores, descending, and those of a random sample of the gallery."""
        top, sample = _wide(top), _wide(sample)
        scaled = sample / temperature
        if sample.shape[1] < size:
            below = sample < top[:, -1:]
            count = np.maximum(below.sum(1), 1)
            rest = _log_sum(np.where(below, scaled, -np.inf))
            rest += np.log(max(size - top.shape[1], 1) / count)
            log_sum = np.logaddexp(_log_sum(top / temperature), rest)
        else:
            log_sum = _log_sum(scaled)
        deviation = sample.std(1)
        return Level(
            size,
            sample.mean(1),
            np.where(deviation > 0, deviation, 1.0),
            top[:, 0],
            np.quantile(sample, HIGH, 1),
            log_sum,
        )

    def standard(self, scores: Array) -> Array:
        """Scores (n, …) by their distance from the mean, in deviations."""
        shape = (-1, *[1] * (scores.ndim - 1))
        return np.asarray((scores - self.mean.reshape(shape)) / self.deviation.reshape(shape))


def _wide(scores: Array) -> Array:
    """In float64, none without an end."""
    return np.asarray(np.maximum(scores, LOWEST, dtype=np.float64))


def _log_sum(a: Float[Array, "n k"]) -> Float[Array, "n"]:
    """ln Σ exp."""
    return np.asarray(np.logaddexp.reduce(a, 1))


def base_features(
    scores: Float[Array, "n k"], level: Level, unsure: Float[Array, "n"], temperature: float
) -> Float[Array, "n k 8"]:
    """The score, standardized, its log-softmax; the query's uncertainty; ln of the size of the
    gallery; the deviation of the query's scores; its best and high score, standardized."""
    scores = _wide(scores)
    of_query = (
        unsure,
        np.full_like(level.mean, math.log(level.size)),
        np.log(level.deviation),
        level.standard(level.best),
        level.standard(level.high),
    )
    columns = [scores, level.standard(scores), scores / temperature - level.log_sum[:, None]]
    columns += [np.broadcast_to(each[:, None], scores.shape) for each in of_query]
    return np.stack(columns, -1)


_PRODUCTS = ((1, 3), (0, 1), (1, 6), (1, 4), (2, 4), (4, 6), (4, 7), (3, 4), (3, 5))
_SQUARES = [0, 1, 2, 3, 5, 6, 7]
"""Products and squares of base features; none that would bend a line through a few sizes."""
_BENDS = ((1, 0.0), (1, 1.0), (1, 2.0), (2, 0.0), (2, 1.0))
"""Base features, and where the line through them may bend."""
FARTHEST = 4.0
"""Standardized base features end here, so that no square runs away."""


def expanded(base: Float[Array, "n f"]) -> Float[Array, "n g"]:
    """Standardized base features, squares and some products of them, and what exceeds a bend."""
    base = base.clip(-FARTHEST, FARTHEST)
    products = [base[..., a] * base[..., b] for a, b in _PRODUCTS]
    products += [np.maximum(base[..., a] - at, 0) for a, at in _BENDS]
    return np.concatenate([base, base[..., _SQUARES] ** 2, np.stack(products, -1)], -1)


def falling(values: Float[Array, "n k"], scores: Float[Array, "n k"]) -> Float[Array, "n k"]:
    """Values, none of which exceeds that of a better score; in the order given."""
    order, found = np.argsort(-scores, 1), np.empty_like(values)
    least = np.minimum.accumulate(np.take_along_axis(values, order, 1), 1)
    np.put_along_axis(found, order, least, 1)
    return found


def expected_count(
    p_top: Float[Array, "n k"],
    p_sample: Float[Array, "n r"],
    top: Float[Array, "n k"],
    sample: Float[Array, "n r"],
    size: int,
) -> Float[Array, "n"]:
    """Σ p over a gallery: of all where the sample is all; else of the best, and of the others by
    the mean of those in the sample."""
    if sample.shape[1] >= size:
        return np.asarray(p_sample.sum(1))
    rest = sample < top[:, -1:]
    mean = (p_sample * rest).sum(1) / np.maximum(rest.sum(1), 1)
    return np.asarray(p_top.sum(1) + (size - top.shape[1]) * mean)


def log_perplexity(
    scores: Float[torch.Tensor, "n r"], temperature: float
) -> Float[torch.Tensor, "n"]:
    """Entropy of the posterior of each query over r items, softmax(s/τ): ln of how many of them
    remain possible, from 0 (one) to ln r (all alike).

    >>> log_perplexity(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), 0.1).exp().round()
    tensor([2., 1.], dtype=torch.float64)
    """
    log_p = (scores.double() / temperature).log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def fit_temperature(match: Float[torch.Tensor, "n"], others: Float[torch.Tensor, "n r"]) -> float:
    """τ of highest likelihood that each match is chosen among itself and other items,
    p = exp(s/τ) / (exp(s/τ) + Σ_j exp(s_j/τ)), searched over five orders of magnitude.

    >>> others = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(8, 1)
    >>> sure, unsure = torch.full((8,), 9.0), torch.tensor([0.0, 1, 2, 3, 4, 5, 6, 7])
    >>> fit_temperature(sure, others) < fit_temperature(unsure, others)
    True
    """
    if not len(match):
        raise ValueError("no matches to fit a temperature to")
    spread = float(others.double().std(1, unbiased=False).mean()) or 1.0
    joined = torch.cat([match[:, None], others], 1).double() / spread
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


@dataclass(frozen=True)
class ResultProbability:
    """p(match) of one *result* from several features of it, such as its score, the uncertainty
    of the query and its own: 1 / (1 + exp(−(Σ_f weight_f (x_f − center_f) / scale_f + bias))).

    The score alone is not enough: a vague query scores low with everything and is right with much
    of it. Fitted on (query, result) pairs of validation, targets drawn in from 0 and 1 as Platt
    does, so that separable ones have finite weights.

    >>> score, vague = torch.tensor([1.0, 2, 3, 4] * 20), torch.tensor([0.0, 0, 5, 5] * 20)
    >>> p = ResultProbability.fit(torch.stack([score, vague], -1), (vague > 0).float())
    >>> [round(v, 1) for v in p(np.array([[2.5, 0.0], [2.5, 5.0]])).tolist()]
    [0.0, 1.0]
    """

    weights: tuple[float, ...]
    bias: float
    center: tuple[float, ...]
    scale: tuple[float, ...]

    @staticmethod
    def fit(
        features: Float[torch.Tensor, "n f"],
        right: Float[torch.Tensor, "n"],
        weight: Float[torch.Tensor, "n"] | None = None,
        ridge: float = 1e-6,
    ) -> ResultProbability:
        """
        Args:
            weight: how often each pair counts; once if not given.
            ridge: the weight of Σ weight_f², against the likelihood of the mean pair times their
                number.
        """
        if not len(features) or not features.isfinite().all():
            raise ValueError("need features of at least one result, all of them finite")
        x = features.double()
        counted = torch.ones(len(x)).double() if weight is None else weight.double()
        counted = counted * (len(x) / counted.sum())
        center, scale = x.mean(0), x.std(0, unbiased=False)
        scale = torch.where(scale > 0, scale, 1.0)
        *weights, bias = _logistic((x - center) / scale, right.double(), counted, ridge).tolist()
        return ResultProbability(
            tuple(weights), bias, tuple(center.tolist()), tuple(scale.tolist())
        )

    def __call__(self, features: Float[Array, "n f"]) -> Float[Array, "n"]:
        return sigmoid(self.logit(features))

    def logit(self, features: Float[Array, "n f"]) -> Float[Array, "n"]:
        weights, center, scale = self._arrays
        return np.asarray((features - center) / scale @ weights + self.bias)

    def at(self, values: Sequence[float]) -> ResultProbability:
        """The same if the last features have these values and are no longer given.

        >>> ResultProbability((1.0, 2.0), 0.5, (0.0, 1.0), (1.0, 4.0)).at([3.0])
        ResultProbability(weights=(1.0,), bias=1.5, center=(0.0,), scale=(1.0,))
        """
        n = len(self.weights) - len(values)
        last = zip(self.weights[n:], self.center[n:], self.scale[n:], values, strict=True)
        bias = self.bias + sum(weight * (x - center) / scale for weight, center, scale, x in last)
        return ResultProbability(self.weights[:n], bias, self.center[:n], self.scale[:n])

    @cached_property
    def _arrays(self) -> list[Array]:
        return [np.array(part) for part in (self.weights, self.center, self.scale)]


def brier(probability: Float[torch.Tensor, "n"], right: Float[torch.Tensor, "n"]) -> float:
    """Mean squared difference of probability and outcome; lower is better.

    >>> brier(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
    0.125
    """
    return float((probability.double() - right.double()).square().mean())


def calibration_error(
    probability: Float[torch.Tensor, "n"], right: Float[torch.Tensor, "n"], bins: int = 15
) -> float:
    """ECE: Σ_b n_b/n · |mean probability − share right| over equally wide bins, in [0, 1].

    >>> calibration_error(torch.tensor([0.75, 0.75, 0.25]), torch.tensor([1.0, 1.0, 0.25]))
    0.16666666666666666
    """
    if probability.shape != right.shape or probability.ndim != 1 or not len(right):
        raise ValueError(f"need two vectors of one length, got {probability.shape}, {right.shape}")
    if not ((probability >= 0) & (probability <= 1)).all():
        raise ValueError("probabilities must lie in [0, 1]")
    bin_of = (probability.double() * bins).long().clamp_max(bins - 1)
    gap = torch.zeros(bins).double().index_add_(0, bin_of, probability.double() - right.double())
    return float(gap.abs().sum() / len(right))


def _logistic(
    x: torch.Tensor, right: torch.Tensor, weight: torch.Tensor, ridge: float, steps: int = 100
) -> torch.Tensor:
    """Weights of the features and, last, the bias: logistic regression by Newton's method."""
    ones, all_ = (weight * right).sum(), weight.sum()
    target = torch.where(right > 0, (ones + 1) / (ones + 2), 1 / (all_ - ones + 2))
    design = torch.cat([x, torch.ones_like(x[:, :1])], -1)
    weights = x.new_zeros(design.shape[1])
    penalty = ridge * torch.eye(len(weights), dtype=x.dtype)
    for _ in range(steps):
        p = torch.sigmoid(design @ weights)
        curvature = (design * (weight * p * (1 - p))[:, None]).T @ design + penalty
        pull = design.T @ (weight * (target - p)) - penalty @ weights
        step = torch.linalg.solve(curvature + 1e-9 * torch.eye(len(weights)), pull)
        longest = float(step.abs().max())
        weights = weights + step * min(1.0, 5 / max(longest, 1e-12))
        if longest < 1e-8:
            break
    return weights
