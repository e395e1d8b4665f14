"""The loss that draws the images and the captions of a batch to one place (PVSE)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

GAMMA = 0.5


def mean_discrepancy(
    images: Float[Tensor, "*n d"], captions: Float[Tensor, "*m d"]
) -> Float[Tensor, ""]:
    """MMD: mean k(i, i′) − 2·mean k(i, c) + mean k(c, c′) with k(x, y) = exp(−½‖x − y‖).

    Over all embeddings of a batch, (n, D) or (n, K, D); zero where the two sides are alike as
    sets. As published the distance in the kernel is not squared, and an item's distance to itself
    counts.

    >>> x = torch.randn(4, 3)
    >>> mean_discrepancy(x, x.flip(0)).abs().round(decimals=5)
    tensor(0.)
    """
    x, y = (side.reshape(-1, side.shape[-1]) for side in (images, captions))
    return _kernel(x, x) - 2 * _kernel(x, y) + _kernel(y, y)


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    """By distances that are exact near zero, and have a gradient (zero) there."""
    apart = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-GAMMA * apart).mean()
