"""Checks that several sections of a recipe share."""

from __future__ import annotations


def positive(section: str, recipe: object, *names: str) -> None:
    """Refuse fields of a section that are not above zero."""
    for name in names:
        if getattr(recipe, name) <= 0:
            raise ValueError(f"{section}.{name} must be positive, got {getattr(recipe, name)}")
