"""InfoNCE: which caption belongs to this image, and which image to this caption?"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gaussmatch.core.losses.base import Reduction, check_reduction


class InfoNCE(nn.Module):
    """−Σ ln softmax(scale · score) of the own pair, over the captions of the batch for every image
    and over its images for every caption.

    A proper scoring rule of the probability that a query gives to each item. Other captions of the
    same image are neither right nor wrong: they stay out of the sum. With a similarity in which
    the query's variance divides (query KL), that variance is the query's own temperature.

    Args:
        scale: logit = scale · score; an inverse temperature. Where it learns, at the start.
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
