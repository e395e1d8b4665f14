"""Cosine of the means: the similarity of a point model."""

from __future__ import annotations

from gaussmatch.core.gaussian import A, Moments, normalized
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
