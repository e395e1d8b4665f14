"""The soft contrastive loss of PCME: is this a pair, asked of every image and caption."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import softplus

from gaussmatch.losses.base import Reduction, check_reduction


@dataclass(frozen=True)
class SoftContrastive:
    """−2·(Σ over pairs of ln P + Σ over negatives of ln(1 − P)), where a score is ln P/(1 − P).

    So −ln P = softplus(−score) and −ln(1 − P) = softplus(score). The factor is the published one:
    every combination is counted from the image's side and from the caption's. What is neither the
    own pair nor a negative (another caption of the same image) is not asked.

    Args:
        reduction: ``sum`` (published), or ``mean`` over the n² combinations.

    >>> import torch
    >>> sure = torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
    >>> negative = torch.tensor([[False, True], [True, False]])
    >>> SoftContrastive()(torch.zeros(2, 2), negative), SoftContrastive()(sure, negative)
    ({'soft_contrastive': tensor(5.5452)}, {'soft_contrastive': tensor(0.0010)})
    """

    name: ClassVar[str] = "soft_contrastive"

    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        check_reduction(self.reduction)

    def __call__(
        self, scores: Float[Tensor, "n n"], negative: Bool[Tensor, "n n"]
    ) -> dict[str, Tensor]:
        pairs = softplus(-scores.diagonal()).sum()
        others = softplus(scores).masked_fill(~negative, 0).sum()
        return {self.name: 2 * (pairs + others) / self._terms(len(scores))}

    def collapsed_value(self, batch: int) -> float:
        """The least that one probability for all can reach: that of a guess, P = 1/n."""
        others = -batch * (batch - 1) * math.log1p(-1 / batch) if batch > 1 else 0.0
        return 2 * (batch * math.log(batch) + others) / self._terms(batch)

    def _terms(self, batch: int) -> int:
        return 1 if self.reduction == "sum" else batch**2
