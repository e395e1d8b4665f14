"""The loss that keeps Gaussians from shrinking to points or growing without end (PCME)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.gaussian import Gaussian


def bottleneck(g: Gaussian, *, as_published: bool = False) -> Float[Tensor, ""]:
    """VIB: KL(N(μ, σ²) ‖ N(0, 1)) = ½ Σ (σ² + μ² − 1 − ln σ²), summed over dimensions and items.

    Args:
        as_published: the form of PCME's code, which takes ln σ for ln σ²: ½ Σ (σ + μ² − 1 − ln σ).

    >>> float(bottleneck(Gaussian(torch.zeros(2, 3), torch.zeros(2, 3))))
    0.0
    """
    g = g.expand()
    if g.log_var is None:
        raise ValueError("the bottleneck loss needs variances, and these are point embeddings")
    log = 0.5 * g.log_var if as_published else g.log_var
    return 0.5 * (torch.exp(log) + g.mean.square() - 1 - log).sum()
