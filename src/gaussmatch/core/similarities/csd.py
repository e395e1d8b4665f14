"""The closed-form sampled distance of later probabilistic models, negated."""

from __future__ import annotations

from gaussmatch.core.gaussian import A, Moments, joined, total
from gaussmatch.core.similarities.base import Lifted, Similarity


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
