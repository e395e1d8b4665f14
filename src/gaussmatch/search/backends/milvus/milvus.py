"""An index whose items are in Milvus, and the collections that it is made of."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as Some
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity as similarity_called
from gaussmatch.core.similarities.base import other_side
from gaussmatch.search.backend import batched
from gaussmatch.search.backends.database import (
    COUNT,
    DECLARED,
    ITEM,
    TO_RANK,
    Database,
    Near,
    Row,
    RowsView,
    gaussian,
    record,
)
from gaussmatch.search.backends.milvus import rows as coding
from gaussmatch.search.backends.milvus.client import (
    NO_COLLECTION,
    OLDEST,
    Address,
    Client,
    MilvusError,
    connect,
    pymilvus,
)
from gaussmatch.search.lift import SAMPLE, Lift
from gaussmatch.search.manifest import (
    GALLERIES,
    MANIFEST,
    Gallery,
    IndexManifest,
    Record,
    SegmentInfo,
    StructureName,
)
from gaussmatch.search.topk import COARSE
from gaussmatch.search.where import Where

MOST = 16_384  # results of one query that Milvus gives at most
BLOCK = 1000  # rows read at a time
COUNTED = 5.0
"""Seconds that a count may be old, as other changes may be under ``Session``."""
CHUNK, AT_ONCE = 60_000, 64
"""Characters of a file in one row, which holds 65,535 bytes; and rows read or written in a call."""
FILE = ("id", "chunks", "sha256", "text")
POLL, STALLED = 0.5, 600.0
"""Seconds between two looks at an index that is built, and without any progress before an error."""


class Milvus(Database):
    """Three collections: NAME_images_N and NAME_captions_N, made when their first items come, and
    NAME_about, which keeps the files of the index: it is self-contained.

    What differs from a folder: a change counts upsert by upsert, not as a whole (repeating it after
    an interruption is safe, as everything goes by id); any number of processes may add at once
    after the first items are in; and similarities without a lift are refused.
    """

    def _connect(self, make: bool) -> Callable[[], None]:
        self.address = Address.of(self.place)
        self._client = connect(self.address, make)
        self.place, self.one_process = str(self.address), not self.address.remote
        self._files = Files(self._client, f"{self.address.name}_about")
        self._collections: dict[str, Collection] = {}
        self._opened = False
        return self._client.close

    def _create(self, files: Mapping[str, bytes]) -> None:
        if self.address.remote:
            _check_version(self.place, self._client, self.manifest.similarity)
        if self._files.open() and self._files.read(MANIFEST) is not None:
            raise self._taken()
        self._files.create()
        self._write(files)

    def alive(self) -> bool:
        return self._client.alive()

    def stale(self, error: Exception) -> bool:
        return isinstance(error, MilvusError) and error.code == NO_COLLECTION

    def drop(self) -> None:
        """With all leftovers. Its files go last: if interrupted, it can be dropped again."""
        ours = re.compile(rf"{self.address.name}_({'|'.join(GALLERIES)})_\d+")
        for name in self._client("list_collections"):
            if ours.fullmatch(name):
                self._client.drop(name, coding.FIELDS)
        self._files.drop()
        self.close()

    # ---- read ----

    def _read(self, name: str, fresh: bool = True) -> bytes | None:
        self._opened = self._opened or self._files.open()
        if not self._opened:
            return None
        return self._files.read(name, "Strong" if fresh else self.address.consistency)

    def _see(self, manifest: IndexManifest) -> bool:
        """Items are always seen as they are."""
        changed = super()._see(manifest)
        if changed:
            self._collections = {}
        return changed

    def size(self, gallery: Gallery) -> int:
        held = self._held(gallery)
        return 0 if held is None else held.count()

    def _count(self, gallery: Gallery) -> int:
        return self._known(gallery).count(level="Strong")

    def _pages(
        self,
        gallery: Gallery,
        columns: Sequence[str],
        ids: Sequence[str] | None = None,
        fresh: bool = True,
    ) -> Iterator[Sequence[Row]]:
        if (held := self._held(gallery)) is not None:
            level = "Strong" if fresh else held.level
            some = held.all(columns) if ids is None else held.rows(columns, ids, level)
            yield from some

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Some[str]
    ) -> list[CollectionView]:
        held = self._held(gallery)
        if held is None:
            return []
        condition = coding.expression(where, held.columns)
        if exclude:
            out = coding.ids([*exclude], inside=False)
            condition = f"{condition} and {out}" if condition else out
        return [CollectionView(held, condition)]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "consistency": self.address.consistency}

    def _held(self, gallery: Gallery) -> Collection | None:
        """The collection of a gallery; ``None`` before its first item."""
        if not self._has(gallery):
            return None
        if gallery not in self._collections:
            part = self.manifest.galleries[gallery][0]
            held = Collection(self, part, self._lift(gallery), self._form)
            if self._client("list_indexes", held.name, "lift0"):
                self._client("load_collection", held.name)
            else:
                held.index(part.structure)  # a process was killed while it changed the structure
            self._collections[gallery] = held
        return self._collections[gallery]

    def _known(self, gallery: Gallery) -> Collection:
        held = self._held(gallery)
        assert held is not None
        return held

    # ---- change ----

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Any process may write: everything goes by id."""
        yield

    def _write(self, files: Mapping[str, bytes]) -> None:
        """A manifest takes the place of the old one in one step, as it is one row."""
        for name, content in files.items():
            self._files.write(name, content)

    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        """In batches; what was sent before an interruption counts."""
        held, few, fields = self._held(gallery), gaussians[:SAMPLE], self.settings.fields
        planned = {name: (DECLARED[type_], n) for n, (name, type_) in enumerate(fields.items())}
        lift = Lift.of(self.similarity(gallery), gallery, few) if held is None else held.lift
        columns = planned if held is None else held.columns
        rows = coding.rows(gaussians, records, lift, columns)  # refuses before anything is made
        if held is None:
            held = self._new_collection(gallery, lift, len(few), form)
        held.add(rows)
        self._note_count(held, held.count(level="Session"))

    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        held = self._known(gallery)
        self._note_count(held, held.count(level="Strong") - len(ids))  # first: none is lost between
        held.delete(ids)

    def compact(self, gallery: Gallery) -> None:
        """See ``Database.compact``. (Milvus itself joins segments and drops what was deleted.)"""
        super().compact(gallery)
        self._collections.pop(gallery, None)  # it is searched so wide from now on

    def _note_count(self, held: Collection, count: int) -> None:
        self._files.write(f"{held.name}/{COUNT}", str(count).encode())

    def _declared(self, gallery: Gallery) -> dict[str, str]:
        return coding.declared_in(self._known(gallery).columns)

    def _settled(self, gallery: Gallery) -> CollectionView:
        held = self._known(gallery)
        if self.address.remote:
            held.settle()
        return CollectionView(held, "")

    def _new_collection(
        self,
        gallery: Gallery,
        lift: Lift,
        typical: int,
        form: dict[str, int],
        old: Collection | None = None,
    ) -> Collection:
        """An empty collection, or one with the items of another, that is from now on the one."""
        name = f"{self.address.name}_{gallery}_{self.manifest.generation + 1}"
        part = SegmentInfo(name, typical, self.settings.structure)
        self._client.drop(name, coding.FIELDS)  # of a process that was killed
        params = coding.index_params(lift, part.structure, self.settings)
        params.extend(coding.column_params(self.settings.fields))
        schema = coding.schema(form, lift, self.settings.fields, self.address.mmap)
        self._client("create_collection", name, schema=schema, index_params=params)
        self._write(self._lift_file(name, lift))
        made = Collection(self, part, lift, form)
        for some in () if old is None else old.all([*ITEM, "thumbnail"]):
            items = gaussian(some, form), [*map(record, some)]
            made.add(coding.rows(*items, lift, made.columns))
        self.save(self.manifest.with_parts(gallery, [part], form))
        self._collections[gallery] = made
        return made

    def _again(self, gallery: Gallery, lift: Lift, typical: int) -> None:
        """Into a new collection."""
        old = self._known(gallery)
        made = self._new_collection(gallery, lift, typical, self._form, old)
        self._note_count(made, made.count(level="Session"))
        self._client("drop_collection", old.name)

    def _restructure(self, gallery: Gallery, structure: StructureName) -> None:
        """In place: nobody can search it until that is done. It is noted first: if interrupted, the
        next to open it builds what is noted."""
        held, part = self._known(gallery), self.manifest.galleries[gallery][0]
        self.save(self.manifest.with_parts(gallery, [replace(part, structure=structure)]))
        self._client("release_collection", held.name)
        for number in range(len(held.lift.centers)):
            self._client("drop_index", held.name, f"lift{number}")
        held.index(structure)


class Collection:
    """The collection of a gallery, and how it is queried."""

    def __init__(
        self, backend: Milvus, part: SegmentInfo, lift: Lift, form: Mapping[str, int]
    ) -> None:
        self.client, self.name, self.lift, self.form = backend._client, part.name, lift, form
        self.structure, self.width = part.structure, backend._width(part)
        self.settings, self.consistency = backend.settings, backend.address.consistency
        self.columns = coding.columns(self.client("describe_collection", part.name)["fields"])
        self._counts: dict[str, tuple[int, float]] = {}

    @property
    def level(self) -> str:
        return self.client.level(self.name, self.consistency)

    def count(self, condition: str = "", level: str | None = None) -> int:
        found = self.query("query", ["count(*)"], condition, level or self.level)
        return int(found[0]["count(*)"])

    def reach(self, condition: str) -> int:
        """About how many items a search may find: not counted again before every search, unless
        this process has changed the collection or answers must be ``Strong``."""
        now = time.monotonic()
        count, at = self._counts.get(condition, (0, -math.inf))
        fresh = now - at < COUNTED and at > self.client.written(self.name)
        if self.consistency == "Strong" or not fresh:
            if len(self._counts) > BLOCK:
                self._counts.clear()
            count = self.count(condition)
            self._counts[condition] = count, now
        return count

    def all(
        self, columns: Sequence[str], condition: str = "", level: str = "Strong"
    ) -> Iterator[list[Row]]:
        """Every row, some at a time. What pymilvus goes through a collection with is only as fresh
        as what older servers have seen last; so they are made to see everything first."""
        if level == "Strong":
            self.count(level="Strong")
        cursor = self.query("query_iterator", columns, condition, level, batch_size=BLOCK)
        try:
            while some := self.client.repeat("query", cursor.next):
                yield [coding.row_of(row) for row in some]
        finally:
            cursor.close()

    def rows(self, columns: Sequence[str], ids: Sequence[str], level: str) -> Iterator[list[Row]]:
        """The rows with these ids that are there."""
        for some in batched(ids, BLOCK):
            if found := self.query("query", columns, coding.ids(some), level):
                yield [coding.row_of(row) for row in found]

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """In batches; what was sent before an interruption counts."""
        for batch in coding.batches(rows):
            self.client.write("upsert", self.name, batch)

    def delete(self, ids: Sequence[str]) -> None:
        for some in batched(ids, BLOCK):
            self.client.write("delete", self.name, filter=coding.ids(some))

    def index(self, structure: str) -> None:
        """Build the index of the lifted vectors, and load it."""
        self.structure = structure
        params = coding.index_params(self.lift, structure, self.settings)
        self.client("create_index", self.name, params)
        self.client("load_collection", self.name)

    def settle(self) -> None:
        """Wait until every row is in a sealed segment that is indexed and in memory. Rows that came
        a moment ago are searched by an interim index, which finds other items."""
        live = self.count(level="Strong")
        self.client("flush", self.name)
        before, since = (-1, -1), time.monotonic()
        while True:
            about = self.client("describe_index", self.name, "lift0")
            total = int(about["total_rows"])
            now = int(about["indexed_rows"]), self.client.sealed(self.name)
            if not int(about["pending_index_rows"]) and min(now) >= total >= live:
                return
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > STALLED:
                raise TimeoutError(
                    f"{self.name}: Milvus has indexed {now[0]:,} and loaded {now[1]:,} of "
                    f"{total:,} rows and has done no more for {STALLED:.0f} s; see its log, then "
                    "compact again"
                )
            time.sleep(POLL)

    def query(
        self, call: str, columns: Sequence[str], condition: str, level: str, **more: Any
    ) -> Any:
        """Points have no uncertainty."""
        wanted = [name for name in columns if name != "uncertainty" or self.form["variances"]]
        options = {"filter": condition, "output_fields": wanted, "consistency_level": level}
        return self.client(call, self.name, **options, **more)


class CollectionView(RowsView):
    """One search of a collection; all rows meet ``condition``."""

    def __init__(self, collection: Collection, condition: str) -> None:
        c, width = collection, 0 if collection.structure == "flat" else collection.width
        super().__init__(c.lift, c.form, c.reach(condition), width)
        self.collection, self.condition = collection, condition

    def nearest(self, number: int, vectors: np.ndarray, count: int) -> list[list[Near]]:
        c = self.collection
        count = min((COARSE if c.structure == "compressed" else 1) * count, MOST, self.reach)
        answers = c.query(
            "search",
            TO_RANK,
            self.condition,
            c.level,
            data=list(vectors),
            anns_field=f"lift{number}",
            limit=count,
            search_params={"params": coding.search_params(c.structure, self.width, count)},
        )
        return [
            [(coding.row_of({**hit["entity"], "id": hit["id"]}), hit["distance"]) for hit in hits]
            for hits in answers
        ]

    def all(self) -> Iterator[list[Row]]:
        return self.collection.all(TO_RANK, self.condition, self.collection.level)


class Files:
    """Named files in a collection: a file is compressed, written as base64 and cut into rows; one
    of a single row, as the manifest always is, changes in one step."""

    def __init__(self, client: Client, collection: str) -> None:
        self._client, self.collection = client, collection

    def open(self) -> bool:
        """Make ready to read; whether there is anything."""
        there = self._client.ours(self.collection, FILE)
        if there:
            self._client("load_collection", self.collection)
        return there

    def create(self) -> None:
        """Empty; what a killed ``create`` left is removed."""
        milvus, types = pymilvus().MilvusClient, pymilvus().DataType
        self.drop()
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", types.VARCHAR, is_primary=True, max_length=512)
        schema.add_field("chunks", types.INT64)
        schema.add_field("sha256", types.VARCHAR, max_length=64)
        schema.add_field("text", types.VARCHAR, max_length=coding.TEXT)
        schema.add_field("nothing", types.FLOAT_VECTOR, dim=2)  # every collection needs a vector
        params = milvus.prepare_index_params()
        params.add_index("nothing", index_type="FLAT", metric_type="L2")
        self._client("create_collection", self.collection, schema=schema, index_params=params)

    def drop(self) -> None:
        self._client.drop(self.collection, FILE)

    def write(self, file: str, content: bytes) -> None:
        text = base64.b64encode(zlib.compress(content)).decode("ascii")
        chunks = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)]
        about = {"chunks": len(chunks), "sha256": hashlib.sha256(content).hexdigest()}
        rows = [
            {**about, "id": f"{file}#{n}", "text": chunk, "nothing": [0.0, 0.0]}
            for n, chunk in enumerate(chunks)
        ]
        for some in batched(rows, AT_ONCE):
            self._client.write("upsert", self.collection, [*some])

    def read(self, file: str, consistency: str = "Strong") -> bytes | None:
        """``None`` if there is no such file; a damaged one is refused."""
        rows = self._rows(file, [0], self._client.level(self.collection, consistency))
        if not rows:
            return None
        for some in batched(range(1, rows[0]["chunks"]), AT_ONCE):
            rows += self._rows(file, some)
        digest = rows[0]["sha256"]
        rows.sort(key=lambda row: int(row["id"].rpartition("#")[2]))
        try:
            content = zlib.decompress(base64.b64decode("".join(row["text"] for row in rows)))
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError("its checksum does not match")
        except (ValueError, zlib.error) as error:
            raise ValueError(
                f"{self.collection}: {file} is damaged; make the index again"
            ) from error
        return content

    def _rows(self, file: str, numbers: Sequence[int], level: str = "Strong") -> list[Any]:
        return [
            *self._client(
                "query",
                self.collection,
                filter=coding.ids([f"{file}#{n}" for n in numbers]),
                output_fields=[*FILE],
                consistency_level=level,
            )
        ]


def _check_version(place: str, client: Client, name: str) -> None:
    """Refuse a server that fails only when the first items come."""
    some = Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))
    sides = (similarity_called(name).for_query(other_side(g)) for g in GALLERIES)
    needed = (2, 4) if max(len(s.lift_images(some)) for s in sides) > 1 else OLDEST
    if client.version < needed:
        found, least = (".".join(map(str, v)) for v in (client.version, needed))
        raise ValueError(
            f"{place} is Milvus {found}, and {name} needs {least} or later; update the server, "
            "or keep the index in a folder"
        )
