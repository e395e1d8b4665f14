"""An index in PostgreSQL with pgvector: ``postgresql://host/database#NAME``.

Tables NAME_images and NAME_captions are made when their first items come; NAME_about keeps the
files of the index. Every change is one transaction, and ``pg_dump`` makes a backup. Items are
copied in, and ``compact`` builds the graph of all at once; from then on PostgreSQL keeps it up to
date, row by row. Columns are those of ``database``; a declared field is the indexed column
``meta:NAME``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search.backend import Block
from gaussmatch.search.backends import database
from gaussmatch.search.backends.database import Database, Near, Row, RowsView, gaussian, record
from gaussmatch.search.backends.session import ALL, NEVER, Session, Sql, joined, parsed, q
from gaussmatch.search.lift import SAMPLE, Lift
from gaussmatch.search.manifest import (
    GALLERIES,
    MANIFEST,
    Gallery,
    IndexManifest,
    Record,
    SegmentInfo,
)
from gaussmatch.search.where import Condition, Where

with extra("postgres", "an index in PostgreSQL"):
    import psycopg
    from psycopg.sql import Identifier as Name
    from psycopg.types.json import Jsonb

PROBE = 3  # seconds in which a server that is up says so
BLOCK = 1000  # rows read at a time
VECTOR, HALFVEC, WIDEST = 2000, 4000, 1000
"""Numbers that pgvector indexes in float32 and in float16, and candidates of one walk."""
TYPES = {"text": 'text COLLATE "C"', "number": "numeric", "truth": "bool"}
SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "in": "=", "not": "="}


class Postgres(Database):
    """Any number of processes read and write over a network, one writer at a time. Similarities
    without a lift are refused."""

    def _connect(self, make: bool) -> Callable[[], None]:
        self._session = Session(*parsed(self.place))
        self._do, self._run = self._session.do, self._session.run
        return self._session.close

    def _create(self, files: Mapping[str, bytes]) -> None:
        def make() -> None:
            self._do(q("CREATE EXTENSION IF NOT EXISTS vector"))
            self._session.know_vectors()
            columns = q("name text PRIMARY KEY, content bytea NOT NULL")
            self._do(q("CREATE TABLE {} ({})", self._table("about"), columns))
            self._write(files)

        try:
            self._run(make)
        except psycopg.errors.DuplicateTable as error:
            raise self._taken() from error

    def alive(self) -> bool:
        with suppress(psycopg.Error), psycopg.connect(self._session.uri, connect_timeout=PROBE):
            return True
        return False

    def stale(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn)

    def drop(self) -> None:
        tables = [*(gallery for gallery in GALLERIES if self._has(gallery)), "about"]
        self._do(q("DROP TABLE {}", joined(map(self._table, tables))))
        self.close()

    def _table(self, what: str) -> Name:
        return Name(f"{self._session.name}_{what}")

    # ---- read ----

    def _read(self, name: str, fresh: bool = True) -> bytes | None:
        query = q("SELECT content FROM {} WHERE name = {}", self._table("about"), name)
        with suppress(psycopg.errors.UndefinedTable):
            return next((bytes(row["content"]) for row in self._do(query)), None)
        return None

    def size(self, gallery: Gallery) -> int:
        return int(self._read(f"{gallery}/{database.COUNT}") or 0)

    def some(self, most: int, gallery: Gallery) -> Block | None:
        """As their hashes fall."""
        text, columns = "SELECT {} FROM {} ORDER BY hashtext(id), id LIMIT {}", database.ITEM
        query = q(text, joined(map(Name, columns)), self._table(gallery), most)
        rows = self._do(query) if self._has(gallery) else []
        return (gaussian(rows, self._form), [*map(record, rows)]) if rows else None

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Collection[str]
    ) -> Sequence[RowsView]:
        found = [condition(c, self.settings.fields) for c in where.conditions]
        found += [q("NOT ({})", among([*exclude]))] if exclude else []
        all_ = joined(found, " AND ") if found else ALL
        return [TableView(self, gallery, all_)] if self._has(gallery) else []

    def _settled(self, gallery: Gallery) -> RowsView:
        return TableView(self, gallery, ALL)

    def _count(self, gallery: Gallery, where: Sql = ALL) -> int:
        found = self._do(q("SELECT count(*) FROM {} WHERE {}", self._table(gallery), where))
        return int(found[0]["count"])

    def _pages(
        self,
        gallery: Gallery,
        columns: Sequence[str],
        ids: Sequence[str] | None = None,
        fresh: bool = True,
        where: Sql = ALL,
    ) -> Iterator[Sequence[Row]]:
        if self._has(gallery):
            where = where if ids is None else among(ids)
            yield from self._rows(self._table(gallery), columns, where)

    def _rows(self, table: Name, columns: Iterable[str], where: Sql) -> Iterator[Sequence[Row]]:
        """By their ids."""
        text, last = "SELECT {} FROM {} WHERE {} AND id > {} ORDER BY id LIMIT {}", ""
        wanted = joined(map(Name, columns))
        while rows := self._do(q(text, wanted, table, where, last, BLOCK)):
            yield rows
            last = rows[-1]["id"]

    # ---- change ----

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._session.alone(self.wait, self.place):
            self._see(self._read_manifest())
            yield

    def _write(self, files: Mapping[str, bytes]) -> None:
        values = joined(q("({}, {})", *file) for file in files.items())
        text = (
            "INSERT INTO {} VALUES {} ON CONFLICT (name) DO UPDATE SET content = excluded.content"
        )
        self._do(q(text, self._table("about"), values))

    def _change(self, manifest: IndexManifest, *steps: Callable[[], None]) -> None:
        """All or nothing; from then on the manifest counts."""
        new = manifest.next()

        def change() -> None:
            for step in steps:
                step()
            self._write({MANIFEST: new.dumps()})

        self._run(change)
        self._see(new)

    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        new, few = not self._has(gallery), gaussians[:SAMPLE]
        lift = Lift.of(self.similarity(gallery), gallery, few) if new else self._lift(gallery)
        put = partial(self._put, gallery, gaussians, records, lift)
        if new:
            part = SegmentInfo(gallery, len(few), "flat")
            first = self.manifest.with_parts(gallery, [part], form)
            self._change(first, partial(self._make, gallery, lift), put)
        else:
            self._run(put)

    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        self._run(lambda: self._remove(gallery, ids))

    def _remove(self, gallery: Gallery, ids: Sequence[str], more: int = 0) -> None:
        gone = self._do(q("DELETE FROM {} WHERE {} RETURNING 1", self._table(gallery), among(ids)))
        self._tally(gallery, more - len(gone))

    def _tally(self, gallery: Gallery, more: int) -> None:
        """Add to the noted number of items."""
        now = "convert_to((convert_from(content, 'UTF8')::bigint + {})::text, 'UTF8')"
        table, name = self._table("about"), f"{gallery}/{database.COUNT}"
        self._do(q("UPDATE {} SET content = {} WHERE name = {}", table, q(now, more), name))

    def _put(self, gallery: Gallery, g: Gaussian, records: Sequence[Record], lift: Lift) -> None:
        """In the place of those that are there."""
        self._remove(gallery, [item.id for item in records], len(records))
        columns, unsure = self._columns(lift), None if g.is_point else g.uncertainty().tolist()
        lifted, packed = lift.items(g), database.packed(g)
        table, types = self._table(gallery), [re.split(r"\W", t)[0] for t in columns.values()]
        text = q("COPY {} ({}) FROM STDIN (FORMAT BINARY)", table, joined(map(Name, columns)))
        with self._session.cursor.copy(text.text) as copy:
            copy.set_types(types)
            for n, item in enumerate(records):
                if "\x00" in item.id:
                    raise ValueError(f"the id {item.id!r} holds a zero byte; PostgreSQL refuses it")
                own = database.declared(item.id, item.meta, self.settings.fields).values()
                row = [item.id, packed[n].tobytes(), item.thumbnail, unsure and unsure[n]]
                row += [database.record_text(item), clean(database.facts(item.meta))]
                copy.write_row([*row, *(a[n] for a in lifted), *map(plain, own)])

    def _columns(self, lift: Lift) -> dict[str, str]:
        """Of the table of a gallery, with their types."""
        found = {"id": 'text COLLATE "C" PRIMARY KEY', "gaussian": "bytea NOT NULL"}
        found |= {"thumbnail": "bytea", "uncertainty": "float8"}
        found |= {"record": "text NOT NULL", "facts": "jsonb NOT NULL"}
        found |= {f"lift{n}": f"vector({len(u)}) NOT NULL" for n, u in enumerate(lift.centers)}
        return found | {f"meta:{name}": TYPES[t] for name, t in self.settings.fields.items()}

    def _declared(self, gallery: Gallery) -> dict[str, str]:
        return dict(json.loads(self._read(f"{gallery}/fields") or b"{}"))

    def _make(self, gallery: Gallery, lift: Lift) -> None:
        """An empty table, and what is noted of it."""
        table, fields = self._table(gallery), self.settings.fields
        for n, center in enumerate(lift.centers):
            indexed(n, len(center), self.settings.structure)  # refuses now what has no graph later
        columns = (q("{} {}", Name(n), q(type_)) for n, type_ in self._columns(lift).items())
        self._do(q("CREATE TABLE {} ({})", table, joined(columns)))
        for name in fields:
            self._do(q("CREATE INDEX ON {} ({})", table, Name(f"meta:{name}")))
        about = {database.COUNT: b"0", "fields": json.dumps(dict(fields)).encode()}
        noted = {f"{gallery}/{name}": content for name, content in about.items()}
        self._write({**self._lift_file(gallery, lift), **noted})

    def _again(self, gallery: Gallery, lift: Lift, typical: int) -> None:
        """Into a new table, which takes the place of the old one."""
        table, old = self._table(gallery), self._table(f"{gallery}_old")

        def move() -> None:
            self._index(gallery, lift, "flat")  # names of indexes would stay behind
            self._do(q("ALTER TABLE {} RENAME TO {}", table, old))
            self._make(gallery, lift)
            for rows in self._rows(old, [*database.ITEM, "thumbnail"], ALL):
                self._put(gallery, gaussian(rows, self._form), [*map(record, rows)], lift)
            self._do(q("DROP TABLE {}", old))

        part = SegmentInfo(gallery, typical, "flat")
        self._change(self.manifest.with_parts(gallery, [part]), move)

    def _restructure(self, gallery: Gallery, structure: str) -> None:
        """Others search on meanwhile."""
        part = replace(self.manifest.galleries[gallery][0], structure=structure)
        index = partial(self._index, gallery, self._lift(gallery), structure)
        self._change(self.manifest.with_parts(gallery, [part]), index)

    def _index(self, gallery: Gallery, lift: Lift, structure: str) -> None:
        links = min(self.settings.links, 100)
        build = min(max(self.settings.construction, 2 * links), 1000)
        how = q(f"WITH (m = {links}, ef_construction = {build})")
        for n, center in enumerate(lift.centers):
            name = self._table(f"{gallery}_lift{n}")
            self._do(q("DROP INDEX IF EXISTS {}", name))
            if structure != "flat":
                lifted, type_ = indexed(n, len(center), structure)
                ops, table = q(f"{type_}_{'ip' if lift.inner else 'l2'}_ops"), self._table(gallery)
                text = "CREATE INDEX {} ON {} USING hnsw (({}) {}) {}"
                self._do(q(text, name, table, lifted, ops, how))


class TableView(RowsView):
    """One search of a table; all rows meet ``where``."""

    def __init__(self, backend: Postgres, gallery: Gallery, where: Sql) -> None:
        part = backend.manifest.galleries[gallery][0]
        self.backend, self.gallery, self.where = backend, gallery, where
        self.structure = part.structure
        reach = backend.size(gallery) if where is ALL else backend._count(gallery, where)
        super().__init__(backend._lift(gallery), backend._form, reach, backend._width(part))

    def nearest(self, number: int, vectors: np.ndarray, count: int) -> list[list[Near]]:
        width = str(min(max(self.width, count), WIDEST))
        walk = {"hnsw.ef_search": width, "hnsw.iterative_scan": "relaxed_order"}
        sets = joined(q("set_config({}, {}, true)", *setting) for setting in walk.items())

        def search() -> list[list[Near]]:
            self.backend._do(q("SELECT {}", sets))
            return [self._one(number, v, count) for v in vectors]

        return self.backend._run(search)

    def _one(self, number: int, v: np.ndarray, count: int) -> list[Near]:
        inner = self.lift.inner
        unit = max(1.0, float(np.abs(v).max()) / 1000) if inner else 1.0  # a halfvec ends at 65,504
        lifted, type_ = indexed(number, len(v), self.structure)
        raw = q("{} {} {}::{}", lifted, q("<#>" if inner else "<->"), v / unit, q(type_))
        columns, table = joined(map(Name, database.TO_RANK)), self.backend._table(self.gallery)
        text = "SELECT {}, {} AS raw FROM {} WHERE {} ORDER BY raw LIMIT {}"
        rows = self.backend._do(q(text, columns, raw, table, self.where, count))
        near = [(row, -unit * row["raw"] if inner else row["raw"] ** 2) for row in rows]
        return sorted(near, key=lambda pair: pair[1], reverse=inner)

    def all(self) -> Iterator[Sequence[Row]]:
        return self.backend._pages(self.gallery, database.TO_RANK, where=self.where)


def indexed(number: int, width: int, structure: str) -> tuple[Sql, str]:
    """What is compared of a lift, and its type: in float16 if float32 cannot be indexed."""
    if structure == "flat" or (structure == "hnsw" and width <= VECTOR):
        return q(f"lift{number}"), "vector"
    if width > HALFVEC:
        raise ValueError(
            f"pgvector indexes vectors of up to {HALFVEC} numbers, and these have {width}; use "
            "structure flat, or keep the index in a folder"
        )
    return q(f"lift{number}::halfvec({width})"), "halfvec"


def among(ids: Sequence[str]) -> Sql:
    """No item has an id with a zero byte, and none can be asked for."""
    return q("id = ANY({})", [id_ for id_ in ids if "\x00" not in id_])


def condition(c: Condition, fields: Mapping[str, str]) -> Sql:
    """What ``Where`` says of metadata; ``not`` needs the field to be there, and also holds where a
    comparison is null, as with a value of another type."""
    values = [None, *c.values] if c.operator == "not" else c.values
    found = [_compared(c.field, q(SIGNS[c.operator]), value, fields) for value in values]
    any_ = joined(found or [NEVER], " OR ")
    return q("(({}) IS NOT TRUE)" if c.operator == "not" else "({})", any_)


def _compared(field: str, sign: Sql, value: Any, fields: Mapping[str, str]) -> Sql:
    type_, own, column = database.type_of(value), fields.get(field), Name(f"meta:{field}")
    key = f"{type_}:{field}"
    if value is None and own is None:
        return q("NOT facts ?| {}", [f"{t}:{field}" for t in database.TYPES])
    if value is None:
        return q("{} IS NULL", column)
    if own is not None:
        fits = database.DECLARED[own] == type_
        return q("{} {} {}", column, sign, plain(value)) if fits else NEVER
    if type_ == "t":
        return q('(facts ->> {}) COLLATE "C" {} {}', key, sign, value)
    return q("(facts -> {}) {} {}", key, sign, Jsonb(value))


def plain(value: Any) -> Any:
    """A number as exactly as ``numeric`` has it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return Decimal(int(value)) if value == int(value) else Decimal(repr(value))


def clean(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without zero bytes, which jsonb refuses: nobody can filter by them."""
    odd = {key for key, value in found.items() if isinstance(value, str) and "\x00" in value}
    kept = {key: value for key, value in found.items() if key not in odd and "\x00" not in key}
    return kept | {f"o:{key[2:]}": True for key in odd if "\x00" not in key}
