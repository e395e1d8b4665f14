"""The hinge triplet ranking loss over a batch, the paper's equation (hinge_loss)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gaussmatch.core.losses.base import Reduction, check_reduction

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


def _semi_hard(scores: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The negatives below the positive; in a row without any, only the least similar one."""
    below = negative & (scores < positive[:, None])
    least = scores.masked_fill(~negative, torch.inf).argmin(-1, keepdim=True)
    fallback = torch.zeros_like(negative).scatter_(-1, least, True) & negative
    return torch.where(below.any(-1, keepdim=True), below, fallback)
