"""Losses of the embeddings themselves, beside the ranking: bottleneck (PCME), discrepancy and
diversity (PVSE), inclusion (ProLIP), the order of uncertainties by how many photos fit, and the
generation of an image's caption (VSRN)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, pad, softplus
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

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
    return _log_inclusions(inner, outer).mean(-1)


def _log_inclusions(
    inner: Gaussian, outer: Gaussian, times: float = 1.0, offset: float = 0.0
) -> Float[Tensor, "n d"]:
    """H(1 ⊂ 2) of each dimension, with its first two terms ``times`` over and the logarithms of
    the precisions moved by ``offset``."""
    inner, outer = inner.expand(), outer.expand()
    if inner.log_var is None or outer.log_var is None:
        raise ValueError("inclusion needs variances, and these are point embeddings")
    p, q = (offset - inner.log_var).exp(), (offset - outer.log_var).exp()
    a, b = p + 0.5 * q, 2 * inner.mean * p + outer.mean * q
    c = inner.mean.square() * p + 0.5 * outer.mean.square() * q
    widths = times * (inner.log_var + 0.5 * outer.log_var)
    return -widths - 0.5 * a.log() + b.square() / (4 * a) - c


def inclusion(whole: Gaussian, short: Gaussian) -> Float[Tensor, ""]:
    """Mean of −ln sigmoid(k·(H(whole ⊂ short) − H(short ⊂ whole))) over pairs of a caption and its
    shortened form: what says less must be the wider one.

    >>> wide, narrow = (Gaussian(torch.zeros(1, 4), torch.full((1, 4), v)) for v in (1.0, -1.0))
    >>> bool(inclusion(narrow, wide) < inclusion(wide, narrow))
    True
    """
    apart = log_inclusion(whole, short) - log_inclusion(short, whole)
    return softplus(-SCALE * apart).mean()


def inclusion_as_published(inner: Gaussian, outer: Gaussian) -> Float[Tensor, ""]:
    """The same in the form of ProLIP's code: a sigmoid for every dimension, a hundred times as
    steep, of an H that counts the widths twice and takes e⁻¹⁰ of every precision.

    >>> wide, narrow = (Gaussian(torch.zeros(1, 4), torch.full((1, 4), v)) for v in (1.0, -1.0))
    >>> inclusion_as_published(narrow, wide), inclusion_as_published(wide, narrow).round()
    (tensor(0.), tensor(1740.))
    """
    one, other = (
        _log_inclusions(a, b, times=2.0, offset=-10.0) for a, b in ((inner, outer), (outer, inner))
    )
    return softplus(-100 * SCALE * (one - other)).mean()


def teacher_forcing(
    ids: Int[Tensor, "n w"], lengths: Int[Tensor, "n"], longest: int = 60, padding: int = 0
) -> tuple[PackedSequence, PackedSequence]:
    """Inputs of a caption generator, the true words, and the next word of each as its target; from
    padded captions with start and end. Both are packed (step by step, longest caption first), so
    that nothing is computed for padding.

    As in the official code, one ``padding`` after the end is a target too, and a caption longer
    than ``longest`` is cut there, with its end as the last word. Further padding does not count.

    >>> ids, lengths = torch.tensor([[1, 7, 2, 0], [1, 8, 9, 2]]), torch.tensor([3, 4])
    >>> inputs, targets = teacher_forcing(ids, lengths)
    >>> torch.nn.utils.rnn.pad_packed_sequence(targets, batch_first=True)
    (tensor([[7, 2, 0, 0],
            [8, 9, 2, 0]]), tensor([3, 4]))
    """
    if longest < 2:
        raise ValueError(f"captions of at most {longest} words leave none to generate; at least 2")
    steps = lengths.clamp_max(longest - 1)
    width = int(steps.max()) + 1
    places = torch.arange(width, device=ids.device)
    words = pad(ids, (0, max(0, width - ids.shape[1])), value=padding)[:, :width]
    words = words.masked_fill(places >= lengths[:, None], padding)
    cut = (lengths > longest)[:, None] & (places == longest - 1)
    words = torch.where(cut, ids.gather(1, lengths[:, None] - 1), words)
    return _packed(words[:, :-1], steps), _packed(words[:, 1:], steps)


def generation_loss(
    logits: Float[Tensor, "k v"], targets: Int[Tensor, "k"], captions: int
) -> Float[Tensor, ""]:
    """−Σ ln p(target) / captions: summed over the k words that count, mean over captions.

    >>> generation_loss(torch.zeros(6, 4), torch.tensor([1, 2, 0, 3, 2, 0]), captions=2)
    tensor(4.1589)
    """
    return cross_entropy(logits, targets, reduction="sum") / captions


def _packed(words: Tensor, steps: Tensor) -> PackedSequence:
    return pack_padded_sequence(words, steps.cpu(), batch_first=True, enforce_sorted=False)
