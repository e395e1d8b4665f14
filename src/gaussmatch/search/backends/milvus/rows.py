"""An item as a row of a Milvus collection, its schema, and conditions on rows as expressions.

Columns are those of ``database``. The id is written by ``key``; bytes are a VARCHAR of base64; a
declared field is ``metaN``, described by its name, with ``hasN`` as not every version knows null.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search.backends import database
from gaussmatch.search.backends.database import DECLARED, TYPES, Row, declared, facts, type_of
from gaussmatch.search.backends.milvus.client import pymilvus
from gaussmatch.search.lift import Lift
from gaussmatch.search.manifest import IndexSettings, Record
from gaussmatch.search.where import Condition, Scalar, Where

FACTS = "facts"
Columns = Mapping[str, tuple[str, int]]
"""Declared field → its type (see ``facts``) and the number of its column."""
NONE: Columns = {}
ALWAYS, NEVER = 'id != ""', "id in []"
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_UNSAFE = re.compile(r"""[%"'\\\x00-\x1f]""")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
ID, TEXT = 2048, 65_535  # bytes
CELLS = 1024
"""Of a compressed index; ``IndexSettings.search`` of them are looked at."""
BATCH_ROWS, BATCH_BYTES = 1000, 8 * 2**20
"""Of one upsert; Milvus takes messages of 64 MB, and small ones spread better."""
FIELDS = ("id", "lift0", "gaussian", "record", FACTS, "thumbnail")
"""By which a collection of ours is known."""


def schema(form: Mapping[str, int], lift: Lift, fields: Mapping[str, str], mmap: bool) -> Any:
    """Of a collection that holds Gaussians of this form.

    Args:
        mmap: have Milvus map what is read for a shortlist only from disk (``mmap.enabled`` of the
            fields); lifted vectors, and what is filtered by, are in memory.
    """
    milvus, types = pymilvus().MilvusClient, pymilvus().DataType
    found = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
    found.add_field("id", types.VARCHAR, is_primary=True, max_length=ID)
    for number, center in enumerate(lift.centers):
        found.add_field(f"lift{number}", types.FLOAT_VECTOR, dim=len(center))
    found.add_field("gaussian", types.VARCHAR, max_length=TEXT, mmap_enabled=mmap)
    if form["variances"]:
        found.add_field("uncertainty", types.DOUBLE)
    found.add_field("record", types.VARCHAR, max_length=TEXT, mmap_enabled=mmap)
    found.add_field(FACTS, types.JSON)
    for n, (name, wanted) in enumerate(fields.items()):
        type_, extra = {
            "text": (types.VARCHAR, {"max_length": TEXT}),
            "number": (types.DOUBLE, {}),
            "truth": (types.BOOL, {}),
        }[wanted]
        found.add_field(f"meta{n}", type_, description=name, **extra)
        found.add_field(f"has{n}", types.BOOL)
    found.add_field("thumbnail", types.VARCHAR, max_length=TEXT, mmap_enabled=mmap)
    return found


def columns(fields: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, int]]:
    """Which fields a collection has declared, from its description: see ``filter.expression``."""
    types = pymilvus().DataType
    letter = {types.VARCHAR: "t", types.DOUBLE: "n", types.BOOL: "b"}
    found = [field for field in fields if field["name"].startswith("meta")]
    return {f["description"]: (letter[f["type"]], int(f["name"][4:])) for f in found}


def declared_in(columns: Columns) -> dict[str, str]:
    """The same as ``IndexSettings.fields``."""
    names = {letter: name for name, letter in DECLARED.items()}
    return {name: names[type_] for name, (type_, _) in columns.items()}


def column_params(fields: Mapping[str, str]) -> Any:
    """How Milvus indexes the columns of declared fields: as it does by default."""
    params = pymilvus().MilvusClient.prepare_index_params()
    for n, wanted in enumerate(fields.values()):
        if wanted != "truth":
            params.add_index(f"meta{n}", index_type="")
    return params


def index_params(lift: Lift, structure: str, settings: IndexSettings) -> Any:
    """How Milvus indexes the lifted vectors."""
    params = pymilvus().MilvusClient.prepare_index_params()
    index_type, build = {
        "flat": ("FLAT", {}),
        "hnsw": ("HNSW", {"M": settings.links, "efConstruction": settings.construction}),
        "compressed": ("IVF_SQ8", {"nlist": CELLS}),
    }[structure]
    for number in range(len(lift.centers)):
        metric = "IP" if lift.inner else "L2"
        params.add_index(f"lift{number}", index_type=index_type, metric_type=metric, params=build)
    return params


def search_params(structure: str, width: int, count: int) -> dict[str, Any]:
    return {
        "flat": {},
        "hnsw": {"ef": max(width, count)},
        "compressed": {"nprobe": min(width, CELLS)},
    }[structure]


def rows(
    gaussians: Gaussian, records: Sequence[Record], lift: Lift, columns: Columns
) -> list[dict[str, Any]]:
    """Items as rows; one that Milvus cannot hold is refused by name."""
    fields = declared_in(columns)
    empty = {"t": "", "n": 0.0, "b": False}
    lifted, packed = lift.items(gaussians), database.packed(gaussians)
    unsure = None if gaussians.is_point else gaussians.uncertainty().double().tolist()
    found = []
    for n, record in enumerate(records):
        row: dict[str, Any] = {f"lift{i}": a[n] for i, a in enumerate(lifted)}
        row |= {
            "id": _fits(key(record.id), ID, f"the id {record.id!r}"),
            "gaussian": _fits(_base64(packed[n].tobytes()), TEXT, f"the Gaussian of {record.id!r}"),
            "record": _fits(database.record_text(record), TEXT, f"the metadata of {record.id!r}"),
            FACTS: facts({k: v for k, v in record.meta.items() if k not in fields}),
            "thumbnail": _thumbnail(record.thumbnail),
        }
        for name, value in declared(record.id, record.meta, fields).items():
            type_, number = columns[name]
            row[f"has{number}"] = value is not None
            row[f"meta{number}"] = empty[type_] if value is None else _column(value, record.id)
        if unsure is not None:
            row["uncertainty"] = unsure[n]
        found.append(row)
    return found


def batches(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Rows in upserts of moderate size."""
    batch: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        bytes_of = sum(map(_bytes, row.values()))
        if batch and (len(batch) == BATCH_ROWS or size + bytes_of > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += bytes_of
    if batch:
        yield batch


def row_of(stored: Row) -> Row:
    """As it is read: under its own id."""
    return {**stored, "id": id_of(stored["id"])}


def _thumbnail(jpeg: bytes | None) -> str:
    """Left out if it is too large for a VARCHAR: it is only there to be looked at."""
    text = _base64(jpeg or b"")
    return _Text(text if len(text) <= TEXT else "")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _column(value: Any, id: str) -> Any:
    """As its column holds it."""
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > 2**53:
            raise ValueError(f"{value} of {id!r} is too large for the column of a declared number")
        return float(value)
    return value


def _bytes(value: Any) -> int:
    """About what it takes in a message: to write a vector as text costs more than to send it."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, str) else len(str(value))


def _fits(text: str, limit: int, what: str) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise ValueError(f"{what} takes more than the {limit:,} bytes that Milvus holds")
    return _Text(text)


class _Text(str):
    """Goes through pymilvus in one piece: it means to check the texts of a list, and of a single
    one checks letter by letter, which was most of the time of an add."""

    def __iter__(self) -> Iterator[str]:
        yield str(self)


def expression(where: Where, columns: Columns = NONE) -> str:
    """All conditions; the empty text if there are none.

    >>> expression(Where.of({"by": 'a" or 1 == 1 or "', "year": {"gte": 2010}}))
    '(facts["t:by"] == "a\\\\" or 1 == 1 or \\\\"") and (facts["n:year"] >= 2010)'
    >>> expression(Where.of({"year": {"gte": 2010}}), {"year": ("n", 0)})
    '((has0 == true and meta0 >= 2010))'
    """
    return " and ".join(f"({_condition(c, columns)})" for c in where.conditions)


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
    there = {type_: _exists(c.field, type_, columns) for type_ in TYPES}
    if c.operator != "not":
        sign = _SIGNS.get(c.operator, "==")
        absent = " and ".join(f"not {found}" for found in there.values())
        parts = (
            f"({absent})" if v is None else _compared(c.field, sign, v, columns) for v in c.values
        )
        return " or ".join(parts) or NEVER
    # a fact of another type is not there, and so not equal: said so, as null swallows "not"
    differs = (
        f"(not {there[type_of(v)]} or {_compared(c.field, '!=', v, columns)})"
        for v in c.values
        if v is not None
    )
    return " and ".join([f"({' or '.join(there.values())})", *differs])


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
