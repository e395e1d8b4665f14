"""Similarities in closed form: the cosine, and of diagonal Gaussians, negated, the 2-Wasserstein
distance, the sampled distance of later probabilistic models, and the Kullback–Leibler divergences.
"""

from __future__ import annotations

from gaussmatch.core.gaussian import A, Gaussian, Moments, Side, dot, joined, normalized, total
from gaussmatch.core.similarities.base import Lifted, Similarity, check_side
from gaussmatch.lazy import torch


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


class Divergence(Similarity):
    """What the KL divergences share.

    Args:
        per_dimension: divide by D, in the lift of the reference. With variances relative to D
            (``model.variance_relative``) a KL is a sum of D terms of order one, so KL / D, and with
            it margins and scales of losses, mean the same in every dimension. No ranking changes.

    >>> a, b = (Gaussian(torch.full((1, 4), mean), torch.zeros(1, 1)) for mean in (0.0, 1.0))
    >>> KL().matrix(a, b), KL(per_dimension=True).matrix(a, b)
    (tensor([[-2.]]), tensor([[-0.5000]]))
    """

    metric = "inner_product"
    on_arrays = True

    def __init__(self, per_dimension: bool = False) -> None:
        self.per_dimension = per_dimension

    def precision(self, g: Gaussian) -> torch.dtype:
        """float32 where gradients flow through a score per dimension: its terms are of order one,
        so six digits remain, and a step takes a fifth less time on a CPU. Results are ranked in
        float64."""
        learns = torch.is_grad_enabled() and g.log_var is not None and g.log_var.requires_grad
        if learns and self.per_dimension:
            return torch.promote_types(g.dtype, torch.float32)
        return super().precision(g)

    def reference(self, g: Moments[A]) -> A:
        """q of KL(p ‖ q) as a vector: [−½/σ², μ/σ², 1, −½(Σμ²/σ² + ln det Σ − D)]."""
        precision: A = g.variance**-1
        scaled: A = g.mean * precision
        constant: A = -0.5 * (dot(g.mean, scaled) + g.uncertainty() - g.dim)[..., None]
        lifted = joined(-0.5 * precision, scaled, 1.0, constant)
        return lifted / g.dim if self.per_dimension else lifted


class KL(Divergence):
    """−KL(image ‖ caption), the paper's equation for a diagonal Σ:

        −½ Σ_d [ σi²/σc² − ln(σi²/σc²) + (μi − μc)²/σc² − 1 ]

    The caption's variance divides the squared difference: a caption that cannot separate its near
    misses apart gains by being wide. That is why its uncertainty means something.

    As an inner product: everything that mixes the two sides is a product of something of the
    image (σi² + μi², and μi) and something of the caption (1/σc², and μc/σc²).
    """

    name = "kl"

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        return (_divergent(g),)

    def lift_captions(self, g: Moments[A]) -> Lifted[A]:
        return (self.reference(g),)


class ReverseKL(Divergence):
    """−KL(caption ‖ image): the image is the reference. The paper's control experiment."""

    name = "reverse_kl"

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        return (self.reference(g),)

    def lift_captions(self, g: Moments[A]) -> Lifted[A]:
        return (_divergent(g),)


class MinKL(Divergence):
    """−min{KL(image ‖ caption), KL(caption ‖ image)}: symmetric, and two lifts instead of one."""

    name = "min_kl"

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        return (_divergent(g), self.reference(g))

    def lift_captions(self, g: Moments[A]) -> Lifted[A]:
        return (self.reference(g), _divergent(g))


class QueryKL(Divergence):
    """−KL(image ‖ caption) for caption queries, −KL(caption ‖ image) for image queries: the
    variance of the *query* divides.

    With one KL for both directions a caption's variance also decides how it competes with other
    captions for an image. Here it only has the role of a query's temperature, so it comes to mean
    the query's ambiguity (docs/uncertainty.md). Two lifts, one for each direction.

    >>> g = Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))
    >>> QueryKL().for_query("captions").matrix(g, g).abs()
    tensor([[0.]])
    >>> QueryKL().matrix(g, g)
    Traceback (most recent call last):
    ValueError: query_kl scores each direction differently: choose the side of the query with ...
    """

    name = "query_kl"

    def for_query(self, side: Side) -> Similarity:
        check_side(side)
        return (ReverseKL if side == "images" else KL)(self.per_dimension)

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        raise ValueError(
            f"{self.name} scores each direction differently: choose the side of the query with "
            'similarity.for_query("captions") or for_query("images"), or '
            'model.similarity(..., query="captions")'
        )

    lift_captions = lift_images


def _divergent(g: Moments[A]) -> A:
    """p of KL(p ‖ q) as a vector: [σ² + μ², μ, ½ ln det Σ, 1]; width 2D + 2, or D + 3."""
    second: A = g.variance + g.mean**2  # E[x²] in each dimension
    if g.is_spherical:
        second = total(second)[..., None]
    half_log_det: A = 0.5 * g.uncertainty()[..., None]
    return joined(second, g.mean, half_log_det, 1.0)
