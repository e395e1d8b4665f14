"""What the training loop needs of a loss over the score matrix of a batch."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

Reduction = Literal["sum", "mean"]


class ScoreLoss(Protocol):
    """The scores of a batch of n pairs → named terms, of which ``name`` is its own.

    Args:
        image_queries: (n, n) images × captions, as image queries are scored; row k and column k
            belong together.
        caption_queries: the same as caption queries are scored, also images × captions: the same
            tensor unless the similarity depends on the direction (``Similarity.both_ways``).
        negative: (n, n), true where an image and a caption are no match.

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
