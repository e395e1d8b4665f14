"""Checks of user input, with advice: names, numbers, installed extras; and counts in words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

SCHEMA = {
    "extra": "forbid",
    "json_schema_serialization_defaults_required": True,
    "use_attribute_docstrings": True,
}
"""How pydantic reads these types: the strings below the fields become their descriptions."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """``"did you mean 'train'?"``, or an empty string if no name is close.

    >>> did_you_mean("trian", ["train", "search"])
    "did you mean 'train'?"
    >>> did_you_mean("fly", ["train", "search"])
    ''
    """
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""


def known(field: str, name: str, names: Iterable[str]) -> None:
    """Refuse a name that is not in a registry, suggesting the closest one.

    >>> known("model.similarity", "wassertein", ["kl", "wasserstein"])
    Traceback (most recent call last):
    ValueError: model.similarity 'wassertein' is not known; did you mean 'wasserstein'?
    """
    choices = list(names)
    if name not in choices:
        hint = did_you_mean(name, choices) or f"choose {', '.join(choices)}"
        raise ValueError(f"{field} {name!r} is not known; {hint}")


def counted(n: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "run"), counted(2000, "run")
    ('1 run', '2,000 runs')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def positive(section: str, recipe: object, *names: str) -> None:
    """Refuse fields of a recipe's section that are set but not above zero."""
    for name in names:
        value = getattr(recipe, name)
        if value is not None and value <= 0:
            raise ValueError(f"{section}.{name} must be positive, got {value}")


def not_negative(section: str, recipe: object, *names: str) -> None:
    """Refuse fields of a recipe's section that are below zero."""
    for name in names:
        if getattr(recipe, name) < 0:
            raise ValueError(f"{section}.{name} must not be negative, got {getattr(recipe, name)}")


def share(section: str, recipe: object, *names: str) -> None:
    """Refuse fields of a recipe's section that are not in [0, 1)."""
    for name in names:
        if not 0 <= getattr(recipe, name) < 1:
            raise ValueError(f"{section}.{name} must be in [0, 1), got {getattr(recipe, name)}")


@contextmanager
def extra(name: str, user: str) -> Iterator[None]:
    """Wraps the import of optional packages: if one is missing, the error says what to install.

    >>> with extra("ray", "Ray"):
    ...     import no_such_package
    Traceback (most recent call last):
    ImportError: Ray: No module named 'no_such_package'; pip install 'gaussmatch[ray]'
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{user}: {error}; pip install 'gaussmatch[{name}]'") from error
