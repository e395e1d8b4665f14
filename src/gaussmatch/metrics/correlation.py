"""Rank correlation: does uncertainty order items as their true ambiguity does?"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def spearman(x: Float[Tensor, "n"], y: Float[Tensor, "n"]) -> float:
    """Spearman's ρ: Pearson's correlation of the ranks, ties sharing their mean rank.

    NaN where one side is constant; NaN among the values is refused.

    >>> round(spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 20.0, 40.0])), 6)
    1.0
    """
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise ValueError(f"need two vectors of one length ≥ 2, got {x.shape} and {y.shape}")
    if x.isnan().any() or y.isnan().any():
        raise ValueError("a NaN has no rank; look at where these values come from")
    a, b = average_ranks(x), average_ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = a.norm() * b.norm()
    return float((a @ b) / scale) if scale > 0 else float("nan")


def partial_spearman(
    x: Float[Tensor, "n"], y: Float[Tensor, "n"], given: Float[Tensor, "n"]
) -> float:
    """Spearman's ρ of x and y with a third variable held fixed.

        ρ_xy|z = (ρ_xy − ρ_xz ρ_yz) / √((1 − ρ_xz²)(1 − ρ_yz²))

    Equals ρ_xy where ``given`` is constant; NaN where it determines x or y completely.

    >>> length = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> x = length + torch.tensor([0.0, 3, 0, 3, 0, 3])
    >>> round(spearman(x, x), 3), round(partial_spearman(x, -length, length), 3)
    (1.0, nan)
    """
    if bool((given == given[:1]).all()):
        return spearman(x, y)
    xy, xz, yz = spearman(x, y), spearman(x, given), spearman(y, given)
    scale = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / scale**0.5 if scale > 1e-12 else float("nan")


def average_ranks(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Ranks from 0, equal values sharing the mean of theirs, in float64."""
    _, group, counts = torch.unique(x, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks: Tensor = (ends - (counts.double() + 1) / 2)[group]
    return ranks
