"""From a score to the probability of being right, and whether that probability is honest."""

from __future__ import annotations

from dataclasses import dataclass

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
        x, y = score.double(), right.double()
        centre, scale = float(x.mean()), float(x.std(unbiased=False)) or 1.0
        ones = y.sum()
        target = torch.where(y > 0, (ones + 1) / (ones + 2), 1 / (len(y) - ones + 2))
        design = torch.stack([(x - centre) / scale, torch.ones_like(x)], -1)
        weights = torch.zeros(2).double()
        for _ in range(steps):
            p = torch.sigmoid(design @ weights)
            curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-6 * torch.eye(2)
            step = torch.linalg.solve(curvature, design.T @ (target - p))
            weights = weights + step.clamp(-5, 5)
            if float(step.abs().max()) < 1e-10:
                break
        return MatchProbability(float(weights[0]), float(weights[1]), centre, scale)

    def __call__(self, score: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        x = (score.double() - self.centre) / self.scale
        return torch.sigmoid(self.slope * x + self.bias)


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
