"""Losses over the score matrix of a batch: triplet, InfoNCE, pairwise sigmoid, soft contrastive.

Each takes the scores of n pairs and returns its named terms; the loss is their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import softplus

Reduction = Literal["sum", "mean"]


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
    ) -> dict[str, Tensor]: ...

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

    def __call__(
        self,
        image_queries: Float[Tensor, "n n"],
        caption_queries: Float[Tensor, "n n"],
        negative: Bool[Tensor, "n n"],
    ) -> dict[str, Tensor]:
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

    def forward(
        self,
        image_queries: Float[Tensor, "n n"],
        caption_queries: Float[Tensor, "n n"],
        negative: Bool[Tensor, "n n"],
    ) -> dict[str, Tensor]:
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

    def __call__(
        self,
        image_queries: Float[Tensor, "n n"],
        caption_queries: Float[Tensor, "n n"],
        negative: Bool[Tensor, "n n"],
    ) -> dict[str, Tensor]:
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


def match_loss(
    log_odds: Float[Tensor, "n n"], target: Float[Tensor, "n n"], counted: Bool[Tensor, "n n"]
) -> Float[Tensor, ""]:
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
        image_queries: Float[Tensor, "n n"],
        caption_queries: Float[Tensor, "n n"],
        negative: Bool[Tensor, "n n"],
        matched: Float[Tensor, "n n"] | None = None,
    ) -> dict[str, Tensor]:
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
