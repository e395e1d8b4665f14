"""The soft contrastive loss of PCME: every image with every caption, match or not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from gaussmatch.core.losses.base import Reduction, check_reduction


@dataclass(frozen=True)
class SoftContrastive:
    """−2·(Σ over pairs of ln P + Σ over negatives of ln(1 − P)), where a score is ln P/(1 − P).

    So −ln P = softplus(−score) and −ln(1 − P) = softplus(score). The factor is the published one:
    every combination counts as an image query and as a caption query, each with its own score.
    What is neither the own pair nor a negative (another caption of the same image) is left out.

    Args:
        reduction: ``sum`` (published), or ``mean`` over the n² combinations.

    >>> import torch
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
        both = match_loss(image_queries, negative) + match_loss(caption_queries, negative)
        return {self.name: both / self._terms(len(negative))}

    def collapsed_value(self, batch: int) -> float:
        """The least that one probability for all can reach: that of a guess, P = 1/n."""
        others = -batch * (batch - 1) * math.log1p(-1 / batch) if batch > 1 else 0.0
        return 2 * (batch * math.log(batch) + others) / self._terms(batch)

    def _terms(self, batch: int) -> int:
        return 1 if self.reduction == "sum" else batch**2


def match_loss(
    log_odds: Float[Tensor, "n n"], negative: Bool[Tensor, "n n"], positive: Tensor | None = None
) -> Float[Tensor, ""]:
    """Binary cross-entropy of match (the diagonal and, if given, ``positive``) or not (negative),
    summed.

    >>> import torch
    >>> match_loss(torch.zeros(2, 2), ~torch.eye(2, dtype=torch.bool))      # 4 ln 2
    tensor(2.7726)
    """
    pairs = softplus(-log_odds.diagonal()).sum()
    if positive is not None:
        pairs = pairs + softplus(-log_odds).masked_fill(~positive, 0).sum()
        negative = negative & ~positive
    return pairs + softplus(log_odds).masked_fill(~negative, 0).sum()
