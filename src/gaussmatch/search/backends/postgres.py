"""An index in PostgreSQL with pgvector: ``postgresql://host/database#NAME``.

Tables NAME_images and NAME_captions are made when their first items come; NAME_about keeps the
files of the index. Every change is one transaction, and ``pg_dump`` makes a backup. Items are
copied in, and ``compact`` builds the graph of all at once; from then on PostgreSQL keeps it up to
date, row by row.

id            text, primary key
lift0, …      vector: the item by the similarity's own lift, standardized; minimum KL has two
gaussian      bytea: the float32 mean and log-variance, for an exact rescore
uncertainty   double precision: log det Σ; null for points
record        text: JSON of metadata and source, as they were given
facts         jsonb: what can be filtered by, see ``facts``
meta:NAME     a declared field in a column of its type, indexed
thumbnail     bytea: a JPEG, or null
"""

from __future__ import annotations

import json
import re
import struct
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search.backend import Block, IndexBusyError
from gaussmatch.search.backends import database
from gaussmatch.search.backends.database import Database, Near, Row, RowsView, gaussian, record
from gaussmatch.search.lift import FILE as LIFT
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
    from psycopg import sql
    from psycopg.adapt import Dumper
    from psycopg.pq import Format
    from psycopg.rows import dict_row
    from psycopg.types import TypeInfo
    from psycopg.types.json import Jsonb

PROBE = 3  # seconds in which a server that is up says so
BLOCK = 1000  # rows read at a time
VECTOR, HALFVEC, WIDEST = 2000, 4000, 1000
"""Numbers that pgvector indexes in float32 and in float16, and candidates of one walk."""
TYPES = {"text": 'text COLLATE "C"', "number": "numeric", "truth": "bool"}
SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "in": "=", "not": "="}
OF_ITEM, TO_RANK = "id, gaussian, record, thumbnail", "id, gaussian, uncertainty, record"
T = TypeVar("T")
Cursor = psycopg.Cursor[dict[str, Any]]
Filter = tuple[sql.Composable, list[Any]]
"""A condition and its parameters: values never become part of the text."""


def q(text: str, *parts: Any) -> sql.Composed:
    """SQL of our own with tables, columns or more SQL in the place of ``{}``."""
    return sql.SQL(text).format(*parts)


ALL: Filter = q("true"), []


class Postgres(Database):
    """Any number of processes read and write over a network, one writer at a time. Similarities
    without a lift are refused."""

    scans: ClassVar[bool] = False

    def __init__(self, place: str, session: Session) -> None:
        self._session, self._do, self._table = session, session.do, session.table
        self._lifts: dict[str, Lift] = {}
        super().__init__(place, session.close)

    @classmethod
    def open(cls, place: str) -> Self:
        return cls(place, Session(*parsed(place)))

    @classmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        session = Session(*parsed(place))

        def make(cursor: Cursor) -> None:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
            know_vectors(cursor.connection)
            columns = q("name text PRIMARY KEY, content bytea NOT NULL")
            cursor.execute(q("CREATE TABLE {} ({})", session.table("about"), columns))
            content = {name: path.read_bytes() for name, path in files.items()}
            session.put(cursor, {**content, MANIFEST: manifest.next().dumps()})

        try:
            session.run(make)
        except BaseException as error:
            session.close()
            if isinstance(error, psycopg.errors.DuplicateTable):
                text = f"{place} is an index already; add to it, or name another"
                raise FileExistsError(text) from error
            raise
        return cls(place, session)

    def alive(self) -> bool:
        with suppress(psycopg.Error), psycopg.connect(self._session.uri, connect_timeout=PROBE):
            return True
        return False

    def stale(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn)

    def drop(self) -> None:
        names = [*(g for g in GALLERIES if self._has(g)), "about"]
        self._do(q("DROP TABLE {}", sql.SQL(", ").join(map(self._table, names))))
        self.close()

    # ---- read ----

    def _read(self, name: str, fresh: bool = True) -> bytes | None:
        with suppress(psycopg.errors.UndefinedTable):
            query = q("SELECT content FROM {} WHERE name = %s", self._table("about"))
            return next((bytes(row["content"]) for row in self._do(query, [name])), None)
        return None

    def _write(self, files: Mapping[str, bytes]) -> None:
        self._session.run(lambda cursor: self._session.put(cursor, files))

    def _see(self, manifest: IndexManifest) -> bool:
        changed = super()._see(manifest)
        self._lifts = {} if changed else self._lifts
        return changed

    def size(self, gallery: Gallery) -> int:
        return int(self._read(f"{gallery}/count") or 0)

    def held(self, ids: Sequence[str], gallery: Gallery) -> set[str]:
        return {row["id"] for rows in self._pages(gallery, "id", among(ids)) for row in rows}

    def records(self, gallery: Gallery) -> Iterator[Record]:
        for rows in self._pages(gallery, "id, record"):
            yield from map(record, rows)

    def blocks(self, gallery: Gallery, ids: Sequence[str] | None = None) -> Iterator[Block]:
        for rows in self._pages(gallery, OF_ITEM, ALL if ids is None else among(ids)):
            yield gaussian(rows, self._form), [*map(record, rows)]

    def some(self, most: int, gallery: Gallery) -> Block | None:
        """As their hashes fall."""
        query = "SELECT id, gaussian, record FROM {} ORDER BY hashtext(id), id LIMIT %s"
        rows = self._do(q(query, self._table(gallery)), [most]) if self._has(gallery) else []
        return (gaussian(rows, self._form), [*map(record, rows)]) if rows else None

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Collection[str]
    ) -> Sequence[RowsView]:
        found = [condition(c, self.settings.fields) for c in where.conditions]
        text, ids = among([*exclude])
        found += [(q("NOT ({})", text), ids)] if exclude else []
        texts, values = [text for text, _ in found], [v for _, some in found for v in some]
        all_ = (sql.SQL(" AND ").join(texts), values) if found else ALL
        return [TableView(self, gallery, all_)] if self._has(gallery) else []

    def faults(self) -> Iterator[str]:
        """Of its files; and items that are gone, though nobody deleted them by this library."""
        yield from super().faults()
        for gallery in filter(self._has, GALLERIES):
            if self._read(f"{gallery}/{LIFT}") is None:
                yield f"{self.place}: {gallery}/{LIFT} is missing"
            noted, there = self.size(gallery), self.count(gallery, ALL)
            if there < noted:
                yield f"{gallery}: {noted - there:,} of {noted:,} items are missing"

    def count(self, gallery: Gallery, where: Filter) -> int:
        query = q("SELECT count(*) FROM {} WHERE {}", self._table(gallery), where[0])
        return int(self._do(query, where[1])[0]["count"])

    def _pages(
        self, gallery: Gallery, columns: str, where: Filter = ALL
    ) -> Iterator[Sequence[Row]]:
        """Rows by their ids, some at a time."""
        text = "SELECT {} FROM {} WHERE {} AND id > %s ORDER BY id LIMIT %s"
        query, last = q(text, q(columns), self._table(gallery), where[0]), ""
        while self._has(gallery) and (rows := self._do(query, [*where[1], last, BLOCK])):
            yield rows
            last = rows[-1]["id"]

    # ---- change ----

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._session.alone(self.wait, self.place):
            self._see(self._read_manifest())
            yield

    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        few, new = gaussians[:SAMPLE], not self._has(gallery)
        lift = Lift.of(self.similarity(gallery), gallery, few) if new else self._lift(gallery)
        manifest = self._with(gallery, len(few), form) if new else self.manifest

        def put(cursor: Cursor) -> None:
            if new:
                self._make(cursor, gallery, lift, manifest)
            self._put(cursor, gallery, gaussians, records, lift)

        self._session.run(put)
        self._see(manifest)

    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        self._session.run(lambda cursor: self._remove(cursor, gallery, ids))

    def _remove(self, cursor: Cursor, gallery: Gallery, ids: Sequence[str], more: int = 0) -> None:
        where, values = among(ids)
        cursor.execute(q("DELETE FROM {} WHERE {}", self._table(gallery), where), values)
        self._session.tally(cursor, gallery, more - cursor.rowcount)

    def _put(
        self, cursor: Cursor, gallery: Gallery, g: Gaussian, records: Sequence[Record], lift: Lift
    ) -> None:
        """In the place of those that are there."""
        self._remove(cursor, gallery, [item.id for item in records], len(records))
        columns, unsure = self._columns(lift), None if g.is_point else g.uncertainty().tolist()
        lifted, packed = lift.items(g), database.packed(g)
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        text = q("COPY {} ({}) FROM STDIN (FORMAT BINARY)", self._table(gallery), names)
        with cursor.copy(text) as copy:
            copy.set_types([re.split(r"\W", type_)[0] for type_ in columns.values()])
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
        return found | {
            f"meta:{name}": TYPES[type_] for name, type_ in self.settings.fields.items()
        }

    def _lift(self, gallery: Gallery) -> Lift:
        if gallery not in self._lifts:
            self._lifts[gallery] = self._load_lift(gallery, gallery)
        return self._lifts[gallery]

    def _with(
        self, gallery: Gallery, typical: int, form: dict[str, int], structure: str = "flat"
    ) -> IndexManifest:
        part = SegmentInfo(gallery, typical, structure)
        return replace(self.manifest.with_parts(gallery, (part,)), form=form).next()

    def _declared(self, gallery: Gallery) -> dict[str, str]:
        return dict(json.loads(self._read(f"{gallery}/fields") or b"{}"))

    def _make(self, cursor: Cursor, gallery: Gallery, lift: Lift, manifest: IndexManifest) -> None:
        """An empty table, its lift, and the manifest that names it."""
        table, fields = self._table(gallery), self.settings.fields
        for n, center in enumerate(lift.centers):
            indexed(n, len(center), self.settings.structure)  # refuses now what has no graph later
        columns = [q("{} {}", sql.Identifier(n), q(t)) for n, t in self._columns(lift).items()]
        cursor.execute(q("CREATE TABLE {} ({})", table, sql.SQL(", ").join(columns)))
        for name in fields:
            cursor.execute(q("CREATE INDEX ON {} ({})", table, column(name)))
        (self._scratch / gallery).mkdir(exist_ok=True)
        lift.save(self._scratch / gallery)
        files = {LIFT: (self._scratch / gallery / LIFT).read_bytes(), "count": b"0"}
        files["fields"] = json.dumps(dict(fields)).encode()
        about = {f"{gallery}/{name}": content for name, content in files.items()}
        self._session.put(cursor, {**about, MANIFEST: manifest.dumps()})

    def _again(self, gallery: Gallery, lift: Lift, typical: int) -> None:
        """Into a new table, which takes the place of the old one."""
        manifest, form = self._with(gallery, typical, self._form), self._form
        table, old = self._table(gallery), self._table(f"{gallery}_old")
        page = q(f"SELECT {OF_ITEM} FROM {{}} WHERE id > %s ORDER BY id LIMIT %s", old)

        def move(cursor: Cursor) -> None:
            self._index(cursor, gallery, lift, "flat")  # names of indexes would stay behind
            cursor.execute(q("ALTER TABLE {} RENAME TO {}", table, old))
            self._make(cursor, gallery, lift, manifest)
            last = ""
            while rows := cursor.execute(page, [last, BLOCK]).fetchall():
                self._put(cursor, gallery, gaussian(rows, form), [*map(record, rows)], lift)
                last = rows[-1]["id"]
            cursor.execute(q("DROP TABLE {}", old))

        self._session.run(move)
        self._forget([f"{gallery}/{LIFT}"])
        self._see(manifest)

    def _restructure(self, gallery: Gallery, structure: str) -> None:
        """Others search on meanwhile."""
        lift, typical = self._lift(gallery), self.manifest.galleries[gallery][0].items
        manifest = self._with(gallery, typical, self._form, structure)

        def build(cursor: Cursor) -> None:
            self._index(cursor, gallery, lift, structure)
            self._session.put(cursor, {MANIFEST: manifest.dumps()})

        self._session.run(build)
        self._see(manifest)

    def _index(self, cursor: Cursor, gallery: Gallery, lift: Lift, structure: str) -> None:
        links = min(self.settings.links, 100)
        build = min(max(self.settings.construction, 2 * links), 1000)
        text = "CREATE INDEX {} ON {} USING hnsw (({}) {}) WITH (m = {}, ef_construction = {})"
        for n, center in enumerate(lift.centers):
            name = self._table(f"{gallery}_lift{n}")
            cursor.execute(q("DROP INDEX IF EXISTS {}", name))
            if structure != "flat":
                lifted, type_ = indexed(n, len(center), structure)
                ops = q(f"{type_}_{'ip' if lift.inner else 'l2'}_ops")
                numbers = q(f"{links}"), q(f"{build}")
                cursor.execute(q(text, name, self._table(gallery), lifted, ops, *numbers))

    def _settled(self, gallery: Gallery) -> RowsView:
        return TableView(self, gallery, ALL)


class TableView(RowsView):
    """One search of a table; all rows meet ``where``."""

    def __init__(self, backend: Postgres, gallery: Gallery, where: Filter) -> None:
        part = backend.manifest.galleries[gallery][0]
        self.backend, self.gallery, self.where = backend, gallery, where
        self.structure = part.structure
        reach = backend.size(gallery) if where is ALL else backend.count(gallery, where)
        width = 0 if part.structure == "flat" else backend._width(part)
        similarity, lift = backend.similarity(gallery), backend._lift(gallery)
        super().__init__(similarity, lift, backend._form, reach, width)

    def nearest(self, number: int, vectors: np.ndarray, count: int) -> list[list[Near]]:
        lifted, type_ = indexed(number, vectors.shape[1], self.structure)
        near = q("{} {} %s::{}", lifted, q("<#>" if self.lift.inner else "<->"), q(type_))
        text = f"SELECT {TO_RANK}, {{}} AS raw FROM {{}} WHERE {{}} ORDER BY raw LIMIT %s"
        query = q(text, near, self.backend._table(self.gallery), self.where[0])
        width = str(min(max(self.width, count), WIDEST))
        walk = {"hnsw.ef_search": width, "hnsw.iterative_scan": "relaxed_order"}

        def search(cursor: Cursor) -> list[list[Near]]:
            for name, value in walk.items():
                cursor.execute("SELECT set_config(%s, %s, true)", [name, value])
            return [self._one(cursor, query, v, count) for v in vectors]

        return self.backend._session.run(search)

    def _one(self, cursor: Cursor, query: sql.Composed, v: np.ndarray, count: int) -> list[Near]:
        inner = self.lift.inner
        unit = max(1.0, float(np.abs(v).max()) / 1000) if inner else 1.0  # a halfvec ends at 65,504
        rows = cursor.execute(query, [v / unit, *self.where[1], count]).fetchall()
        near = [(row, -unit * row["raw"] if inner else row["raw"] ** 2) for row in rows]
        return sorted(near, key=lambda pair: pair[1], reverse=inner)

    def all(self) -> Iterator[Sequence[Row]]:
        return self.backend._pages(self.gallery, TO_RANK, self.where)


class Session:
    """A connection that comes back after the server was away; each ``run`` is a transaction, and is
    repeated as a whole."""

    def __init__(self, uri: str, name: str) -> None:
        self.uri, self.name = uri, name
        self._one, self._writer, self._held = threading.RLock(), threading.Lock(), False
        try:
            self._connection = self._connect()
        except psycopg.OperationalError as error:
            if "authentication" in str(error):
                raise PermissionError(f"{uri}: refused ({error}); set PGPASSWORD") from error
            raise ConnectionError(f"{uri}: cannot connect ({error}); is the server up?") from error

    def table(self, what: str) -> sql.Identifier:
        return sql.Identifier(f"{self.name}_{what}")

    def close(self) -> None:
        self._connection.close()

    def run(self, work: Callable[[Cursor], T]) -> T:
        def once() -> T:
            if self._connection.closed:
                self._connection = self._connect()
            own = self._connection.cursor(row_factory=dict_row, binary=True)
            with self._connection.transaction(), own as cursor:
                return work(cursor)

        with self._one:
            return database.patiently(once, is_away, "PostgreSQL does not answer")

    def do(self, query: sql.Composed, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        def fetch(cursor: Cursor) -> list[dict[str, Any]]:
            cursor.execute(query, values)
            return cursor.fetchall() if cursor.description else []

        return self.run(fetch)

    @contextmanager
    def alone(self, wait: float, place: str) -> Iterator[None]:
        """Nobody else changes the index meanwhile."""
        busy = IndexBusyError(f"{place}: another process has been changing it for {wait:g} s")
        if not self._writer.acquire(timeout=wait):
            raise busy
        try:
            self.run(lambda cursor: self._take(cursor, wait))
            self._held = True
            try:
                yield
            finally:
                self._held = False
                self.do(q("SELECT pg_advisory_unlock(hashtext(%s))"), [self.name])
        except psycopg.errors.LockNotAvailable as error:
            raise busy from error
        finally:
            self._writer.release()

    def put(self, cursor: Cursor, files: Mapping[str, bytes]) -> None:
        text = "INSERT INTO {} VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET content = "
        query = q(text + "excluded.content", self.table("about"))
        cursor.executemany(query, list(files.items()))

    def tally(self, cursor: Cursor, gallery: Gallery, more: int) -> None:
        """Add to the noted number of items."""
        query = q("SELECT content FROM {} WHERE name = %s", self.table("about"))
        (noted,) = cursor.execute(query, [f"{gallery}/count"]).fetchall()
        self.put(cursor, {f"{gallery}/count": str(int(noted["content"]) + more).encode()})

    def _take(self, cursor: psycopg.Cursor[Any], wait: float) -> None:
        limit = f"{max(1, int(1000 * wait))}ms"
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [limit])
        cursor.execute("SELECT pg_advisory_lock(hashtext(%s))", [self.name])

    def _connect(self) -> psycopg.Connection[Any]:
        made = psycopg.connect(self.uri, autocommit=True, connect_timeout=10)
        made.add_notice_handler(warn)
        know_vectors(made)
        if self._held:
            with made.transaction(), made.cursor() as cursor:
                self._take(cursor, database.PATIENCE)
        return made


class VectorDumper(Dumper):
    """As pgvector reads them: float32, the highest byte first, after their number."""

    format = Format.BINARY

    def dump(self, values: np.ndarray) -> bytes:
        return struct.pack(">HH", len(values), 0) + values.astype(">f4").tobytes()


def know_vectors(connection: psycopg.Connection[Any]) -> None:
    """Arrays become vectors; before the first index of a database it has none."""
    if info := TypeInfo.fetch(connection, "vector"):
        info.register(connection)
        dumper = type("Dumper", (VectorDumper,), {"oid": info.oid})
        connection.adapters.register_dumper(np.ndarray, dumper)


def warn(notice: psycopg.errors.Diagnostic) -> None:
    """Pass on that a graph does not fit into the memory it may take while it is built."""
    if "maintenance_work_mem" in (notice.message_primary or ""):
        text = f"PostgreSQL: {notice.message_primary}; this takes long: raise that setting"
        warnings.warn(text, stacklevel=2)


def is_away(error: Exception) -> bool:
    """Whether the connection is lost, or the server is starting or stopping."""
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return lost and (getattr(error, "sqlstate", None) or "08").startswith(("08", "57P"))


def parsed(place: str) -> tuple[str, str]:
    """What psycopg connects to, and the name of the index.

    >>> parsed("postgresql://db/photos#album")
    ('postgresql://db/photos', 'album')
    """
    uri, _, name = place.partition("#")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,39}", name or "gaussmatch"):
        raise ValueError(f"#{name}: the name of an index is up to 40 letters, digits and _")
    instead = "set PGPASSWORD, or write it into ~/.pgpass"
    return database.without_password(uri, instead), name or "gaussmatch"


def indexed(number: int, width: int, structure: str) -> tuple[sql.Composed, str]:
    """What is compared of a lift, and its type: in float16 if float32 cannot be indexed."""
    if structure == "flat" or (structure == "hnsw" and width <= VECTOR):
        return q(f"lift{number}"), "vector"
    if width > HALFVEC:
        raise ValueError(
            f"pgvector indexes vectors of up to {HALFVEC} numbers, and these have {width}; use "
            "structure flat, or keep the index in a folder"
        )
    return q(f"lift{number}::halfvec({width})"), "halfvec"


def among(ids: Sequence[str]) -> Filter:
    """No item has an id with a zero byte, and none can be asked for."""
    return q("id = ANY(%s)"), [[id_ for id_ in ids if "\x00" not in id_]]


def condition(c: Condition, fields: Mapping[str, str]) -> Filter:
    """What ``Where`` says of metadata; ``not`` needs the field to be there, and also holds where a
    comparison is null, as with a value of another type."""
    values = [None, *c.values] if c.operator == "not" else c.values
    found = [_compared(c.field, SIGNS[c.operator], value, fields) for value in values]
    texts = sql.SQL(" OR ").join([text for text, _ in found] or [q("false")])
    text = q("(({}) IS NOT TRUE)" if c.operator == "not" else "({})", texts)
    return text, [v for _, given in found for v in given]


def _compared(field: str, sign: str, value: Any, fields: Mapping[str, str]) -> Filter:
    type_, own = database.type_of(value), fields.get(field)
    if value is None and own is None:
        return q("NOT facts ?| %s"), [[f"{t}:{field}" for t in database.TYPES]]
    if value is None:
        return q("{} IS NULL", column(field)), []
    if own is not None:
        fits = database.DECLARED[own] == type_
        return (q(f"{{}} {sign} %s", column(field)), [plain(value)]) if fits else (q("false"), [])
    key = f"{type_}:{field}"
    if type_ == "t":
        return q(f'(facts ->> %s) COLLATE "C" {sign} %s'), [key, value]
    return q(f"(facts -> %s) {sign} %s"), [key, Jsonb(value)]


def column(field: str) -> sql.Identifier:
    return sql.Identifier(f"meta:{field}")


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
