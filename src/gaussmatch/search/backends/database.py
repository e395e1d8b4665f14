"""What backends share that keep an index in a database: its files as bytes, so that whoever can
reach the server has the model and can ask in words; and its items as rows:

id            primary key
lift0, …      the item by the similarity's own lift, standardized; minimum KL has two
gaussian      the float32 mean and log-variance, for an exact rescore
uncertainty   log det Σ; not there for points
record        JSON of metadata and source, as they were given
facts         JSON: what can be filtered by
thumbnail     a JPEG, or nothing

*Facts* are filtered without ever mixing types. Each text, number and truth value of an item is kept
a second time, under a name that states its type: ``{"t:split": "test", "n:year": 2014, "b:mine":
true}``; what is neither (a list, an object) leaves ``"o:NAME": true``. So a comparison only ever
meets its own type, and answers do not depend on how a store compares 1 with "1" or true, or treats
null and what is missing. A field that the settings declare has a column of its type instead, and
refuses any other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import numpy as np
import torch

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search.backend import Backend, Block
from gaussmatch.search.lift import FILE as LIFT
from gaussmatch.search.lift import SAMPLE, Lift, LiftedQueries
from gaussmatch.search.manifest import (
    GALLERIES,
    MANIFEST,
    FileMark,
    Gallery,
    IndexManifest,
    Record,
    SegmentInfo,
    StructureName,
)
from gaussmatch.search.topk import QUERIES, REPORT, Candidates, Recall, measure
from gaussmatch.search.where import value_type

Row = Mapping[str, Any]
"""An item as a database gives it: at least ``id`` and, for Gaussians, ``uncertainty``."""
Near = tuple[Row, float]
ITEM = ("id", "gaussian", "record")
TO_RANK = (*ITEM, "uncertainty")
COUNT = "count"

PATIENCE = 120.0
"""Seconds that a call is repeated for: a server that is started again needs up to 60."""
FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
"""Seconds; each wait is twice the one before, less a random part so that clients spread."""
T = TypeVar("T")


def patiently(
    work: Callable[[], T],
    transient: Callable[[Exception], bool],
    what: str,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Do it until it succeeds, fails for good or has failed for too long.

    Args:
        transient: whether the same may succeed later.
        what: is not done, for the error.
    """
    wait, waited, start = FIRST_WAIT, 0.0, time.monotonic()
    while True:
        try:
            return work()
        except Exception as error:
            if not transient(error):
                raise
            if max(waited, time.monotonic() - start) >= PATIENCE:
                why = getattr(error, "message", None) or error
                raise ConnectionError(f"{what} in {PATIENCE:.0f} s: {why}") from error
        pause = wait * random.uniform(0.5, 1)
        sleep(pause)
        waited, wait = waited + pause, min(2 * wait, LONGEST_WAIT)


def without_password(address: str, instead: str) -> str:
    """An address that may be printed and logged."""
    if urlsplit(address).password:
        raise ValueError(f"a password does not belong in an address; {instead}")
    return address


class Database(Backend):
    """Its files, the manifest among them, are written and read by name; a folder that goes with the
    object holds those that were needed. Of a part, the file ``PART/lift`` is its lift and
    ``PART/count`` how many items the last writer left, so that ``verify`` sees a loss."""

    remote, scans = True, False

    def __init__(self, place: str, make: bool = False) -> None:
        self.place = place
        end = self._connect(make)
        self._lifts: dict[Gallery, Lift] = {}
        self._scratch = Path(tempfile.mkdtemp(prefix="gaussmatch-"))
        self._finish = weakref.finalize(self, _finish, end, self._scratch)

    # ---- to be written ----

    @abstractmethod
    def _connect(self, make: bool) -> Callable[[], None]:
        """Reach the server; gives how to leave it, also if nobody closes the index.

        Args:
            make: whether a database that is not there may be made.
        """

    @abstractmethod
    def _create(self, files: Mapping[str, bytes]) -> None:
        """An empty index that holds these files; ``_taken`` if there is one."""

    @abstractmethod
    def _read(self, name: str, fresh: bool = True) -> bytes | None:
        """A file; ``None`` if there is none.

        Args:
            fresh: whether the last seconds must be in it.
        """

    @abstractmethod
    def _write(self, files: Mapping[str, bytes]) -> None:
        """Put files in the place of old ones, the last one last."""

    @abstractmethod
    def _pages(
        self,
        gallery: Gallery,
        columns: Sequence[str],
        ids: Sequence[str] | None = None,
        fresh: bool = True,
    ) -> Iterator[Sequence[Row]]:
        """Rows of a gallery, or those of them with these ids, some at a time."""

    @abstractmethod
    def _count(self, gallery: Gallery) -> int:
        """Rows of a gallery that has had items."""

    @abstractmethod
    def _declared(self, gallery: Gallery) -> Mapping[str, str]:
        """Fields that have columns, see ``IndexSettings.fields``."""

    @abstractmethod
    def _again(self, gallery: Gallery, lift: Lift, typical: int) -> None:
        """Lift a gallery anew, with columns as the settings declare fields.

        Args:
            typical: items that the lift was made on.
        """

    @abstractmethod
    def _restructure(self, gallery: Gallery, structure: StructureName) -> None:
        """Index the lifts another way."""

    @abstractmethod
    def _settled(self, gallery: Gallery) -> RowsView:
        """A search of all items, as it will be from now on."""

    # ---- derived: make and open ----

    @classmethod
    def open(cls, place: str) -> Self:
        opened = cls(place)
        with opened._or_closed():
            opened.manifest = opened._read_manifest()
        return opened

    @classmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        made = cls(place, make=True)
        with made._or_closed():
            made.manifest = manifest.next()
            content = {name: path.read_bytes() for name, path in files.items()}
            made._create({**content, MANIFEST: made.manifest.dumps()})
        return made

    @contextmanager
    def _or_closed(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _taken(self) -> FileExistsError:
        return FileExistsError(f"{self.place} is an index already; add to it, or name another")

    def close(self) -> None:
        self._finish()

    def reload(self) -> bool:
        return self._see(self._read_manifest(fresh=False))

    def save(self, manifest: IndexManifest, files: Mapping[str, bytes] | None = None) -> None:
        files = files or {}
        marks = {n: FileMark(len(c), hashlib.sha256(c).hexdigest()) for n, c in files.items()}
        new = replace(manifest, files={**manifest.files, **marks}).next()
        self._write({**files, MANIFEST: new.dumps()})
        self._forget(files)
        self._see(new)

    def _see(self, manifest: IndexManifest) -> bool:
        """Use this manifest from now on. Returns whether it differs from the one before."""
        if manifest == self.manifest:
            return False
        known = self.manifest.files
        self._forget({name for name, mark in manifest.files.items() if known.get(name) != mark})
        self._forget(f"{part.name}/{LIFT}" for part in self.manifest.parts())
        self._lifts.clear()
        self.manifest = manifest
        return True

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            (self._scratch / name).unlink(missing_ok=True)

    def _read_manifest(self, fresh: bool = True) -> IndexManifest:
        content = self._read(MANIFEST, fresh)
        if content is None:
            raise FileNotFoundError(
                f"{self.place}: no index of this name; make one with 'gaussmatch index'"
            )
        return IndexManifest.loads(content, f"{self.place}: {MANIFEST}")

    # ---- derived: read ----

    def file(self, name: str) -> Path | None:
        """Brought here once."""
        path = self._scratch / name
        if not path.is_file():
            content = self._read(name)
            if content is None:
                return None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return path

    def held(self, ids: Sequence[str], gallery: Gallery) -> set[str]:
        return {row["id"] for rows in self._pages(gallery, ["id"], ids) for row in rows}

    def records(self, gallery: Gallery) -> Iterator[Record]:
        for rows in self._pages(gallery, ["id", "record"]):
            yield from map(record, rows)

    def blocks(self, gallery: Gallery, ids: Sequence[str] | None = None) -> Iterator[Block]:
        for rows in self._pages(gallery, [*ITEM, "thumbnail"], ids, fresh=ids is None):
            yield gaussian(rows, self._form), [*map(record, rows)]

    def faults(self) -> Iterator[str]:
        """Of its files; and items that are gone, though nobody deleted them by this library."""
        self._forget({*self.manifest.files, *(f"run/{name}" for name in self.manifest.run)})
        yield from super().faults()  # of what is on the server
        for gallery in filter(self._has, GALLERIES):
            (part,), there = self.manifest.galleries[gallery], self._count(gallery)
            if self._read(f"{part.name}/{LIFT}") is None:
                yield f"{self.place}: {part.name}/{LIFT} is missing"
            noted = int(self._read(f"{part.name}/{COUNT}") or 0)
            if there < noted:
                yield f"{part.name}: {noted - there:,} of {noted:,} items are missing"

    def describe(self) -> dict[str, Any]:
        parts = self.manifest.galleries.items()
        return {"parts": {g: [self._described(part) for part in some] for g, some in parts}}

    def _has(self, gallery: Gallery) -> bool:
        """Whether a gallery has had items."""
        if not self.manifest.galleries[gallery]:
            self._see(self._read_manifest())  # another process may have been the first
        return bool(self.manifest.galleries[gallery])

    @property
    def _form(self) -> dict[str, int]:
        return dict(self.manifest.form or {})

    def _lift(self, gallery: Gallery) -> Lift:
        if gallery not in self._lifts:
            file = self.file(f"{self.manifest.galleries[gallery][0].name}/{LIFT}")
            if file is None:
                raise ValueError(f"{self.place}: its {LIFT} is missing; make the index again")
            self._lifts[gallery] = Lift.load(file.parent, self.similarity(gallery), gallery)
        return self._lifts[gallery]

    def _lift_file(self, part: str, lift: Lift) -> dict[str, bytes]:
        folder = self._scratch / part
        folder.mkdir(exist_ok=True)
        lift.save(folder)
        return {f"{part}/{LIFT}": (folder / LIFT).read_bytes()}

    # ---- what an index of vectors finds ----

    def compact(self, gallery: Gallery) -> None:
        """Index a gallery as the settings say, and measure what that finds; if it is too little,
        every item is looked at. Lifts that were made on a few first items are made anew, as are
        columns if other fields are declared."""
        if not self._has(gallery):
            return
        part, structure = self.manifest.galleries[gallery][0], self.settings.structure
        if self.size(gallery) < 2 * int(self._report(part.name).get("items", 0)):
            return  # it was measured so
        inner = self.similarity(gallery).metric == "inner_product"  # else scales do not matter
        few = 2 * part.items < min(SAMPLE, self.size(gallery)) and inner and structure != "flat"
        again = few or self._declared(gallery) != self.settings.fields
        some = self.some(SAMPLE if again else QUERIES, gallery)
        if some is None:
            return
        if again:
            lift = Lift.of(self.similarity(gallery), gallery, some[0])
            self._again(gallery, lift, len(some[1]))
        if self.manifest.galleries[gallery][0].structure != structure:
            self._restructure(gallery, structure)
        if structure == "flat":
            return
        view = self._settled(gallery)
        name = f"the index ({structure}) of the {gallery}, {view.reach:,} items,"
        report = measure(self.settings, view, some[0][:QUERIES].numpy(), name)
        if not report.used:
            self._restructure(gallery, "flat")
        about = {"items": view.reach, "settings": dict(self.manifest.settings)}
        name = self.manifest.galleries[gallery][0].name
        self._write({f"{name}/{REPORT}": json.dumps({**asdict(report), **about}).encode()})

    def _report(self, part: str) -> dict[str, Any]:
        """What was measured of a part with these settings; empty if nothing was."""
        content = self._read(f"{part}/{REPORT}", fresh=False)
        found: dict[str, Any] = {} if content is None else json.loads(content)
        return found if found.get("settings") == self.manifest.settings else {}

    def _described(self, part: SegmentInfo) -> dict[str, Any]:
        report = self._report(part.name)
        found = {f.name: report[f.name] for f in fields(Recall) if report}
        return {"name": part.name, "structure": part.structure, **found}

    def _width(self, part: SegmentInfo) -> int:
        """Candidates of a walk that finds enough; 0 if every row is looked at."""
        if part.structure == "flat":
            return 0
        return max(self.settings.search, int(self._report(part.name).get("search", 0)))


def packed(g: Gaussian) -> np.ndarray:
    """Means and log-variances side by side, in float32."""
    parts = [g.mean] if g.log_var is None else [g.mean, g.log_var]
    rows: np.ndarray = torch.cat(parts, -1).float().numpy().astype("<f4")
    return rows


def gaussian(rows: Sequence[Row], form: Mapping[str, int]) -> Gaussian:
    """The Gaussians of rows, as a batch."""
    found = [np.frombuffer(as_bytes(row["gaussian"]), dtype="<f4") for row in rows]
    values, dim = torch.from_numpy(np.stack(found).astype(np.float32)), form["dim"]
    return Gaussian(values[:, :dim], values[:, dim:] if form["variances"] else None)


def record_text(record: Record) -> str:
    """Metadata and source as JSON, as they were given."""
    source = "" if record.source is None else f', "source": {json.dumps(record.source)}'
    return f'{{"meta": {record.meta_json()}{source}}}'


def record(row: Row) -> Record:
    """The record of a row, with its thumbnail if requested."""
    stored, small = json.loads(row["record"]), row.get("thumbnail")
    return Record(row["id"], stored["meta"], as_bytes(small) or None, stored.get("source"))


def as_bytes(value: str | bytes | None) -> bytes:
    """What a database without bytes keeps as base64."""
    return base64.b64decode(value) if isinstance(value, str) else bytes(value or b"")


class RowsView(ABC):
    """One search; a ``Searchable``. Rows are numbered as they are met."""

    def __init__(self, lift: Lift, form: Mapping[str, int], reach: int, width: int) -> None:
        """
        Args:
            width: candidates of a walk; 0 if every row is looked at.
        """
        self.lift, self.form, self.lifted = lift, form, lift.queries
        self.reach, self.width, self.exact = reach, width, not width
        self._rows: list[Row] = []
        self._number: dict[str, int] = {}

    @abstractmethod
    def nearest(self, number: int, vectors: np.ndarray, count: int) -> list[list[Near]]:
        """For each vector at least ``count`` rows, and their products or squared distances with it
        by lift ``number``, best first."""

    @abstractmethod
    def all(self) -> Iterator[Sequence[Row]]:
        """All rows that may be found, some at a time."""

    def sample(self, count: int) -> np.ndarray:
        """Whichever rows the database gives first."""
        numbers: list[int] = []
        for rows in self.all():
            numbers += [self._meet(row) for row in rows[: count - len(numbers)]]
            if len(numbers) >= count:
                break
        return np.array(numbers, dtype=np.int64)

    def candidates(self, queries: LiftedQueries, count: int) -> Candidates:
        """The best of each lift, as the database finds them."""
        found, whole = [], True
        for number, vectors in enumerate(queries.vectors):
            answers = self.nearest(number, vectors, min(count, self.reach))
            most = max(map(len, answers))
            whole = whole and most >= self.reach
            rows = np.full((len(queries), most), -1)
            raw = np.full((len(queries), most), -np.inf if self.lift.inner else np.inf)
            for q, near in enumerate(answers):
                rows[q, : len(near)] = [self._meet(row) for row, _ in near]
                raw[q, : len(near)] = [value for _, value in near]
            found.append((rows, queries.rough(number, raw)))
        if not all(rows.size for rows, _ in found):
            return Candidates.none(len(queries))
        return Candidates.merged(found, whole)

    def scan(self, queries: LiftedQueries, count: int) -> Candidates:
        """Where a graph found too few under a narrow filter."""
        own, similarity = queries.queries.gaussian(), self.lift.similarity
        numbers: list[int] = []
        found: list[np.ndarray] = []
        for rows in self.all():
            items = gaussian(rows, self.form)
            here = query_scores(similarity, own, items, self.lift.gallery).double().numpy()
            best = np.unique(np.argsort(-here, axis=1)[:, :count])  # of some query
            numbers += [self._meet(rows[i]) for i in best.tolist()]
            found.append(here[:, best])
        every = np.concatenate(found, 1) if found else np.empty((len(queries), 0))
        order = np.argsort(-every, axis=1)[:, :count]
        ranked = np.take_along_axis(every, order, 1)
        return Candidates.merged([(np.array(numbers, dtype=np.int64)[order], ranked)], whole=False)

    def arrays(self, rows: np.ndarray) -> ArrayGaussian:
        return gaussian([self._rows[r] for r in rows.tolist()], self.form).numpy()

    def described(self, rows: np.ndarray) -> tuple[list[str], list[Mapping[str, Any]]]:
        found = [record(self._rows[r]) for r in rows.tolist()]
        return [one.id for one in found], [one.meta for one in found]

    def uncertainty(self, rows: np.ndarray) -> np.ndarray | None:
        if not self.form["variances"]:
            return None
        return np.array([self._rows[r]["uncertainty"] for r in rows.tolist()])

    def _meet(self, row: Row) -> int:
        """The number of a row, a new one if it was not seen before."""
        number = self._number.setdefault(row["id"], len(self._rows))
        if number == len(self._rows):
            self._rows.append(row)
        return number


def _finish(end: Callable[[], None], scratch: Path) -> None:
    end()
    shutil.rmtree(scratch, ignore_errors=True)


TYPES = "tnbo"
DECLARED = {"text": "t", "number": "n", "truth": "b"}
"""``IndexSettings.fields`` → how its facts begin."""


def facts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What can be filtered by.

    >>> facts({"split": "test", "year": 2014, "tags": ["a"], "by": None})
    {'t:split': 'test', 'n:year': 2014, 'o:tags': True}
    """
    found: dict[str, Any] = {}
    for name, value in meta.items():
        if value is not None:
            if isinstance(value, int) and abs(value) >= 2**63:
                value = float(value) if abs(value) <= sys.float_info.max else ()
            type_ = type_of(value)
            found[f"{type_}:{name}"] = True if type_ == "o" else value
    return found


def declared(id: str, meta: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """The values of declared fields, ``None`` if there is none.

    >>> declared("a", {"year": 2014}, {"year": "number", "by": "text"})
    {'year': 2014, 'by': None}
    """
    for name, wanted in fields.items():
        value = meta.get(name)
        if value is not None and type_of(value) != DECLARED[wanted]:
            raise ValueError(
                f"the field {name!r} is declared a {wanted}, and {id!r} has {value!r}; correct the "
                "item, or make the index without that field"
            )
    return {name: meta.get(name) for name in fields}


def type_of(value: Any) -> str:
    """How its fact begins."""
    return DECLARED.get(value_type(value), "o")
