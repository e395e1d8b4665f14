"""A segment: some items of a gallery, written once and then only read, so that opening an index
loads nothing.

mean.npy, …          Gaussians, and the files of the structure: opened by memory mapping
records.jsonl        a line for each row, ``["id", {metadata}, source]``
records.npy          where each line starts
items.sqlite         which row has an id; metadata to filter by, a field at a time; thumbnails
"""

from __future__ import annotations

import errno
import json
import sqlite3
import uuid
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from io import FileIO
from itertools import chain
from os import pread
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.files import new_array, read_json, sync
from gaussmatch.search.backend import batched
from gaussmatch.search.backends.folder.layout import (
    SEGMENTS,
    check_mark,
    check_sizes,
    mark_of,
    marks,
)
from gaussmatch.search.backends.folder.structure import (
    Allowed,
    Compressed,
    Flat,
    Hnsw,
    Scan,
    SegmentContent,
    Structure,
    blocks,
    mapped,
)
from gaussmatch.search.lift import LiftedQueries
from gaussmatch.search.manifest import Gallery, IndexSettings, Record, SegmentInfo
from gaussmatch.search.topk import REPORT, Candidates
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
        return self._among("SELECT id, row FROM items WHERE id", ids)

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

    def records(self, rows: np.ndarray, thumbnails: bool = False) -> list[Record]:
        """Of some rows; thumbnails only if requested."""
        here, text = rows.tolist(), "SELECT row, jpeg FROM thumbnails WHERE row"
        small = self._among(text, here) if thumbnails else {}
        both = zip(here, chain.from_iterable(self.lines(rows)), strict=True)
        return [Record(id_, meta, small.get(row), source) for row, (id_, meta, source) in both]

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

    def _among(self, text: str, values: Sequence[Any]) -> dict[Any, Any]:
        """What is selected ``IN`` these values, as a dict."""
        found: dict[Any, Any] = {}
        for some in batched(values, _AT_ONCE):
            found |= self._query(f"{text} IN ({', '.join('?' * len(some))})", some)
        return found

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


FILTERS = 4
"""Filters whose rows are kept: one byte an item each, and eight for a row that is looked at
by itself."""
STRUCTURES: dict[str, type[Structure]] = {s.name: s for s in (Flat, Scan, Hnsw, Compressed)}


class Segment(SegmentContent):
    """An open segment.

    Args:
        dead: (items), true where a row was deleted; ``None`` if none was.
    """

    def __init__(
        self,
        folder: Path,
        part: SegmentInfo,
        gallery: Gallery,
        similarity: Callable[[], Similarity],
        settings: IndexSettings,
    ) -> None:
        self._sizes = {str(path): mark.size for path, mark in marks(folder, part).items()}
        check_sizes(self._sizes)
        self.part, path = part, folder / SEGMENTS / part.name
        self.items = ItemStore(path)
        log_var = self.uncertainty = None
        if "log_var.npy" in part.files:
            log_var = mapped(path / "log_var.npy", part.items)
            self.uncertainty = mapped(path / "uncertainty.npy", part.items)
        mean = mapped(path / "mean.npy", part.items)
        super().__init__(path, gallery, similarity, settings, mean, log_var)
        self._filtered: dict[Where, Allowed] = {}
        self._lock = Lock()
        self.dead: np.ndarray | None = None
        if part.deleted is not None:
            deleted = path.parent / part.deleted
            if part.deleted_mark is not None:  # it is read whole anyway
                check_mark(deleted, part.deleted_mark)
            self.dead = np.zeros(part.items, dtype=bool)
            self.dead[mapped(deleted, part.dead)] = True

    def check(self) -> None:
        """A clear error if a file was cut since: to read beyond the end of its map would end the
        process."""
        check_sizes(self._sizes, gone_ok=True)

    @cached_property
    def structure(self) -> Structure:
        """Opened when first searched."""
        try:
            return STRUCTURES[self.part.structure](self)
        except (EOFError, KeyError, RuntimeError) as error:
            raise ValueError(
                f"{self.folder}: its {self.part.structure} structure cannot be read ({error}); "
                "restore the index or make it again"
            ) from error

    @property
    def current(self) -> bool:
        """Whether nothing would be gained by writing it again."""
        return self.dead is None and STRUCTURES[self.part.structure].current(self.part.files)

    def describe(self) -> dict[str, Any]:
        """With what was measured of its graph, if it has one."""
        report = read_json(self.folder / REPORT) if REPORT in self.part.files else {}
        about = {"items": self.part.items, "deleted": self.part.dead}
        return {**about, "structure": self.part.structure, **report}

    @cached_property
    def scan(self) -> Scan:
        """Every item, by the similarity itself: slow and sure."""
        return Scan(self)

    def rows_of(self, ids: list[str]) -> dict[str, int]:
        """id → row, of items that are not deleted."""
        found = self.items.rows_of(ids)
        if self.dead is None:
            return found
        return {id_: row for id_, row in found.items() if not self.dead[row]}

    def live_rows(self) -> np.ndarray:
        return np.arange(self.part.items) if self.dead is None else np.flatnonzero(~self.dead)

    def live_records(self, thumbnails: bool = False) -> Iterator[Record]:
        rows = self.live_rows()
        for some in blocks(len(rows), 1000):
            yield from self.items.records(rows[some], thumbnails)

    def allowed(self, where: Where, exclude: list[str]) -> Allowed | None:
        """The rows that may be found; ``None`` if all may."""
        found = self._allowed(where)
        if exclude and (out := list(self.rows_of(exclude).values())):
            mask = np.ones(self.part.items, dtype=bool) if found is None else found.mask.copy()
            mask[out] = False
            return Allowed(mask)
        return found

    def _allowed(self, where: Where) -> Allowed | None:
        """The same for every query with these conditions, so the last ones are kept."""
        if self.dead is None and not where.conditions:
            return None
        with self._lock:
            found = self._filtered.pop(where, None)
            if found is None:
                mask = self.items.where(where)
                found = Allowed(mask if self.dead is None else mask & ~self.dead)
            while len(self._filtered) >= FILTERS:
                self._filtered.pop(next(iter(self._filtered)))
            self._filtered[where] = found
        return found


class SegmentView:
    """A segment as one search sees it; a ``Searchable``."""

    def __init__(self, segment: Segment, allowed: Allowed | None) -> None:
        self.segment, self.allowed = segment, allowed
        self.reach = segment.part.items if allowed is None else allowed.count
        self.arrays = segment.arrays

    @property
    def exact(self) -> bool:
        return self.segment.structure.exact

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        return self.segment.structure.lifted(queries)

    def candidates(self, queries: LiftedQueries, count: int) -> Candidates:
        return self.segment.structure.candidates(queries, count, self.allowed)

    def scan(self, queries: LiftedQueries, count: int) -> Candidates:
        return self.segment.scan.candidates(queries, count, self.allowed)

    def sample(self, count: int) -> np.ndarray:
        if self.reach <= count:
            return np.arange(self.reach) if self.allowed is None else self.allowed.rows
        drawn = np.random.default_rng(0).choice(self.reach, count, replace=False)
        return np.sort(drawn if self.allowed is None else self.allowed.rows[drawn])

    def described(self, rows: np.ndarray) -> tuple[list[str], list[Mapping[str, Any]]]:
        ids: list[str] = []
        metas: list[Mapping[str, Any]] = []
        for lines in self.segment.items.lines(rows):
            ids += [line[0] for line in lines]
            metas += [line[1] for line in lines]
        return ids, metas

    def uncertainty(self, rows: np.ndarray) -> np.ndarray | None:
        held = self.segment.uncertainty
        return None if held is None else held.take(rows).astype(np.float64)


def wanted_structure(similarity: Similarity, settings: IndexSettings, items: int) -> str:
    """How a segment of this size is searched."""
    if similarity.no_lift is not None:
        return Scan.name
    return settings.structure if items >= settings.flat_below else Flat.name


def write_segment(
    folder: Path,
    gallery: Gallery,
    similarity: Similarity,
    settings: IndexSettings,
    gaussians: Iterable[Gaussian],
    total: int,
    records: Iterable[Record],
) -> SegmentInfo:
    """Write and sync a new segment. It counts when a manifest names it.

    Args:
        gaussians: in blocks, ``total`` in all.
        records: one for each, in the same order.
    """
    name = f"{gallery}-{uuid.uuid4().hex[:12]}"
    path = folder / SEGMENTS / name
    path.mkdir(parents=True)
    try:
        written = write_items(path, records)
    except sqlite3.OperationalError as error:  # a full disk
        raise OSError(f"{path}: cannot be written ({error})") from error
    if written != total:
        raise ValueError(f"{total} Gaussians need as many ids")
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for g in gaussians:
        for what, values in _columns(g).items():
            if what not in arrays:
                arrays[what] = new_array(path / f"{what}.npy", (total, *values.shape[1:]))
            arrays[what][start : start + len(g)] = values
        start += len(g)
    if start != total:
        raise ValueError(f"{total} ids, but {start} Gaussians")
    for held in arrays.values():
        held.flush()  # type: ignore[attr-defined]
    both = arrays["mean"], arrays.get("log_var")
    structure = STRUCTURES[wanted_structure(similarity, settings, total)]
    structure.build(SegmentContent(path, gallery, lambda: similarity, settings, *both))
    files = sorted(path.iterdir())
    for file in files:
        sync(file)
    sync(path)
    return SegmentInfo(name, total, structure.name, {file.name: mark_of(file) for file in files})


def _columns(g: Gaussian) -> dict[str, np.ndarray]:
    found = {"mean": g.mean.float().numpy()}
    if g.log_var is not None:
        found["log_var"] = g.log_var.float().numpy()
        found["uncertainty"] = g.uncertainty().float().numpy()
    return found
