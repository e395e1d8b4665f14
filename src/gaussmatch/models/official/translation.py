"""An official model in our terms: what each system's module makes of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gaussmatch.models.official.weights import Weights
from gaussmatch.models.recipe import Recipe


@dataclass(frozen=True)
class Translation:
    """An official model in our terms.

    Args:
        recipe: what it is and how it was trained.
        weights: under our names.
        options: of their training, all read that we know.
        words: its vocabulary, where the checkpoint holds it.
        training: what their training recorded, such as its epoch and its score.
    """

    recipe: Recipe
    weights: Weights
    options: OfficialOptions
    words: list[str] | None
    training: dict[str, Any]


class System(Protocol):
    """A module that reads the checkpoints of one official code."""

    def recognises(self, checkpoint: Mapping[str, Any]) -> bool:
        """Whether a checkpoint is of this code, by its layout and the names of its weights."""

    def translate(self, checkpoint: Mapping[str, Any], where: str) -> Translation:
        """The model; a ``ValueError`` where it cannot be reproduced here."""


def plain(value: object) -> int | float | str | None:
    """A value for JSON, or none."""
    return value if isinstance(value, int | float | str) else None


T = TypeVar("T", int, float, str, bool)


class OfficialOptions:
    """The options of a checkpoint, read one by one.

    Args:
        values: by name.
        where: the checkpoint, for errors.
        harmless: names that change no result of a trained model: paths, logging, workers.
    """

    def __init__(self, values: object, where: str, harmless: Collection[str]) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}: holds no options of its training")
        self._values: Mapping[str, Any] = values
        self._where, self._read = where, set(harmless)

    def get(self, name: str, default: T) -> T:
        """An option, or its default where the checkpoint is older than the option."""
        self._read.add(name)
        value = self._values.get(name, default)
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise ValueError(
                f"{self._where}: option {name} is {value!r}, which is no {_type_name(default)}"
            )
        return value

    def require(self, name: str, wanted: T, why: str) -> None:
        """Refuse a checkpoint whose option is another than the one that we can reproduce."""
        if self.get(name, wanted) != wanted:
            raise ValueError(
                f"{self._where}: trained with {name} = {self._values[name]!r}, which cannot be "
                f"reproduced here: {why}"
            )

    def agree(self, name: str, found: int) -> int:
        """A width that the weights have; an option that says otherwise is an error."""
        if self.get(name, found) != found:
            raise ValueError(
                f"{self._where}: option {name} is {self._values[name]}, "
                f"but its weights have {found}"
            )
        return found

    @property
    def unread(self) -> list[str]:
        """Options that no system reads: perhaps of a fork, perhaps of consequence."""
        return sorted(str(name) for name in self._values if name not in self._read)


def _type_name(value: object) -> str:
    return {"bool": "truth value", "int": "whole number", "float": "number"}.get(
        type(value).__name__, "text"
    )
