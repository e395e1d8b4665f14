"""Checks that several sections of a recipe share."""

from __future__ import annotations

from collections.abc import Iterable

from gaussmatch.suggest import did_you_mean


def positive(section: str, recipe: object, *names: str) -> None:
    """Refuse fields of a section that are not above zero."""
    for name in names:
        if getattr(recipe, name) <= 0:
            raise ValueError(f"{section}.{name} must be positive, got {getattr(recipe, name)}")


def known(field: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is not in a registry, with the nearest that is.

    >>> known("model.similarity", "wassertein", ["kl", "wasserstein"])
    Traceback (most recent call last):
    ValueError: model.similarity 'wassertein' is not known; did you mean 'wasserstein'?
    """
    choices = list(names)
    if name not in choices:
        hint = did_you_mean(name, choices) or f"choose {', '.join(choices)}"
        raise ValueError(f"{field} {name!r} is not known; {hint}")
