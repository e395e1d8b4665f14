"""Conditions on metadata: said once, asked of a dict, of SQLite, or of another store."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Scalar = str | int | float | bool | None

_ORDER: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "gte": (">=", operator.ge),
    "lt": ("<", operator.lt),
    "lte": ("<=", operator.le),
}
OPERATORS = ("in", "not", *_ORDER)


@dataclass(frozen=True)
class Condition:
    """One field compared with one value, or with several (``in``, ``not``)."""

    field: str
    operator: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class Where:
    """All conditions must hold. Text, numbers and truth values never equal each other; a field
    that is not there counts as ``None``; only like can be ordered with like.

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
        for field, wanted in (spec or {}).items():
            if not isinstance(field, str) or not field or '"' in field:
                raise ValueError(f"filter: {field!r} is no name of a field")
            for name, value in _asked(field, wanted).items():
                several = name in ("in", "not") and isinstance(value, Sequence | set)
                values = tuple(value) if several and not isinstance(value, str) else (value,)
                for v in values:
                    _check(field, name, v)
                found.append(Condition(field, name, values))
        return Where(tuple(found))

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


def _asked(field: str, wanted: Any) -> Mapping[str, Any]:
    if isinstance(wanted, Mapping):
        strange = [name for name in wanted if name not in OPERATORS]
        if strange or not wanted:
            raise ValueError(
                f"filter on {field!r}: no comparison {strange}; choose {', '.join(OPERATORS)}"
            )
        return wanted
    return {"in": wanted}


def _check(field: str, name: str, value: Any) -> None:
    if not (value is None or isinstance(value, str | int | float | bool)) or value != value:
        raise ValueError(f"filter on {field!r}: {value!r} is neither text nor a number")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError(f"filter on {field!r}: {value} does not fit 64 bits")
    if name in _ORDER and _kind(value) not in ("text", "number"):
        raise ValueError(f"filter on {field!r}: {name} needs text or a number, not {value!r}")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _holds(c: Condition, value: Any) -> bool:
    if c.operator in _ORDER:
        wanted = c.values[0]
        return _kind(value) == _kind(wanted) and _ORDER[c.operator][1](value, wanted)
    found = any(_kind(value) == _kind(v) and value == v for v in c.values)
    return found != (c.operator == "not")


_TYPES = {"text": "('text')", "number": "('integer', 'real')"}


def _sql(c: Condition, column: str) -> tuple[str, list[Scalar]]:
    path: Scalar = f'$."{c.field}"'
    if c.operator in _ORDER:
        types, sign = _TYPES[_kind(c.values[0])], _ORDER[c.operator][0]
        return (
            f"(coalesce(json_type({column}, ?), '') IN {types} "
            f"AND json_extract({column}, ?) {sign} ?)"
        ), [path, path, c.values[0]]
    parts: list[str] = []
    values: list[Scalar] = []
    for v in c.values:
        kind = _kind(v)
        if kind == "null":
            parts.append(f"coalesce(json_type({column}, ?), 'null') = 'null'")
            values += [path]
        elif kind == "truth":
            parts.append(f"coalesce(json_type({column}, ?), '') = ?")
            values += [path, "true" if v else "false"]
        else:
            parts.append(
                f"(coalesce(json_type({column}, ?), '') IN {_TYPES[kind]} "
                f"AND json_extract({column}, ?) = ?)"
            )
            values += [path, path, v]
    text = f"({' OR '.join(parts) or '0'})"
    return (f"NOT {text}" if c.operator == "not" else text), values
