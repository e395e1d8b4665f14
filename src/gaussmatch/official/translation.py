"""An official model in our terms: what each system's module makes of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gaussmatch.official.options import OfficialOptions
from gaussmatch.official.weights import Weights
from gaussmatch.recipe import Recipe


@dataclass(frozen=True)
class Translation:
    """An official model in our terms.

    Args:
        recipe: what it is and how it was trained.
        weights: under our names.
        options: of their training, all read that we know.
        words: its vocabulary, where the checkpoint holds it.
        told: what their training says of it, such as its epoch and its score.
    """

    recipe: Recipe
    weights: Weights
    options: OfficialOptions
    words: list[str] | None
    told: dict[str, Any]


class System(Protocol):
    """A module that reads the checkpoints of one official code."""

    def recognises(self, checkpoint: Mapping[str, Any]) -> bool:
        """Whether a checkpoint is of this code, by its layout and the names of its weights."""

    def translate(self, checkpoint: Mapping[str, Any], where: str) -> Translation:
        """The model; a ``ValueError`` where it cannot be reproduced here."""


def plain(value: object) -> int | float | str | None:
    """A value for JSON, or none."""
    return value if isinstance(value, int | float | str) else None
