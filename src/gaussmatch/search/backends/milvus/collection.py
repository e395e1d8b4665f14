"""The collections of an index in Milvus.

That of a gallery, as one search sees it: rows are what was found so far. And that of its files
(model, calibration, manifest, lifts), so that whoever can reach the server can ask in words: a file
is compressed, written as base64 and cut into rows of less than the 65,535 bytes that a VARCHAR
holds; a file of one row, as the manifest always is, changes in one step.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gaussmatch.core.similarities import Similarity
from gaussmatch.search.backends.database import Near, RowsView
from gaussmatch.search.backends.milvus import rows as coding
from gaussmatch.search.backends.milvus.client import Client, pymilvus
from gaussmatch.search.backends.milvus.filter import Columns
from gaussmatch.search.backends.milvus.filter import ids as among
from gaussmatch.search.lift import Lift
from gaussmatch.search.manifest import Gallery, IndexSettings
from gaussmatch.search.topk import COARSE

MOST = 16_384  # results of one query that Milvus gives at most
BLOCK = 1000  # rows read at a time
COUNTED = 5.0
"""Seconds that a count may be old, as other changes may be under ``Session``."""
CHUNK = 60_000
FIELDS = ("id", "chunks", "sha256", "text")
AT_ONCE = 64  # chunks read or written in one call
POLL, STALLED = 0.5, 600.0
"""Seconds between two looks at an index that is built, and without any progress before an error."""


def count(client: Client, name: str, condition: str = "", level: str = "Strong") -> int:
    """Rows of a collection that meet a condition."""
    fields = ["count(*)"]
    found = client("query", name, filter=condition, output_fields=fields, consistency_level=level)
    return int(found[0]["count(*)"])


@dataclass
class Collection:
    """The collection of a gallery, and how it is queried."""

    client: Client
    name: str
    gallery: Gallery
    form: dict[str, int]
    lift: Lift
    settings: IndexSettings
    consistency: str
    columns: Columns
    _counts: dict[str, tuple[int, float]] = field(default_factory=dict)

    def wanted(self) -> list[str]:
        return [w for w in coding.WANTED if w != "uncertainty" or self.form["variances"]]

    @property
    def level(self) -> str:
        return self.client.level(self.name, self.consistency)

    def count(self, condition: str = "", level: str | None = None) -> int:
        return count(self.client, self.name, condition, level or self.level)

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
        self, fields: Sequence[str], condition: str = "", level: str = "Strong"
    ) -> Iterator[list[dict[str, Any]]]:
        """Every row, some at a time. What pymilvus goes through a collection with is only as fresh
        as what older servers have seen last; so they are made to see everything first."""
        if level == "Strong":
            self.count(level="Strong")
        cursor = self.client(
            "query_iterator",
            self.name,
            batch_size=BLOCK,
            filter=condition,
            output_fields=list(fields),
            consistency_level=level,
        )
        try:
            while some := self.client.repeat("query", cursor.next):
                yield [dict(row) for row in some]
        finally:
            cursor.close()

    def rows(self, ids: Sequence[str], fields: Sequence[str], level: str) -> list[dict[str, Any]]:
        """The rows with these ids that are there."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(ids), BLOCK):
            found += self.client(
                "query",
                self.name,
                filter=among(ids[start : start + BLOCK]),
                output_fields=list(fields),
                consistency_level=level,
            )
        return found

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """In batches; what was sent before an interruption counts."""
        for batch in coding.batches(rows):
            self.client.write("upsert", self.name, batch)

    def delete(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), BLOCK):
            self.client.write("delete", self.name, filter=among(ids[start : start + BLOCK]))

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

    def restructure(self) -> None:
        """Index it anew as the settings say, in place: nobody can search it until that is done."""
        self.client("release_collection", self.name)
        for number in range(len(self.lift.centers)):
            self.client("drop_index", self.name, f"lift{number}")
        self.index()

    def index(self) -> None:
        """Build the index of the lifted vectors, and load it."""
        self.client("create_index", self.name, coding.index_params(self.lift, self.settings))
        self.client("load_collection", self.name)


class CollectionView(RowsView):
    """One search of a collection; all rows meet ``condition``."""

    def __init__(self, collection: Collection, similarity: Similarity, condition: str) -> None:
        width = 0 if collection.settings.structure == "flat" else collection.settings.search
        reach = collection.reach(condition)
        super().__init__(similarity, collection.lift, collection.form, reach, width)
        self.collection, self.condition = collection, condition

    def nearest(self, number: int, vectors: np.ndarray, count: int) -> list[list[Near]]:
        c = self.collection
        coarse = COARSE if c.settings.structure == "compressed" else 1
        count = min(coarse * count, MOST, self.reach)
        answers = c.client(
            "search",
            c.name,
            data=list(vectors),
            anns_field=f"lift{number}",
            limit=count,
            filter=self.condition,
            search_params={"params": coding.search_params(c.settings.structure, self.width, count)},
            output_fields=c.wanted(),
            consistency_level=c.level,
        )
        return [[({**h["entity"], "id": h["id"]}, h["distance"]) for h in hits] for hits in answers]

    def all(self) -> Iterator[list[dict[str, Any]]]:
        c = self.collection
        return c.all(c.wanted(), self.condition, c.level)

    record = staticmethod(coding.record)


class FilesCollection:
    """Named files in the collection ``NAME_about``."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.collection = client, f"{name}_about"

    def open(self) -> bool:
        """Make ready to read; whether there is anything."""
        there = self._client.ours(self.collection, FIELDS)
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
        schema.add_field("text", types.VARCHAR, max_length=65_535)
        schema.add_field("nothing", types.FLOAT_VECTOR, dim=2)  # every collection needs a vector
        params = milvus.prepare_index_params()
        params.add_index("nothing", index_type="FLAT", metric_type="L2")
        self._client("create_collection", self.collection, schema=schema, index_params=params)

    def drop(self) -> None:
        self._client.drop(self.collection, FIELDS)

    def write(self, file: str, content: bytes) -> None:
        text = base64.b64encode(zlib.compress(content)).decode("ascii")
        chunks = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)]
        rows = [
            {
                "id": f"{file}#{number}",
                "chunks": len(chunks),
                "sha256": hashlib.sha256(content).hexdigest(),
                "text": chunk,
                "nothing": [0.0, 0.0],
            }
            for number, chunk in enumerate(chunks)
        ]
        for start in range(0, len(rows), AT_ONCE):
            self._client.write("upsert", self.collection, rows[start : start + AT_ONCE])

    def read(self, file: str, consistency: str = "Strong") -> bytes | None:
        """``None`` if there is no such file; a damaged one is refused."""
        first = self._rows(file, range(1), self._client.level(self.collection, consistency))
        if not first:
            return None
        rows = [*first]
        for start in range(1, first[0]["chunks"], AT_ONCE):
            rows += self._rows(file, range(start, min(start + AT_ONCE, first[0]["chunks"])))
        rows.sort(key=lambda row: int(row["id"].rpartition("#")[2]))
        try:
            content = zlib.decompress(base64.b64decode("".join(row["text"] for row in rows)))
        except (ValueError, zlib.error) as error:
            raise self._damaged(file) from error
        if hashlib.sha256(content).hexdigest() != first[0]["sha256"]:
            raise self._damaged(file)
        return content

    def _rows(self, file: str, numbers: range, level: str = "Strong") -> list[dict[str, Any]]:
        return list(
            self._client(
                "query",
                self.collection,
                filter=among([f"{file}#{n}" for n in numbers]),
                output_fields=list(FIELDS),
                consistency_level=level,
            )
        )

    def _damaged(self, file: str) -> ValueError:
        return ValueError(f"{self.collection}: {file} is damaged; make the index again")
