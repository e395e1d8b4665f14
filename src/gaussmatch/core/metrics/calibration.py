"""From a score to the probability of being right, and whether that probability is honest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class ResultProbability:
    """p(match) of one *result* from several features of it, such as its score, the uncertainty
    of the query and its own: 1 / (1 + exp(−(Σ_f weight_f (x_f − centre_f) / scale_f + bias))).

    The score alone is not enough: a vague query scores low with everything and is right with much
    of it. Fitted on (query, result) pairs of validation, targets drawn in from 0 and 1 as Platt
    does, so that separable ones have finite weights.

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
        features: Float[Tensor, "n f"],
        right: Float[Tensor, "n"],
        weight: Float[Tensor, "n"] | None = None,
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
        centre, scale = x.mean(0), x.std(0, unbiased=False)
        scale = torch.where(scale > 0, scale, 1.0)
        *weights, bias = _logistic((x - centre) / scale, right.double(), counted, ridge).tolist()
        return ResultProbability(
            tuple(weights), bias, tuple(centre.tolist()), tuple(scale.tolist())
        )

    def __call__(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n"]:
        return torch.sigmoid(self.logit(features))

    def logit(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n"]:
        weights, centre, scale = self._tensors
        return (features.double() - centre) / scale @ weights + self.bias

    @cached_property
    def _tensors(self) -> list[Tensor]:
        parts = (self.weights, self.centre, self.scale)
        return [torch.tensor(part, dtype=torch.float64) for part in parts]


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


def _logistic(x: Tensor, right: Tensor, weight: Tensor, ridge: float, steps: int = 100) -> Tensor:
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
