"""The 2-Wasserstein distance between diagonal Gaussians, negated."""

from __future__ import annotations

from gaussmatch.core.gaussian import A, Moments, joined
from gaussmatch.core.similarities.base import Lifted, Similarity

EPSILON = 1e-12
"""Under the square root, so that a gradient exists at distance zero."""


class Wasserstein(Similarity):
    """−W₂ = −√(‖μi − μc‖² + ‖σi − σc‖²): Euclidean distance between the vectors [μ, σ].

    For diagonal covariances the trace term of the paper's general formula is exactly the squared
    difference of the *standard deviations*.
    """

    name = "wasserstein"
    metric = "squared_l2"
    on_arrays = True
    uncertainty_note = (
        "under 2-Wasserstein the standard deviations are just further coordinates: they help the "
        "ranking, but a vague caption gains nothing by being wide"
    )

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        return (_stacked(g, g.std),)

    lift_captions = lift_images

    def from_raw(self, raw: A) -> A:
        score: A = -((raw.clip(0) + EPSILON) ** 0.5)
        return score


class WassersteinLiteral(Wasserstein):
    """−√(‖μi − μc‖² + ‖σi² − σc²‖²), as the paper's simplified formula is printed."""

    name = "wasserstein_literal"

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        return (_stacked(g, g.variance),)

    lift_captions = lift_images


def _stacked(g: Moments[A], spread: A) -> A:
    """[μ, spread]; a sphere's D equal coordinates are folded into one, √D times as long."""
    wide: A = spread * g.dim**0.5 if g.is_spherical else spread
    return joined(g.mean, wide)
