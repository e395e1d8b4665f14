"""The pairwise sigmoid loss, with the pseudo-positives of PCME++ as an option."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gaussmatch.core.losses.base import Reduction, check_reduction
from gaussmatch.core.losses.infonce import log_scale
from gaussmatch.core.losses.soft_contrastive import SoftContrastive, match_loss


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
        reduction: Reduction = "sum",
    ) -> None:
        super().__init__()
        check_reduction(reduction)
        if pseudo_positives < 0:
            raise ValueError(f"pseudo_positives must not be negative, got {pseudo_positives}")
        self.log_scale = log_scale(scale, learn_scale)
        self.bias = nn.Parameter(torch.tensor(bias))
        self.pseudo_positives, self.reduction = pseudo_positives, reduction

    def forward(
        self,
        image_queries: Float[Tensor, "n n"],
        caption_queries: Float[Tensor, "n n"],
        negative: Bool[Tensor, "n n"],
    ) -> dict[str, Tensor]:
        scale, count = self.log_scale.exp(), self._terms(len(negative))
        i2t, t2i = scale * image_queries + self.bias, (scale * caption_queries + self.bias).T
        plain = match_loss(i2t, negative) + match_loss(t2i, negative.T)
        terms = {self.name: plain / count}
        if self.pseudo_positives:
            pseudo = _pseudo_loss(i2t, negative) + _pseudo_loss(t2i, negative.T)
            terms["pseudo_positives"] = self.pseudo_positives * pseudo / count
        return terms

    def collapsed_value(self, batch: int) -> float:
        """The least that one probability for all can reach; the bias learns it."""
        return SoftContrastive().collapsed_value(batch) / self._terms(batch)

    def _terms(self, batch: int) -> int:
        return 1 if self.reduction == "sum" else batch


def _pseudo_loss(logits: Tensor, negative: Tensor) -> Tensor:
    """Negatives of a row that score at least as high as its own pair count as matches."""
    return match_loss(logits, negative, negative & (logits >= logits.diagonal()[:, None]))
