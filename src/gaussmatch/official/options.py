"""Their command-line options: each is used, known to change no result, or told of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

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
                f"{self._where}: option {name} is {value!r}, which is no {_kind(default)}"
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
        """Options that nobody asked for: perhaps of a fork, perhaps of consequence."""
        return sorted(str(name) for name in self._values if name not in self._read)


def _kind(value: object) -> str:
    return {"bool": "truth value", "int": "whole number", "float": "number"}.get(
        type(value).__name__, "text"
    )
