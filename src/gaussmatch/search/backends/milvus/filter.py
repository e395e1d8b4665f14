"""Conditions on metadata as a Milvus expression: on ``facts`` in a JSON field of that name, or on
the columns of declared fields: ``metaN``, with ``hasN`` as not every version knows null."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from gaussmatch.search.backends.database import TYPES, type_of
from gaussmatch.search.where import Condition, Scalar, Where

FACTS = "facts"
Columns = Mapping[str, tuple[str, int]]
NONE: Columns = {}
ALWAYS, NEVER = 'id != ""', "id in []"
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_UNSAFE = re.compile(r"""[%"'\\\x00-\x1f]""")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def expression(where: Where, columns: Columns = NONE) -> str:
    """All conditions; the empty text if there are none.

    Args:
        columns: declared field → its type (see ``facts``) and the number of its column.

    >>> expression(Where.of({"by": 'a" or 1 == 1 or "', "year": {"gte": 2010}}))
    '(facts["t:by"] == "a\\\\" or 1 == 1 or \\\\"") and facts["n:year"] >= 2010'
    >>> expression(Where.of({"year": {"gte": 2010}}), {"year": ("n", 0)})
    '(has0 == true and meta0 >= 2010)'
    """
    return " and ".join(_condition(c, columns) for c in where.conditions)


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


def _condition(c: Condition, columns: Columns) -> str:
    if c.operator in _SIGNS:
        parts = [_compared(c.field, _SIGNS[c.operator], v, columns) for v in c.values]
        return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"
    if c.operator == "in":
        parts = [_equal(c.field, v, columns) for v in c.values]
        return f"({' or '.join(parts)})" if parts else NEVER
    # a fact of another type is not there, and so not equal: said so, as null swallows "not"
    there = f"({' or '.join(_exists(c.field, type_, columns) for type_ in TYPES)})"
    return " and ".join(
        [there, *(_different(c.field, v, columns) for v in c.values if v is not None)]
    )


def _equal(field: str, value: Scalar, columns: Columns) -> str:
    if value is None:
        return f"({' and '.join(f'not {_exists(field, type_, columns)}' for type_ in TYPES)})"
    return _compared(field, "==", value, columns)


def _different(field: str, value: Scalar, columns: Columns) -> str:
    there = _exists(field, type_of(value), columns)
    return f"(not {there} or {_compared(field, '!=', value, columns)})"


def _compared(field: str, sign: str, value: Scalar, columns: Columns) -> str:
    type_ = type_of(value)
    if field not in columns:
        return f"{_fact(field, type_)} {sign} {_value(value)}"
    own, number = columns[field]
    if own != type_:
        return NEVER
    return f"(has{number} == true and meta{number} {sign} {_value(value)})"


def _exists(field: str, type_: str, columns: Columns) -> str:
    """Between brackets: without them a server takes it for no truth value that can be joined."""
    if field not in columns:
        return f"(exists {_fact(field, type_)})"
    own, number = columns[field]
    return f"(has{number} == true)" if own == type_ else f"({NEVER})"


def _fact(field: str, type_: str) -> str:
    return f"{FACTS}[{quoted(f'{type_}:{field}')}]"


def _value(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(value)
