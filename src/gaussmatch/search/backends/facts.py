"""Metadata as a database can filter it without ever mixing types.

Each text, number and truth value of an item is kept a second time, under a name that states its
type: ``{"t:split": "test", "n:year": 2014, "b:mine": true}``; what is neither (a list, an object)
leaves ``"o:NAME": true``. So a comparison only ever meets its own type, and no answer hangs on how
a store compares 1 with "1" or true, or treats null and what is missing. A field that the settings
declare has a column of its type instead, and refuses any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPES = "tnbo"
DECLARED = {"text": "t", "number": "n", "truth": "b"}
"""``IndexSettings.fields`` → how its facts begin."""


def facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What can be filtered by.

    >>> facts({"split": "test", "year": 2014, "tags": ["a"], "by": None})
    {'t:split': 'test', 'n:year': 2014, 'o:tags': True}
    """
    found: dict[str, Any] = {}
    for name, value in meta.items():
        if value is not None:
            value = _within_64_bits(value)
            type_ = type_of(value)
            found[f"{type_}:{name}"] = True if type_ == "o" else value
    return found


def declared(id: str, meta: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The values of declared fields, ``None`` where there is none.

    >>> declared("a", {"year": 2014}, {"year": "number", "by": "text"})
    {'year': 2014, 'by': None}
    """
    for name, wanted in fields.items():
        value = meta.get(name)
        if value is not None and type_of(value) != DECLARED[wanted]:
            raise ValueError(
                f"the field {name!r} is declared a {wanted}, and {id!r} has {value!r}; correct the "
                "item, or make the index without that field"
            )
    return {name: meta.get(name) for name in fields}


def type_of(value: Any) -> str:
    """text, number, boolean, or other."""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int | float):
        return "n"
    return "t" if isinstance(value, str) else "o"


def _within_64_bits(value: Any) -> Any:
    """A larger whole number as a float, or as something else where it is none either."""
    if not isinstance(value, int) or abs(value) < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return ()
