"""What a segment knows of its items beside their Gaussians: ids, metadata, thumbnails.

Written once and then only read, on disk, so that opening an index loads nothing:

records.jsonl        a line for each row, ``["id", {metadata}, source]``
records.npy          where each line starts
items.sqlite         which row has an id; metadata to filter by, a field at a time; thumbnails
"""

from __future__ import annotations

import errno
import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from io import FileIO
from itertools import chain
from os import pread
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from gaussmatch.search.backends.folder.structure import blocks, mapped
from gaussmatch.search.manifest import Record
from gaussmatch.search.where import MetadataColumn, Scalar, Where, value_type

FILE, LINES, STARTS = "items.sqlite", "records.jsonl", "records.npy"
_AT_ONCE = 500  # parameters of one statement
_DECODED = 256  # lines in one call: more would set off the garbage collector
_decode = json.JSONDecoder().raw_decode


def write_items(folder: Path, records: Iterable[Record]) -> int:
    """Write the records as rows 0, 1, …; gives how many. The files must then be synced."""
    starts = array("q", [0])
    with (
        closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db,
        open(folder / LINES, "wb") as lines,
    ):
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        db.execute("CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT UNIQUE, meta TEXT)")
        db.execute("CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, jpeg BLOB)")
        for row, r in enumerate(records):
            meta = r.meta_json()
            try:
                db.execute("INSERT INTO items VALUES (?, ?, ?)", (row, r.id, meta))
            except sqlite3.IntegrityError:
                raise ValueError(f"the id {r.id!r} is given twice") from None
            except UnicodeEncodeError as error:
                raise ValueError(f"the metadata of {r.id!r} is not valid text: {error}") from error
            if r.thumbnail is not None:
                db.execute("INSERT INTO thumbnails VALUES (?, ?)", (row, r.thumbnail))
            line = f"[{json.dumps(r.id)}, {meta}, {json.dumps(r.source)}]\n".encode()
            starts.append(starts[-1] + lines.write(line))
        db.execute("COMMIT")
    np.save(folder / STARTS, np.frombuffer(starts, dtype=np.int64))
    return len(starts) - 1


class ItemStore:
    """The records of a segment, looked up on disk. May be used from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, Lock()
        self._db = _connected(folder / FILE)
        self._columns: dict[str, MetadataColumn] = {}
        self._starts = mapped(folder / STARTS)
        self._lines = FileIO(folder / LINES)  # read, not mapped: it may be cut while it is open

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """id → row, for those that are here."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            found |= self._query(f"SELECT id, row FROM items WHERE id IN ({marks})", some)
        return found

    def lines(self, rows: np.ndarray) -> Iterator[list[tuple[str, dict[str, Any], str | None]]]:
        """Id, metadata and source of each row, some rows at a time."""
        starts, stops = self._starts.take(rows).tolist(), self._starts.take(rows + 1).tolist()
        file = self._lines.fileno()
        for some in blocks(len(starts), _DECODED):
            lines = [pread(file, b - a, a) for a, b in zip(starts[some], stops[some], strict=True)]
            try:
                text = (b"[%b]" % b",".join(lines)).decode()
                found, end = _decode(text)
                if len(found) != len(lines) or end != len(text):
                    raise ValueError(f"{len(found)} records in {len(lines)} lines")
            except ValueError as error:
                raise ValueError(
                    f"{self._folder / LINES}: damaged ({error}); restore the index or make it again"
                ) from error
            yield found

    def records(self, rows: np.ndarray) -> list[Record]:
        """Without thumbnails."""
        found = chain.from_iterable(self.lines(rows))
        return [Record(id_, meta, None, source) for id_, meta, source in found]

    def thumbnail(self, row: int) -> bytes | None:
        found = self._query("SELECT jpeg FROM thumbnails WHERE row = ?", [row])
        return bytes(found[0][0]) if found else None

    def all(self, thumbnails: bool = False) -> Iterator[tuple[int, Record]]:
        """Every (row, record), in order; thumbnails only if requested."""
        for rows in blocks(len(self._starts) - 1, 1000):
            pictures: dict[int, bytes] = {}
            if thumbnails:
                found = self._query(
                    "SELECT row, jpeg FROM thumbnails WHERE row BETWEEN ? AND ?",
                    [rows.start, rows.stop - 1],
                )
                pictures = dict(found)
            here = range(rows.start, rows.stop)
            for row, record in zip(here, self.records(np.array(here)), strict=True):
                yield row, replace(record, thumbnail=pictures.get(row))

    def where(self, where: Where) -> np.ndarray:
        """(items), for which of them all conditions hold."""
        found = np.ones(len(self._starts) - 1, dtype=bool)
        for condition in where.conditions:
            found &= self._column(condition.field).mask(condition)
        return found

    def _column(self, field: str) -> MetadataColumn:
        """A field of the metadata, read when a condition first names it and then kept."""
        if field not in self._columns:
            found = self._query(
                "SELECT json_type(meta, ?1), json_extract(meta, ?1) FROM items ORDER BY row",
                [f'$."{field}"'],
            )
            self._columns[field] = MetadataColumn(map(_typed, found))
        return self._columns[field]

    @cached_property
    def fields(self) -> set[str]:
        """Names of the metadata that items have."""
        return {
            name for (name,) in self._query("SELECT DISTINCT key FROM items, json_each(meta)", [])
        }

    def __del__(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        if hasattr(self, "_lines"):
            self._lines.close()

    def _query(self, text: str, values: Sequence[Any]) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(text, [*values]).fetchall()
        except sqlite3.DatabaseError as error:
            raise ValueError(
                f"{self._folder / FILE}: damaged ({error}); restore the index or make it again"
            ) from error


def _typed(found: tuple[str | None, Any]) -> tuple[str, Scalar]:
    """Type and value as conditions compare them, from those of SQLite."""
    type_, value = found
    if type_ in ("true", "false"):
        return "truth", type_ == "true"
    return ("other", None) if type_ in ("array", "object") else (value_type(value), value)


def _connected(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?immutable=1"
    try:
        return sqlite3.connect(uri, uri=True, check_same_thread=False)
    except sqlite3.OperationalError as error:
        if path.exists():
            raise ValueError(f"{path}: cannot be opened ({error})") from error
        raise FileNotFoundError(errno.ENOENT, "gone", str(path)) from error
