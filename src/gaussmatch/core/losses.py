"""Losses of a batch. Those over its score matrix (triplet, InfoNCE, pairwise sigmoid, soft
contrastive) return their named terms; the loss is the sum of them.

Beside them, terms of the embeddings themselves: bottleneck (PCME), discrepancy and diversity
(PVSE), inclusion (ProLIP), the order of uncertainties by how many photos fit; and the generation
of an image's caption (VSRN).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, pad, softplus
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from gaussmatch.core.gaussian import Gaussian

Reduction = Literal["sum", "mean"]
Scores = Float[Tensor, "n n"]
Mask = Bool[Tensor, "n n"]
Terms = dict[str, Tensor]


class ScoreLoss(Protocol):
    """The scores of a batch of n pairs → named terms, of which ``name`` is its own.

    Args:
        image_queries: (n, n) images × captions, as image queries are scored; row k and column k
            belong together.
        caption_queries: the same as caption queries are scored, also images × captions: the same
            tensor unless the similarity depends on the direction (``Similarity.both_ways``).
        negative: (n, n), true if an image and a caption do not match.

    A loss with learned parameters is an ``nn.Module``, trained and saved with the matcher.
    """

    @property
    def name(self) -> str: ...

    def __call__(
        self, image_queries: Tensor, caption_queries: Tensor, negative: Tensor
    ) -> Terms: ...

    def collapsed_value(self, batch: int) -> float:
        """Its value for a model that scores every pair alike."""
        ...


def check_reduction(reduction: str) -> None:
    if reduction not in ("sum", "mean"):
        raise ValueError(f"unknown reduction {reduction!r}; choose sum or mean")


Mining = Literal["hardest", "semi-hard", "sum"]


@dataclass(frozen=True)
class TripletLoss:
    """Σ over the pairs (i, c) of [α + s(i, c′) − s(i, c)]₊ + [α + s(i′, c) − s(i, c)]₊.

    Args:
        margin: α.
        mining: which negatives count. ``hardest``: the most similar one in the batch, each way
            (the paper). ``sum``: all of them (gentle; for the first epoch). ``semi-hard``
            (Schroff): the most similar one that is still less similar than the positive; where
            there is none, the least similar one.
        reduction: ``sum`` over the batch, as in the paper; ``mean`` (PVSE) divides that by the n
            rows, or by the n² entries where all negatives count.

    Takes scores and a mask of negatives as every ``ScoreLoss``; knows nothing of the similarity
    behind the scores.

    >>> scores = torch.tensor([[0.9, 0.8], [0.1, 0.7]])
    >>> TripletLoss(margin=0.2)(scores, scores, negatives(torch.tensor([0, 1])))
    {'triplet': tensor(0.4000)}
    """

    name: ClassVar[str] = "triplet"

    margin: float = 0.2
    mining: Mining = "hardest"
    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        check_reduction(self.reduction)
        if self.mining not in ("hardest", "semi-hard", "sum"):
            raise ValueError(f"unknown mining {self.mining!r}; choose hardest, semi-hard or sum")
        if self.margin < 0:
            raise ValueError(f"margin must not be negative, got {self.margin}")

    def __call__(self, image_queries: Scores, caption_queries: Scores, negative: Mask) -> Terms:
        captions = self._one_way(image_queries, negative)
        images = self._one_way(caption_queries.T, negative.T)
        return {self.name: (captions + images) / self._terms(len(negative))}

    def _one_way(self, scores: Tensor, negative: Tensor) -> Tensor:
        """Every row's positive against the negatives of that row."""
        positive = scores.diagonal()
        violation = scores - positive[:, None] + self.margin  # differences first: exact at ties
        if self.mining == "sum":
            return (violation.clamp_min(0) * negative).sum()
        if self.mining == "semi-hard":
            negative = _semi_hard(scores.detach(), positive.detach(), negative)
        worst = violation.masked_fill(~negative, -torch.inf).amax(-1)
        return worst.clamp_min(0).sum()

    def collapsed_value(self, batch: int) -> float:
        """The loss of a model that maps everything to one spot: every violation is the margin."""
        per_row = batch - 1 if self.mining == "sum" else min(1, batch - 1)
        return 2 * batch * per_row * self.margin / self._terms(batch)

    def _terms(self, batch: int) -> int:
        if self.reduction == "sum":
            return 1
        return batch**2 if self.mining == "sum" else batch


def negatives(image_ids: Tensor, *, same_image_negatives: bool = False) -> Bool[Tensor, "n n"]:
    """Which (row, column) combinations of a batch are negatives.

    Other captions of the same image are true of it, so they are left out; the official VSE++ code
    counts them (``same_image_negatives=True``).

    >>> negatives(torch.tensor([7, 7, 9])).int()
    tensor([[0, 0, 1],
            [0, 0, 1],
            [1, 1, 0]], dtype=torch.int32)
    """
    if same_image_negatives:
        return ~torch.eye(len(image_ids), dtype=torch.bool, device=image_ids.device)
    return image_ids[:, None] != image_ids[None, :]


def mixture_targets(share: Float[Tensor, "n"], partner: Int[Tensor, "n"]) -> Float[Tensor, "n n"]:
    """How much of a match each combination is, if image k is ``share`` of itself and for the rest
    the image of pair ``partner``.

    >>> mixture_targets(torch.tensor([1.0, 0.75]), torch.tensor([1, 0]))
    tensor([[1.0000, 0.0000],
            [0.2500, 0.7500]])
    """
    return torch.diag(share).scatter_add(1, partner[:, None], (1 - share)[:, None])


def _semi_hard(scores: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The negatives below the positive; in a row without any, only the least similar one."""
    below = negative & (scores < positive[:, None])
    least = scores.masked_fill(~negative, torch.inf).argmin(-1, keepdim=True)
    fallback = torch.zeros_like(negative).scatter_(-1, least, True) & negative
    return torch.where(below.any(-1, keepdim=True), below, fallback)


class InfoNCE(nn.Module):
    """−Σ ln softmax(scale · score) of the own pair, over the captions of the batch for every image
    and over its images for every caption.

    A proper scoring rule of the probability that a query gives to each item. Other captions of the
    same image are neither right nor wrong: they stay out of the sum. With a similarity in which
    the query's variance divides (query KL), that variance is the query's own temperature.

    Args:
        scale: logit = scale · score; an inverse temperature. If it learns, its start.
        learn_scale: train it, as its logarithm.
        reduction: ``sum`` over the 2n queries, or that divided by the n pairs (``mean``).

    >>> pairs = 4 * torch.eye(3)
    >>> loss = InfoNCE(scale=1.0)(pairs, pairs, ~torch.eye(3, dtype=torch.bool))["infonce"]
    >>> loss.detach()           # 6 · ln(1 + 2 e⁻⁴)
    tensor(0.2159)
    """

    name: ClassVar[str] = "infonce"

    def __init__(
        self, scale: float = 10.0, learn_scale: bool = True, reduction: Reduction = "sum"
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        self.log_scale = log_scale(scale, learn_scale)
        self.reduction = reduction

    def forward(self, image_queries: Scores, caption_queries: Scores, negative: Mask) -> Terms:
        scale, own = self.log_scale.exp(), torch.arange(len(negative), device=negative.device)
        captions = _one_way(scale * image_queries, negative, own)
        images = _one_way(scale * caption_queries.T, negative.T, own)
        return {self.name: (captions + images) / self._terms(len(negative))}

    def queries(
        self, scores: Float[Tensor, "n m"], negative: Bool[Tensor, "n m"], own: Int[Tensor, "m"]
    ) -> Float[Tensor, ""]:
        """−Σ ln softmax(scale · score) of texts that are queries only: each has an image to find
        (its row ``own``), and no image has to find it.

        >>> scores = 4 * torch.eye(3)[:, :2]
        >>> loss = InfoNCE(scale=1.0).queries(scores, scores == 0, torch.tensor([0, 1]))
        >>> loss.detach()           # 2 · ln(1 + 2 e⁻⁴)
        tensor(0.0720)
        """
        images = _one_way(self.log_scale.exp() * scores.T, negative.T, own)
        return images / self._terms(len(negative))

    def collapsed_value(self, batch: int) -> float:
        """That of a guess among all items of the batch."""
        return 2 * batch * math.log(batch) / self._terms(batch)

    def _terms(self, batch: int) -> int:
        return 1 if self.reduction == "sum" else batch


def log_scale(scale: float, learned: bool) -> nn.Parameter:
    """ln of a scale that cannot become negative, learned or fixed."""
    if not scale > 0:
        raise ValueError(f"the scale of a loss must be positive, got {scale}")
    return nn.Parameter(torch.tensor(math.log(scale)), requires_grad=learned)


def _one_way(logits: Tensor, negative: Tensor, own: Tensor) -> Tensor:
    """Cross-entropy of every row's own item, in the column ``own``, among it and the row's
    negatives."""
    mine = torch.zeros_like(negative).scatter_(1, own[:, None], True)
    every = logits.masked_fill(~(negative | mine), -torch.inf).logsumexp(-1)
    return (every - logits.gather(1, own[:, None])[:, 0]).sum()


@dataclass(frozen=True)
class SoftContrastive:
    """−2·(Σ over pairs of ln P + Σ over negatives of ln(1 − P)), where a score is ln P/(1 − P).

    So −ln P = softplus(−score) and −ln(1 − P) = softplus(score). The factor is the published one:
    every combination counts as an image query and as a caption query, each with its own score.
    What is neither the own pair nor a negative (another caption of the same image) is left out.

    Args:
        reduction: ``sum`` (published), or ``mean`` over the n² combinations.

    >>> sure = torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
    >>> negative = torch.tensor([[False, True], [True, False]])
    >>> SoftContrastive()(sure, sure, negative)
    {'soft_contrastive': tensor(0.0010)}
    """

    name: ClassVar[str] = "soft_contrastive"

    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        check_reduction(self.reduction)

    def __call__(self, image_queries: Scores, caption_queries: Scores, negative: Mask) -> Terms:
        pairs = torch.eye(len(negative), dtype=torch.bool, device=negative.device)
        target, counted = pairs.to(image_queries), negative | pairs
        both = sum_of(match_loss(s, target, counted) for s in (image_queries, caption_queries))
        return {self.name: both / self._terms(len(negative))}

    def collapsed_value(self, batch: int) -> float:
        """The least that one probability for all can reach: that of a guess, P = 1/n."""
        others = -batch * (batch - 1) * math.log1p(-1 / batch) if batch > 1 else 0.0
        return 2 * (batch * math.log(batch) + others) / self._terms(batch)

    def _terms(self, batch: int) -> int:
        return 1 if self.reduction == "sum" else batch**2


def match_loss(log_odds: Scores, target: Scores, counted: Mask) -> Float[Tensor, ""]:
    """Binary cross-entropy of match (target 1) or not (0), or of a share of a match, summed over
    what counts.

    >>> match_loss(torch.zeros(2, 2), torch.eye(2), torch.ones(2, 2, dtype=torch.bool))  # 4 ln 2
    tensor(2.7726)
    """
    each = target * softplus(-log_odds) + (1 - target) * softplus(log_odds)
    return each.masked_fill(~counted, 0).sum()


class PairwiseSigmoid(nn.Module):
    """Binary cross-entropy of every image with every caption: logit = scale · score + bias.

    Unlike InfoNCE the items of a batch do not compete, so a query may have several matches.

    Args:
        scale: at the start, if it is learned.
        bias: at the start; always learned. About −scale suits the cosine (as published), 0 a
            negative divergence or distance.
        learn_scale: train the scale, as its logarithm.
        pseudo_positives: weight of a second term in which every negative that scores at least as
            high as the query's own pair counts as a match (PCME++: 0.1).
        label_smoothing: ε; a match counts as 1 − ε of one, a negative as ε (PCME++: 1e-4).
        reduction: ``sum`` over both directions, or that divided by the n pairs (``mean``).

    >>> scores = torch.tensor([[1.0, 0.0], [2.0, 1.0]])         # (1, 0) beats the pairs
    >>> loss = PairwiseSigmoid(scale=1.0, pseudo_positives=0.1)
    >>> terms = loss(scores, scores, ~torch.eye(2, dtype=torch.bool))
    >>> {name: round(float(value.detach()), 4) for name, value in terms.items()}
    {'sigmoid': 6.8932, 'pseudo_positives': 0.2893}
    """

    name: ClassVar[str] = "sigmoid"

    def __init__(
        self,
        scale: float = 10.0,
        bias: float = 0.0,
        learn_scale: bool = True,
        pseudo_positives: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        if pseudo_positives < 0:
            raise ValueError(f"pseudo_positives must not be negative, got {pseudo_positives}")
        if not 0 <= label_smoothing < 0.5:
            raise ValueError(f"label_smoothing must be in [0, 0.5), got {label_smoothing}")
        self._set_scale(scale, learn_scale)
        self.bias = nn.Parameter(torch.tensor(bias))
        self.pseudo_positives, self.reduction = pseudo_positives, reduction
        self.label_smoothing = label_smoothing

    def _set_scale(self, scale: float, learned: bool) -> None:
        self.log_scale = log_scale(scale, learned)

    @property
    def factor(self) -> Tensor:
        """The scale as it is now."""
        return self.log_scale.exp()

    def forward(
        self,
        image_queries: Scores,
        caption_queries: Scores,
        negative: Mask,
        matched: Scores | None = None,
    ) -> Terms:
        """As every ``ScoreLoss``.

        Args:
            matched: how much of a match each combination is, where images are mixtures of two; else
                the own pairs are matches.
        """
        scale, count = self.factor, self._terms(len(negative))
        own = torch.eye(len(negative), device=negative.device, dtype=image_queries.dtype)
        matched = own if matched is None else matched.to(own)
        target = matched + self.label_smoothing * (1 - 2 * matched)
        counted = negative | (matched > 0)
        i2t, t2i = scale * image_queries + self.bias, (scale * caption_queries + self.bias).T
        ways = (i2t, target, counted), (t2i, target.T, counted.T)
        terms = {self.name: sum_of(match_loss(*way) for way in ways) / count}
        if self.pseudo_positives:
            pseudo = sum_of(match_loss(way[0], _with_pseudo(*way), way[2]) for way in ways)
            terms["pseudo_positives"] = self.pseudo_positives * pseudo / count
        return terms

    def collapsed_value(self, batch: int) -> float:
        """The least that one probability for all can reach; the bias learns it."""
        return SoftContrastive().collapsed_value(batch) / self._terms(batch)

    def _terms(self, batch: int) -> int:
        return 1 if self.reduction == "sum" else batch


def sum_of(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum()


def _with_pseudo(logits: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    """Targets in which what scores at least as high as a row's best match counts as much as it."""
    best, at = target.max(1, keepdim=True)
    return torch.where(counted & (logits >= logits.gather(1, at)), best, target)


class PCMEPPLoss(PairwiseSigmoid):
    """``PairwiseSigmoid`` as published for PCME++, where score = −CSD: the mean over the n²
    combinations, both ways, and the scale itself is learned instead of its logarithm.

    >>> scores = torch.tensor([[1.0, 0.0], [2.0, 1.0]])
    >>> loss = PCMEPPLoss(scale=1.0, bias=0.0)
    >>> terms = loss(scores, scores, ~torch.eye(2, dtype=torch.bool))
    >>> {name: round(float(value.detach()), 4) for name, value in terms.items()}
    {'pcmepp': 1.7233, 'pseudo_positives': 0.0723}
    """

    name: ClassVar[str] = "pcmepp"

    def __init__(
        self,
        scale: float = 5.0,
        bias: float = 5.0,
        learn_scale: bool = True,
        pseudo_positives: float = 0.1,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(scale, bias, learn_scale, pseudo_positives, label_smoothing)

    def _set_scale(self, scale: float, learned: bool) -> None:
        if not scale > 0:
            raise ValueError(f"the scale of a loss must be positive, got {scale}")
        self.scale = nn.Parameter(torch.tensor(scale), requires_grad=learned)

    @property
    def factor(self) -> Tensor:
        return self.scale

    def _terms(self, batch: int) -> int:
        return batch**2


class ProLIPLoss(PairwiseSigmoid):
    """``PairwiseSigmoid`` as published for ProLIP, with its similarity: every combination counts
    once, and the sum is divided by the n pairs."""

    name: ClassVar[str] = "prolip"

    def __init__(self, scale: float = 10.0, bias: float = -10.0, learn_scale: bool = True) -> None:
        super().__init__(scale, bias, learn_scale)

    def _terms(self, batch: int) -> int:
        return 2 * batch


LOSSES: dict[str, Callable[..., ScoreLoss]] = {
    "triplet": TripletLoss,
    "infonce": InfoNCE,
    "sigmoid": PairwiseSigmoid,
    "pcmepp": PCMEPPLoss,
    "prolip": ProLIPLoss,
    "soft-contrastive": SoftContrastive,
}
"""Every loss that ``loss.name`` of a recipe may name. Its arguments are fields of the same name in
that section, such as ``margin`` or ``scale``."""


# ---- terms of the embeddings ----


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
