"""Uncertainties in the order of how many photos the texts fit."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def disorder(uncertainty: Float[Tensor, "n"], log_count: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    """1 − r, with Pearson's r between uncertainties and the logarithms of how many photos fit.

    Correlation fixes the order and the relative spacing of the uncertainties, and leaves their
    scale to the ranking loss. Fewer than three texts, or counts that are all equal, give zero.

    >>> import torch
    >>> disorder(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 30.0]))
    tensor(0.)
    """
    if len(log_count) < 3 or log_count.std() == 0:
        return uncertainty.new_zeros(())
    x, y = uncertainty - uncertainty.mean(), log_count - log_count.mean()
    correlation: Tensor = (x * y).sum() / (x.norm() * y.norm()).clamp_min(1e-12)
    return 1 - correlation
