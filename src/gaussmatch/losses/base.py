"""What the training loop needs of a loss over the score matrix of a batch."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

Reduction = Literal["sum", "mean"]


class ScoreLoss(Protocol):
    """Scores of n pairs — row k and column k belong together — and a mask of negatives → named
    terms, of which ``name`` is its own."""

    @property
    def name(self) -> str: ...

    def __call__(self, scores: Tensor, negative: Tensor) -> dict[str, Tensor]: ...

    def collapsed_value(self, batch: int) -> float:
        """Its value for a model that scores every pair alike."""
        ...


def check_reduction(reduction: str) -> None:
    if reduction not in ("sum", "mean"):
        raise ValueError(f"no reduction {reduction!r}; choose sum or mean")
