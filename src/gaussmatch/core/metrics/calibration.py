"""From a score to the probability of being right, and whether that probability is honest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class MatchProbability:
    """p(right | score) = 1 / (1 + exp(−(slope · (score − centre) / scale + bias))).

    Fitted on one split (validation), to be judged on another.

    >>> score = torch.linspace(-3, 3, 200)
    >>> p = MatchProbability.fit(score, (score > 0).float())
    >>> [round(v, 2) for v in p(torch.tensor([-3.0, 0.0, 3.0])).tolist()]
    [0.0, 0.5, 1.0]
    """

    slope: float
    bias: float
    centre: float
    scale: float

    @staticmethod
    def fit(
        score: Float[Tensor, "n"], right: Float[Tensor, "n"], steps: int = 100
    ) -> MatchProbability:
        """Platt scaling by Newton's method, targets drawn in from 0 and 1 as Platt does, so that
        separable scores have a finite slope."""
        if score.shape != right.shape or score.ndim != 1 or not len(score):
            raise ValueError(f"need two vectors of one length, got {score.shape}, {right.shape}")
        if not score.isfinite().all():
            at = int((~score.isfinite()).nonzero()[0])
            raise ValueError(f"the score of query {at} is not finite")
        x = score.double()
        centre, scale = float(x.mean()), float(x.std(unbiased=False)) or 1.0
        weights = _logistic(((x - centre) / scale)[:, None], right.double(), steps)
        return MatchProbability(float(weights[0]), float(weights[1]), centre, scale)

    def __call__(self, score: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        x = (score.double() - self.centre) / self.scale
        return torch.sigmoid(self.slope * x + self.bias)


@dataclass(frozen=True)
class ResultProbability:
    """p(match) of one *result* from several features of it, such as its score, the uncertainty
    of the query and its own: 1 / (1 + exp(−(Σ_f weight_f (x_f − centre_f) / scale_f + bias))).

    The score alone is not enough: a vague query scores low with everything and is right with much
    of it. Fitted as ``MatchProbability`` on (query, result) pairs of validation.

    >>> score, vague = torch.tensor([1.0, 2, 3, 4] * 20), torch.tensor([0.0, 0, 5, 5] * 20)
    >>> p = ResultProbability.fit(torch.stack([score, vague], -1), (vague > 0).float())
    >>> [round(v, 1) for v in p(torch.tensor([[2.5, 0.0], [2.5, 5.0]])).tolist()]
    [0.0, 1.0]
    """

    weights: tuple[float, ...]
    bias: float
    centre: tuple[float, ...]
    scale: tuple[float, ...]

    @staticmethod
    def fit(
        features: Float[Tensor, "n f"], right: Float[Tensor, "n"], steps: int = 100
    ) -> ResultProbability:
        if not len(features) or not features.isfinite().all():
            raise ValueError("need features of at least one result, all of them finite")
        x = features.double()
        centre, scale = x.mean(0), x.std(0, unbiased=False)
        scale = torch.where(scale > 0, scale, 1.0)
        *weights, bias = _logistic((x - centre) / scale, right.double(), steps).tolist()
        return ResultProbability(
            tuple(weights), bias, tuple(centre.tolist()), tuple(scale.tolist())
        )

    def __call__(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n"]:
        weights, centre, scale = self._tensors
        return torch.sigmoid((features.double() - centre) / scale @ weights + self.bias)

    @cached_property
    def _tensors(self) -> list[Tensor]:
        parts = (self.weights, self.centre, self.scale)
        return [torch.tensor(part, dtype=torch.float64) for part in parts]


@dataclass(frozen=True)
class IsotonicProbability:
    """p(right | score) as the non-decreasing step function of least squared error, interpolated
    between its steps: the standard calibration of a bare score.

    >>> p = IsotonicProbability.fit(torch.tensor([1.0, 2, 3, 4]), torch.tensor([0.0, 1, 0, 1]))
    >>> p(torch.tensor([0.0, 2.0, 3.0, 9.0]))
    tensor([0.0000, 0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """

    scores: tuple[float, ...]
    values: tuple[float, ...]

    @staticmethod
    def fit(score: Float[Tensor, "n"], right: Float[Tensor, "n"]) -> IsotonicProbability:
        """Pool adjacent violators; equal scores are one point, whatever their order."""
        levels, level, sizes = torch.unique(score, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(levels), dtype=torch.float64).index_add(0, level, right.double())
        pools: list[tuple[float, int, float, float]] = []  # sum, size, lowest and highest score
        for at, total, size in zip(levels.tolist(), sums.tolist(), sizes.tolist(), strict=True):
            low = at
            while pools and pools[-1][0] * size >= total * pools[-1][1]:
                before, count, low, _ = pools.pop()
                total, size = total + before, size + count
            pools.append((total, size, low, at))
        steps = [(at, p[0] / p[1]) for p in pools for at in dict.fromkeys(p[2:])]
        return IsotonicProbability(*map(tuple, zip(*steps, strict=True)))

    def __call__(self, score: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return torch.from_numpy(np.interp(score.double().numpy(), self.scores, self.values))


def brier(probability: Float[Tensor, "n"], right: Float[Tensor, "n"]) -> float:
    """Mean squared difference of probability and outcome; lower is better.

    >>> brier(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
    0.125
    """
    return float((probability.double() - right.double()).square().mean())


def calibration_error(
    probability: Float[Tensor, "n"], right: Float[Tensor, "n"], bins: int = 15
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


def _logistic(x: Tensor, right: Tensor, steps: int) -> Tensor:
    """Weights of the features and, last, the bias: logistic regression by Newton's method, targets
    drawn in from 0 and 1 as Platt does."""
    ones = right.sum()
    target = torch.where(right > 0, (ones + 1) / (ones + 2), 1 / (len(right) - ones + 2))
    design = torch.cat([x, torch.ones_like(x[:, :1])], -1)
    weights = x.new_zeros(design.shape[1])
    ridge = 1e-6 * torch.eye(len(weights), dtype=x.dtype)
    for _ in range(steps):
        p = torch.sigmoid(design @ weights)
        curvature = (design * (p * (1 - p))[:, None]).T @ design + ridge
        step = torch.linalg.solve(curvature, design.T @ (target - p))
        weights = weights + step.clamp(-5, 5)
        if float(step.abs().max()) < 1e-10:
            break
    return weights
