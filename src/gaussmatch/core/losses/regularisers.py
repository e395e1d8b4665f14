"""Losses of the embeddings themselves, beside the ranking: bottleneck (PCME), discrepancy and
diversity (PVSE), inclusion (ProLIP), and the order of uncertainties by how many photos fit."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize, softplus

from gaussmatch.core.gaussian import Gaussian


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


def diversity(residuals: Float[Tensor, "n k d"]) -> Float[Tensor, ""]:
    """‖G − I‖₂ / K², the mean over items, with G the cosines between an item's K residuals.

    Zero where they are orthogonal, and where K = 1.

    >>> diversity(torch.eye(2)[None])
    tensor(0.)
    >>> diversity(torch.ones(1, 2, 3))      # twice the same: √2 / 4
    tensor(0.3536)
    """
    unit = normalize(residuals, dim=-1)
    heads = unit.shape[1]
    same = torch.eye(heads, dtype=torch.bool, device=unit.device)
    others = (unit @ unit.mT).masked_fill(same, 0)
    alike: Tensor = others.flatten(1).norm(dim=1).mean()
    return alike / heads**2


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


SHARPNESS = 20.0
"""How sharply ``log_rivals`` tells images that fit a text from those that do not, in cosines."""


@torch.no_grad()
def log_rivals(
    texts: Float[Tensor, "n d"],
    images: Float[Tensor, "m d"],
    own: Int[Tensor, "n"],
    image_ids: Int[Tensor, "m"],
) -> Float[Tensor, "n"]:
    """ln of how many images fit a text as well as its own does, softly:

        ln(½ + Σ_j σ(κ (cos(t, j) − cos(t, own)))),   j over the other images of the batch

    A text that is true of k images has its own anywhere among the k best, so where it stands says
    how vague the text is, without any count. Cosines of means: the widths do not judge themselves.

    Args:
        own: row of each text's image.
        image_ids: equal for rows that hold one image.

    >>> images = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> log_rivals(images[[0, 2]], images, torch.tensor([0, 2]), torch.arange(3)).exp()
    tensor([0.9752, 0.5000])
    """
    cosines = normalize(texts, dim=-1) @ normalize(images, dim=-1).T
    beside = (SHARPNESS * (cosines - cosines.gather(1, own[:, None]))).sigmoid()
    return beside.masked_fill(image_ids[own, None] == image_ids, 0).sum(1).add(0.5).log()


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
