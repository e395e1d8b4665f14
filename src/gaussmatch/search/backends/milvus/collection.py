"""The collection of a gallery, and how one search sees it: rows are what was found so far."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.search.backends.database import Near, RowsView
from gaussmatch.search.backends.milvus import rows as coding
from gaussmatch.search.backends.milvus.client import Client
from gaussmatch.search.backends.milvus.filter import Columns
from gaussmatch.search.backends.milvus.filter import ids as among
from gaussmatch.search.lift import Lift
from gaussmatch.search.manifest import Gallery, IndexSettings
from gaussmatch.search.record import Record
from gaussmatch.search.topk import COARSE

MOST = 16_384  # results of one query that Milvus gives at most
BLOCK = 1000  # rows read at a time
COUNTED = 5.0
"""Seconds that a count may be old, as other changes may be under ``Session``."""
POLL, STALLED = 0.5, 600.0
"""Seconds between two looks at an index that is built, and without any progress before an error."""


def count(client: Client, name: str, condition: str = "", level: str = "Strong") -> int:
    """Rows of a collection that fulfil a condition."""
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

    def add(self, gaussians: Gaussian, records: Sequence[Record]) -> None:
        """In batches; what was sent before an interruption counts."""
        rows = coding.rows(gaussians, records, self.lift, self.columns)  # refuses before any change
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
        for number in range(len(self.lift.centres)):
            self.client("drop_index", self.name, f"lift{number}")
        self.index()

    def index(self) -> None:
        """Build the index of the lifted vectors, and load it."""
        self.client("create_index", self.name, coding.index_params(self.lift, self.settings))
        self.client("load_collection", self.name)


class CollectionView(RowsView):
    """One search of a collection; all rows fulfil ``condition``."""

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
