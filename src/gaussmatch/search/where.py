"""Conditions on metadata: written once, evaluated on a dict, by sorted columns, or by another
store."""

from __future__ import annotations

import math
import operator
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gaussmatch.checks import did_you_mean

Scalar = str | int | float | bool | None

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_ODD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
OPERATORS = ("in", "not", *_ORDER)


@dataclass(frozen=True)
class Condition:
    """One field compared with one value, or with any of several; an order (``gte``, …) with one
    text, one number or one of each, whichever the item has.

    ``types`` of the values follow from them, and keep apart what Python holds equal: 1 and True.
    """

    field: str
    operator: str
    values: tuple[Scalar, ...]
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", tuple(map(value_type, self.values)))


@dataclass(frozen=True)
class Where:
    """All conditions must hold. Text, numbers and truth values never equal each other; a field
    that is not there counts as ``None``, which only a condition that names ``None`` finds: "not"
    finds items that have the field, with another value. Only like can be ordered with like. Texts
    are ordered letter by letter, so that ISO dates are ordered in time:
    ``{"taken": {"gte": "2023-05"}}``.

    >>> where = Where.of({"split": "test", "year": {"gte": 2010, "lt": 2020}, "by": ["ann", "bo"]})
    >>> where.holds({"split": "test", "year": 2014, "by": "bo"})
    True
    >>> where.holds({"split": "test", "year": "2014", "by": "bo"})
    False
    """

    conditions: tuple[Condition, ...] = ()

    @staticmethod
    def of(spec: Mapping[str, Any] | Where | None) -> Where:
        """From ``{field: value | [values] | {"in" | "not" | "gt" | "gte" | "lt" | "lte": …}}``."""
        if isinstance(spec, Where):
            return spec
        if spec is not None and not isinstance(spec, Mapping):
            raise TypeError(
                f"filter: {spec!r} is not a mapping; write it as {{'split': 'test'}} or "
                "{'taken': {'gte': '2023-05'}}"
            )
        found = []
        for key, wanted in (spec or {}).items():
            if not isinstance(key, str) or not key or any(c in '"\\' or c < " " for c in key):
                raise ValueError(f"filter: {key!r} is not a field name")
            comparisons = wanted if isinstance(wanted, Mapping) else {"in": wanted}
            strange = [name for name in comparisons if name not in OPERATORS]
            if strange or not comparisons:
                names = ", ".join(OPERATORS)
                raise ValueError(f"filter on {key!r}: no comparison {strange}; choose {names}")
            for name, value in comparisons.items():
                several = isinstance(value, Sequence | set) and not isinstance(value, str)
                values = tuple(value) if several else (value,)
                for v in values:
                    _check(key, name, v)
                if name in _ORDER and (not values or len({*map(value_type, values)}) < len(values)):
                    raise ValueError(f"filter on {key!r}: {name} needs one text or one number")
                found.append(Condition(key, name, values))
        return Where(tuple(found))

    @property
    def fields(self) -> list[str]:
        return [c.field for c in self.conditions]

    @property
    def needed(self) -> list[str]:
        """The fields that an item must have: those of all conditions but such as find ``None``."""
        return [c.field for c in self.conditions if not _holds(c, None)]

    def holds(self, meta: Mapping[str, Any]) -> bool:
        return all(_holds(c, meta.get(c.field)) for c in self.conditions)


class UnknownFieldError(ValueError):
    """A condition on a field that no item has."""


def unknown_field(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """A sentence about the first field that no item has, if there is one.

    >>> unknown_field(["folder", "yeer"], ["folder", "year"])
    ["no item has a field 'yeer'; did you mean 'year'? The fields are folder, year"]
    >>> unknown_field(["year"], [])
    ["no item has a field 'year'. The items have no fields"]
    """
    for name in names:
        if name not in known:
            hint = f"; {near}" if (near := did_you_mean(name, known)) else "."
            listed = f"The fields are {', '.join(known)}" if known else "The items have no fields"
            return [f"no item has a field {name!r}{hint} {listed}"]
    return []


def _check(field: str, name: str, value: Any) -> None:
    strange = isinstance(value, float) and not math.isfinite(value)
    if strange or not (value is None or isinstance(value, str | int | float | bool)):
        raise ValueError(f"filter on {field!r}: {value!r} is neither text nor a number")
    if isinstance(value, str) and _ODD.search(value):
        raise ValueError(f"filter on {field!r}: {value!r} holds a control character")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"filter on {field!r}: {value} does not fit 64 bits")
    if name in _ORDER and value_type(value) not in ("text", "number"):
        raise ValueError(f"filter on {field!r}: {name} needs text or a number, not {value!r}")


def value_type(value: Any) -> str:
    """null, truth, number, text or other: what is compared with what."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _holds(c: Condition, value: Any) -> bool:
    if c.operator in _ORDER:
        holds = _ORDER[c.operator]
        return any(value_type(value) == value_type(v) and holds(value, v) for v in c.values)
    found = any(value_type(value) == value_type(v) and value == v for v in c.values)
    return value is not None and not found if c.operator == "not" else found


class MetadataColumn:
    """One field of the metadata of many items, sorted: the rows that have a value, or one of a
    range of values, are one slice. Four bytes an item, and each distinct value once.

    >>> years = MetadataColumn([("number", 2019), ("null", None), ("number", 2021), ("text", "2")])
    >>> years.mask(Condition("year", "gte", (2020,)))
    array([False, False,  True, False])
    """

    def __init__(self, items: Iterable[tuple[str, Scalar]]) -> None:
        """From type and value of each item, see ``value_type``."""
        codes: dict[tuple[str, Scalar], int] = {}
        coded = np.array([codes.setdefault(item, len(codes)) for item in items], dtype=np.int32)
        self._values: dict[str, list[Any]] = {}
        for type_, value in codes:
            self._values.setdefault(type_, []).append(value)
        for type_, values in self._values.items():
            if type_ not in ("null", "other"):
                values.sort()
        ordered = [(type_, value) for type_, values in self._values.items() for value in values]
        place = np.empty(len(codes), dtype=np.int32)
        place[[codes[each] for each in ordered]] = np.arange(len(codes))
        self._rows = np.argsort(place[coded], kind="stable").astype(np.int32)
        counts = np.bincount(place[coded], minlength=len(codes))
        self._starts = np.concatenate([[0], counts.cumsum()])

    def mask(self, c: Condition) -> np.ndarray:
        """(items), for which of them a condition holds."""
        found = np.zeros(len(self._rows), dtype=bool)
        away = c.operator == "not"
        wanted = [*zip(c.values, c.types, strict=True), *([(None, "null")] if away else [])]
        for value, type_ in wanted:
            for first, last in self._span(c.operator, value, type_):
                found[self._rows[self._starts[first] : self._starts[last]]] = True
        return ~found if away else found

    def _span(self, name: str, value: Scalar, type_: str) -> Iterator[tuple[int, int]]:
        """From which distinct value to which, if there are any of the type."""
        first = 0
        for own, values in self._values.items():
            if own == type_:
                last, low, high = len(values), 0, len(values)
                if type_ != "null":
                    low, high = bisect_left(values, value), bisect_right(values, value)
                spans = {"gt": (high, last), "gte": (low, last), "lt": (0, low), "lte": (0, high)}
                start, stop = spans.get(name, (low, high))
                yield first + start, first + stop
            first += len(values)
