"""The loss that puts a specific text inside the Gaussian of a vaguer one (ProLIP)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from gaussmatch.gaussian import Gaussian

SCALE = 10.0
"""How sharply a difference of inclusions counts, per dimension."""


def log_inclusion(inner: Gaussian, outer: Gaussian) -> Float[Tensor, "n"]:
    """H(1 ⊂ 2) = ln ∫ p₁(x)² p₂(x) dx up to a constant, the mean over dimensions: large where p₁ is
    concentrated inside p₂.

        −ln σ₁² − ½ ln σ₂² − ½ ln A + B²/4A − C,   A = 1/σ₁² + ½/σ₂²,
        B = 2μ₁/σ₁² + μ₂/σ₂²,   C = μ₁²/σ₁² + ½μ₂²/σ₂²

    (The published code counts the first two terms twice.)
    """
    inner, outer = inner.expand(), outer.expand()
    if inner.log_var is None or outer.log_var is None:
        raise ValueError("inclusion needs variances, and these are point embeddings")
    p, q = (-inner.log_var).exp(), (-outer.log_var).exp()
    a, b = p + 0.5 * q, 2 * inner.mean * p + outer.mean * q
    c = inner.mean.square() * p + 0.5 * outer.mean.square() * q
    h = -inner.log_var - 0.5 * outer.log_var - 0.5 * a.log() + b.square() / (4 * a) - c
    return h.mean(-1)


def inclusion(whole: Gaussian, short: Gaussian) -> Float[Tensor, ""]:
    """Mean of −ln sigmoid(k·(H(whole ⊂ short) − H(short ⊂ whole))) over pairs of a caption and its
    shortened form: what says less must be the wider one.

    >>> import torch
    >>> wide, narrow = (Gaussian(torch.zeros(1, 4), torch.full((1, 4), v)) for v in (1.0, -1.0))
    >>> bool(inclusion(narrow, wide) < inclusion(wide, narrow))
    True
    """
    apart = log_inclusion(whole, short) - log_inclusion(short, whole)
    return softplus(-SCALE * apart).mean()
