"""Conditions on metadata: written once, evaluated on a dict, by SQLite, or by another store."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gaussmatch.checks import did_you_mean

Scalar = str | int | float | bool | None

_ORDER: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "gte": (">=", operator.ge),
    "lt": ("<", operator.lt),
    "lte": ("<=", operator.le),
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
        object.__setattr__(self, "types", tuple(map(_type, self.values)))


@dataclass(frozen=True)
class Where:
    """All conditions must hold. Text, numbers and truth values never equal each other; a field
    that is not there counts as ``None``; only like can be ordered with like. Texts are ordered
    letter by letter, so that ISO dates are ordered in time: ``{"taken": {"gte": "2023-05"}}``.

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
        found = []
        for key, wanted in (spec or {}).items():
            if not isinstance(key, str) or not key or any(c in '"\\' or c < " " for c in key):
                raise ValueError(f"filter: {key!r} is no name of a field")
            for name, value in _comparisons(key, wanted).items():
                several = isinstance(value, Sequence | set) and not isinstance(value, str)
                values = tuple(value) if several else (value,)
                for v in values:
                    _check(key, name, v)
                if name in _ORDER and (not values or len({*map(_type, values)}) < len(values)):
                    raise ValueError(f"filter on {key!r}: {name} needs one text or one number")
                found.append(Condition(key, name, values))
        return Where(tuple(found))

    @property
    def fields(self) -> list[str]:
        return [c.field for c in self.conditions]

    def holds(self, meta: Mapping[str, Any]) -> bool:
        return all(_holds(c, meta.get(c.field)) for c in self.conditions)

    def sql(self, column: str = "meta") -> tuple[str, list[Scalar]]:
        """The same as an SQLite expression over a column of JSON, with its parameters."""
        parts: list[str] = []
        values: list[Scalar] = []
        for c in self.conditions:
            text, more = _sql(c, column)
            parts.append(text)
            values += more
        return " AND ".join(parts) or "1", values


def unknown_field(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """A sentence about the first field that no item has, if there is one.

    >>> unknown_field(["folder", "yeer"], ["folder", "year"])
    ["no item has a field 'yeer'; did you mean 'year'? The fields are folder, year"]
    """
    for name in names:
        if name not in known:
            hint = f"; {near}" if (near := did_you_mean(name, known)) else "."
            listed = ", ".join(known) or "none"
            return [f"no item has a field {name!r}{hint} The fields are {listed}"]
    return []


def _comparisons(field: str, wanted: Any) -> Mapping[str, Any]:
    if isinstance(wanted, Mapping):
        strange = [name for name in wanted if name not in OPERATORS]
        if strange or not wanted:
            raise ValueError(
                f"filter on {field!r}: no comparison {strange}; choose {', '.join(OPERATORS)}"
            )
        return wanted
    return {"in": wanted}


def _check(field: str, name: str, value: Any) -> None:
    strange = isinstance(value, float) and not math.isfinite(value)
    if strange or not (value is None or isinstance(value, str | int | float | bool)):
        raise ValueError(f"filter on {field!r}: {value!r} is neither text nor a number")
    if isinstance(value, str) and _ODD.search(value):
        raise ValueError(f"filter on {field!r}: {value!r} holds a control character")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"filter on {field!r}: {value} does not fit 64 bits")
    if name in _ORDER and _type(value) not in ("text", "number"):
        raise ValueError(f"filter on {field!r}: {name} needs text or a number, not {value!r}")


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _holds(c: Condition, value: Any) -> bool:
    if c.operator in _ORDER:
        holds = _ORDER[c.operator][1]
        return any(_type(value) == _type(v) and holds(value, v) for v in c.values)
    found = any(_type(value) == _type(v) and value == v for v in c.values)
    return found != (c.operator == "not")


_TYPES = {"text": "('text')", "number": "('integer', 'real')"}


def _sql(c: Condition, column: str) -> tuple[str, list[Scalar]]:
    path: Scalar = f'$."{c.field}"'
    parts: list[str] = []
    values: list[Scalar] = []
    if c.operator in _ORDER:
        for v in c.values:
            parts.append(
                f"(coalesce(json_type({column}, ?), '') IN {_TYPES[_type(v)]} "
                f"AND json_extract({column}, ?) {_ORDER[c.operator][0]} ?)"
            )
            values += [path, path, v]
        return f"({' OR '.join(parts)})", values
    if None in c.values:
        parts.append(f"coalesce(json_type({column}, ?), 'null') = 'null'")
        values += [path]
    if truths := sorted({str(v).lower() for v in c.values if isinstance(v, bool)}):
        parts.append(f"coalesce(json_type({column}, ?), '') IN ({', '.join('?' * len(truths))})")
        values += [path, *truths]
    for type_, types in _TYPES.items():
        # any number of values is one parameter
        if same := [v for v in c.values if _type(v) == type_]:
            parts.append(
                f"(coalesce(json_type({column}, ?), '') IN {types} "
                f"AND json_extract({column}, ?) IN (SELECT value FROM json_each(?)))"
            )
            values += [path, path, json.dumps(same)]
    text = f"({' OR '.join(parts) or '0'})"
    return (f"NOT {text}" if c.operator == "not" else text), values
