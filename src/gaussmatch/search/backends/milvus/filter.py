"""Conditions on metadata as a Milvus expression.

Each text, number and truth value of an item is kept a second time, under a name that states its
type, in the JSON field ``facts``: ``{"t:split": "test", "n:year": 2014, "b:mine": true}``; what is
neither (a list, an object) leaves ``"o:NAME": true``. So a comparison only ever meets its own type,
and no answer hangs on how a store compares 1 with "1" or true, or treats null and what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from gaussmatch.search.where import Condition, Scalar, Where

FACTS = "facts"
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_UNSAFE = re.compile(r"""[%"'\\\x00-\x1f]""")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What can be filtered by.

    >>> facts({"split": "test", "year": 2014, "tags": ["a"], "by": None})
    {'t:split': 'test', 'n:year': 2014, 'o:tags': True}
    """
    found: dict[str, Any] = {}
    for name, value in meta.items():
        if value is not None:
            value = _within_64_bits(value)
            type_ = _type(value)
            found[f"{type_}:{name}"] = True if type_ == "o" else value
    return found


def expression(where: Where) -> str:
    """All conditions; the empty text if there are none.

    >>> expression(Where.of({"by": 'a" or 1 == 1 or "', "year": {"gte": 2010}}))
    '(facts["t:by"] == "a\\\\" or 1 == 1 or \\\\"") and facts["n:year"] >= 2010'
    """
    return " and ".join(_condition(c) for c in where.conditions)


def ids(names: Sequence[str], *, inside: bool = True) -> str:
    """Items with (or without) these ids."""
    keys = ", ".join(quoted(key(name)) for name in names)
    return f"id {'in' if inside else 'not in'} [{keys}]"


def key(id: str) -> str:
    """An id as the primary key. pymilvus puts keys between quotes as they are, for one where it
    goes through a collection, so they hold nothing that ends a text or is an escape.

    >>> key("trip/Bob's.jpg"), id_of("trip/Bob%27s.jpg")
    ('trip/Bob%27s.jpg', "trip/Bob's.jpg")
    """
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", id)


def id_of(key: str) -> str:
    """The id that a primary key stands for."""
    return unquote(key) if "%" in key else key


def quoted(text: str) -> str:
    """A text that cannot end early. ``Where`` and ``key`` leave no other control characters in it.

    >>> print(quoted('say "hi" \\\\'))
    "say \\"hi\\" \\\\"
    """
    return '"' + "".join(_ESCAPES.get(c, c) for c in text) + '"'


def _condition(c: Condition) -> str:
    if c.operator in _SIGNS:
        sign = _SIGNS[c.operator]
        parts = [f"{_fact(c.field, _type(v))} {sign} {_value(v)}" for v in c.values]
        return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"
    parts = [_equal(c.field, v) for v in c.values]
    if c.operator == "in":
        return f"({' or '.join(parts)})" if parts else "id in []"
    # a fact of another type is not there, and so not equal: said so, as null swallows "not"
    there = f"({' or '.join(f'exists {_fact(c.field, type_)}' for type_ in 'tnbo')})"
    return " and ".join([there, *(_different(c.field, v) for v in c.values if v is not None)])


def _equal(field: str, value: Scalar) -> str:
    if value is None:
        return f"({' and '.join(f'not exists {_fact(field, type_)}' for type_ in 'tnbo')})"
    return f"{_fact(field, _type(value))} == {_value(value)}"


def _different(field: str, value: Scalar) -> str:
    fact = _fact(field, _type(value))
    return f"(not exists {fact} or {fact} != {_value(value)})"


def _fact(field: str, type_: str) -> str:
    return f"{FACTS}[{quoted(f'{type_}:{field}')}]"


def _within_64_bits(value: Any) -> Any:
    """A larger whole number as a float, or as something else where it is none either."""
    if not isinstance(value, int) or abs(value) < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return ()


def _type(value: Any) -> str:
    """text, number, boolean, or other."""
    if isinstance(value, bool):
        return "b"
    if isinstance(value, int | float):
        return "n"
    return "t" if isinstance(value, str) else "o"


def _value(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(value)
