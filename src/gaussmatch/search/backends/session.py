"""A session with PostgreSQL that outlives its server's restarts: SQL with its parameters, changes
that are repeated as a whole, one writer at a time, and arrays as vectors of pgvector."""

from __future__ import annotations

import re
import struct
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gaussmatch.checks import extra
from gaussmatch.search.backend import IndexBusyError
from gaussmatch.search.backends import database

with extra("postgres", "an index in PostgreSQL"):
    import psycopg
    from psycopg import sql
    from psycopg.adapt import Dumper
    from psycopg.pq import Format
    from psycopg.rows import dict_row
    from psycopg.types import TypeInfo

T = TypeVar("T")


class Sql(NamedTuple):
    """A text, and its parameters: values never become part of the text."""

    text: sql.Composed
    values: list[Any]


def q(text: str, *parts: Any) -> Sql:
    """SQL of our own, with more SQL and names in the place of ``{}``; anything else is a value."""
    texts: list[sql.Composable] = []
    values: list[Any] = []
    for part in parts:
        if isinstance(part, sql.Composable):
            texts.append(part)
        else:
            own = part if isinstance(part, Sql) else Sql(sql.Composed([sql.Placeholder()]), [part])
            texts.append(own.text)
            values += own.values
    return Sql(sql.SQL(text).format(*texts), values)


def joined(parts: Iterable[Any], between: str = ", ") -> Sql:
    every = [*parts]
    return q(between.join(["{}"] * len(every)), *every)


ALL, NEVER = q("true"), q("false")


class Session:
    """A connection that comes back after the server was away; each ``run`` is a transaction, and is
    repeated as a whole. Within another one it is a part of that."""

    cursor: psycopg.Cursor[dict[str, Any]]

    def __init__(self, uri: str, name: str) -> None:
        self.uri, self.name, self._inside = uri, name, False
        self._one, self._writer, self._held = threading.RLock(), threading.Lock(), False
        try:
            self._connection = self._connect()
        except psycopg.OperationalError as error:
            if "authentication" in str(error):
                raise PermissionError(f"{uri}: refused ({error}); set PGPASSWORD") from error
            raise ConnectionError(f"{uri}: cannot connect ({error}); is the server up?") from error

    def close(self) -> None:
        self._connection.close()

    def run(self, work: Callable[[], T]) -> T:
        def once() -> T:
            if self._connection.closed:
                self._connection = self._connect()
            own = self._connection.cursor(row_factory=dict_row, binary=True)
            with self._connection.transaction(), own as self.cursor:
                self._inside = True
                try:
                    return work()
                finally:
                    self._inside = False

        with self._one:
            if self._inside:
                return work()
            return database.patiently(once, is_away, "PostgreSQL does not answer")

    def do(self, query: Sql) -> list[dict[str, Any]]:
        def fetch() -> list[dict[str, Any]]:
            self.cursor.execute(query.text, query.values)
            return self.cursor.fetchall() if self.cursor.description else []

        return self.run(fetch)

    @contextmanager
    def alone(self, wait: float, place: str) -> Iterator[None]:
        """Nobody else changes the index meanwhile."""
        busy = IndexBusyError(f"{place}: another process has been changing it for {wait:g} s")
        if not self._writer.acquire(timeout=wait):
            raise busy
        try:
            self.run(lambda: self._take(self._connection, wait))
            self._held = True
            try:
                yield
            finally:
                self._held = False
                self.do(q("SELECT pg_advisory_unlock(hashtext({}))", self.name))
        except psycopg.errors.LockNotAvailable as error:
            raise busy from error
        finally:
            self._writer.release()

    def know_vectors(self) -> None:
        """Once there are any."""
        know_vectors(self._connection)

    def _take(self, connection: psycopg.Connection[Any], wait: float) -> None:
        with connection.transaction():
            limit = f"{max(1, int(1000 * wait))}ms"
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [limit])
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [self.name])

    def _connect(self) -> psycopg.Connection[Any]:
        made = psycopg.connect(self.uri, autocommit=True, connect_timeout=10)
        made.add_notice_handler(warn)
        know_vectors(made)
        if self._held:
            self._take(made, database.PATIENCE)
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
