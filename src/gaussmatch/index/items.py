"""What a segment knows of its items beside their Gaussians: ids, metadata, thumbnails.

One SQLite file, written once and then only read: ids and conditions on metadata are looked up on
disk, so that opening an index loads nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from gaussmatch.index.where import Where

FILE = "items.sqlite"
_AT_ONCE = 500  # parameters of one statement


@dataclass(frozen=True)
class Record:
    """An item without its Gaussian.

    Args:
        id: unique in its gallery.
        meta: what the user wants to know of it and to filter by; JSON.
        thumbnail: a small JPEG to show, if there is a picture.
        source: what tells whether its file has changed since.
    """

    id: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    thumbnail: bytes | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"an id must be a text that is not empty, got {self.id!r}")

    def meta_json(self) -> str:
        try:
            return json.dumps(dict(self.meta), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the metadata of {self.id!r} is not JSON: {error}") from error


def write_items(folder: Path, records: Iterable[Record]) -> int:
    """Write the records as rows 0, 1, …; gives how many. The file must then be synced."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        db.execute(
            "CREATE TABLE items (row INTEGER PRIMARY KEY, id TEXT UNIQUE, meta TEXT, source TEXT)"
        )
        db.execute("CREATE TABLE thumbnails (row INTEGER PRIMARY KEY, jpeg BLOB)")
        rows = 0
        for row, r in enumerate(records):
            rows = row + 1
            try:
                values = (row, r.id, r.meta_json(), r.source)
                db.execute("INSERT INTO items VALUES (?, ?, ?, ?)", values)
            except sqlite3.IntegrityError:
                raise ValueError(f"the id {r.id!r} is given twice") from None
            if r.thumbnail is not None:
                db.execute("INSERT INTO thumbnails VALUES (?, ?)", (row, r.thumbnail))
        db.execute("COMMIT")
    return rows


class Items:
    """The records of a segment, looked up on disk. May be used from several threads."""

    def __init__(self, folder: Path) -> None:
        self._path, self._lock = folder / FILE, Lock()
        self._db = sqlite3.connect(
            f"{self._path.resolve().as_uri()}?immutable=1", uri=True, check_same_thread=False
        )

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """id → row, for those that are here."""
        found: dict[str, int] = {}
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            found |= self._ask(f"SELECT id, row FROM items WHERE id IN ({marks})", some)
        return found

    def records(self, rows: Sequence[int]) -> dict[int, Record]:
        """row → record, without thumbnails."""
        found: dict[int, Record] = {}
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            told = self._ask(f"SELECT * FROM items WHERE row IN ({marks})", some)
            metas = json.loads(f"[{','.join(meta for _, _, meta, _ in told)}]")  # one call for all
            found |= {
                row: Record(id_, meta, None, source)
                for (row, id_, _, source), meta in zip(told, metas, strict=True)
            }
        return found

    def thumbnail(self, row: int) -> bytes | None:
        told = self._ask("SELECT jpeg FROM thumbnails WHERE row = ?", [row])
        return bytes(told[0][0]) if told else None

    def all(self, thumbnails: bool = False) -> Iterator[tuple[int, Record]]:
        """Every (row, record), in order; thumbnails only if asked for."""
        last = -1
        jpeg = "jpeg" if thumbnails else "NULL"
        while True:
            told = self._ask(
                f"SELECT row, id, meta, source, {jpeg} FROM items LEFT JOIN thumbnails USING (row) "
                "WHERE row > ? ORDER BY row LIMIT 1000",
                [last],
            )
            if not told:
                return
            for row, id_, meta, source, picture in told:
                yield row, Record(id_, json.loads(meta), picture, source)
            last = told[-1][0]

    def where(self, where: Where) -> np.ndarray:
        """The rows for which all conditions hold, in order."""
        text, values = where.sql()
        told = self._ask(f"SELECT row FROM items WHERE {text} ORDER BY row", values)
        return np.array([row for (row,) in told], dtype=np.int64)

    def close(self) -> None:
        self._db.close()

    def __del__(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()

    def _ask(self, text: str, values: Sequence[Any]) -> list[Any]:
        try:
            with self._lock:
                return self._db.execute(text, [*values]).fetchall()
        except sqlite3.DatabaseError as error:
            raise ValueError(
                f"{self._path}: damaged ({error}); restore the index or make it again"
            ) from error
