"""The cosine, and distances in closed form, negated: 2-Wasserstein, and the sampled distance of
later probabilistic models."""

from __future__ import annotations

from gaussmatch.core.gaussian import A, Moments, joined, normalized, total
from gaussmatch.core.similarities.base import Lifted, Similarity


class Cosine(Similarity):
    """cos(μ_i, μ_c). Variances, if there are any, play no part.

    >>> import torch
    >>> from gaussmatch.core.gaussian import Gaussian
    >>> a = Gaussian(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    >>> Cosine().matrix(a, a)
    tensor([[1., 0.],
            [0., 1.]])
    """

    name = "cosine"
    metric = "inner_product"
    on_arrays = True
    needs_variance = False
    shift_invariant = False
    uncertainty_note = "cosine never sees the variances, so nothing teaches them"

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        return (normalized(g.mean),)

    lift_captions = lift_images


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


class CSD(Similarity):
    """−CSD = −(‖μi − μc‖² + Σσi² + Σσc²), the expected squared distance of two samples (PCME++).

    As a squared distance: each side puts the root of its total variance on an axis of its own.
    """

    name = "csd"
    metric = "squared_l2"
    on_arrays = True
    uncertainty_note = (
        "every match pays for its variance under CSD, so with a ranking loss frequent, vague "
        "captions become the *narrowest*: the sign turns round"
    )

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        root = _root_total_variance(g)
        return (joined(g.mean, root, 0.0),)

    def lift_captions(self, g: Moments[A]) -> Lifted[A]:
        root = _root_total_variance(g)
        return (joined(g.mean, 0.0, root),)


class ExpectedDot(Similarity):
    """μi·μc − ½(Σσi² + Σσc²): what the sigmoid of ProLIP is taken of.

    For unit means it is 1 − ½·CSD, and so ranks as CSD does.
    """

    name = "prolip"
    metric = "inner_product"
    on_arrays = True
    shift_invariant = False
    uncertainty_note = (
        "every match pays for its variance, as under CSD; only the inclusion terms of the loss "
        "widen what is vague, and 'gaussmatch probe' tells whether they did"
    )

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        return (joined(g.mean, -0.5 * _root_total_variance(g) ** 2, 1.0),)

    def lift_captions(self, g: Moments[A]) -> Lifted[A]:
        return (joined(g.mean, 1.0, -0.5 * _root_total_variance(g) ** 2),)


def _root_total_variance(g: Moments[A]) -> A:
    summed: A = total(g.variance)[..., None]
    return (summed * g.dim if g.is_spherical else summed) ** 0.5
