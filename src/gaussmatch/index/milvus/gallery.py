"""A gallery in Milvus as one search sees it: like a segment whose rows are what was found so far.

``best`` then does with it what it does with a segment on disk: it asks for candidates, scores them
again with the similarity itself, and asks for more where rounding leaves a doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.layout import Gallery, Part
from gaussmatch.index.lift import Asked, Lift, scores
from gaussmatch.index.milvus import rows as coding
from gaussmatch.index.milvus.client import Client
from gaussmatch.index.milvus.filter import ids as among
from gaussmatch.index.settings import Settings
from gaussmatch.index.structure import Candidates, merge
from gaussmatch.similarities import Similarity

MOST = 16_384  # results of one query that Milvus gives at most
BLOCK = 1000  # rows read at a time


@dataclass
class Collection:
    """The collection of a gallery, and how it is asked."""

    client: Client
    name: str
    gallery: Gallery
    form: dict[str, int]
    lift: Lift
    settings: Settings
    consistency: str

    def wanted(self) -> list[str]:
        return [w for w in coding.WANTED if w != "uncertainty" or self.form["variances"]]

    def count(self, condition: str = "", consistency: str = "Strong") -> int:
        told = self.client(
            "query",
            self.name,
            filter=condition,
            output_fields=["count(*)"],
            consistency_level=consistency,
        )
        return int(told[0]["count(*)"])

    def all(self, fields: Sequence[str], condition: str = "") -> Iterator[list[dict[str, Any]]]:
        """Every row, some at a time."""
        cursor = self.client(
            "query_iterator",
            self.name,
            batch_size=BLOCK,
            filter=condition,
            output_fields=list(fields),
            consistency_level="Strong",
        )
        try:
            while some := self.client.repeat("query", cursor.next):
                yield [dict(row) for row in some]
        finally:
            cursor.close()

    def rows(self, ids: Sequence[str], fields: Sequence[str]) -> list[dict[str, Any]]:
        """The rows with these ids that are there."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(ids), BLOCK):
            found += self.client(
                "query",
                self.name,
                filter=among(ids[start : start + BLOCK]),
                output_fields=list(fields),
                consistency_level="Strong",
            )
        return found


class Seen:
    """One search: rows are numbered as they are met.

    It has what ``best`` and ``Index`` ask of a segment; ``condition`` is what all rows fulfil.
    """

    def __init__(self, collection: Collection, similarity: Similarity, condition: str) -> None:
        self.collection, self.condition = collection, condition
        self.similarity, self.gallery = similarity, collection.gallery
        count = collection.count(condition, collection.consistency)
        self.part = Part(collection.name, count, collection.settings.kind, {})
        self.structure = self.items = self
        self.exact = collection.settings.kind == "flat"
        self._rows: list[dict[str, Any]] = []
        self._number: dict[str, int] = {}

    @property
    def scan(self) -> Scan:
        return Scan(self)

    @property
    def uncertainty(self) -> np.ndarray | None:
        if not self.collection.form["variances"]:
            return None
        return np.array([row["uncertainty"] for row in self._rows])

    def gaussians(self, rows: np.ndarray) -> Gaussian:
        return coding.gaussian([self._rows[r] for r in rows.tolist()], self.collection.form)

    def told(self, rows: np.ndarray) -> list[tuple[str, Any, str | None]]:
        found = [coding.record(self._rows[r]) for r in rows.tolist()]
        return [(r.id, r.meta, r.source) for r in found]

    def ask(self, queries: Gaussian) -> Asked:
        return self.collection.lift.ask(queries)

    def candidates(self, asked: Asked, count: int, allowed: np.ndarray | None = None) -> Candidates:
        """The best of each lift, as Milvus finds them."""
        c = self.collection
        count = min(count, MOST, self.part.items)
        found = []
        for number, vectors in enumerate(asked.vectors):
            told = c.client(
                "search",
                c.name,
                data=list(vectors),
                anns_field=f"lift{number}",
                limit=count,
                filter=self.condition,
                search_params={"params": coding.search_params(c.settings, count)},
                output_fields=c.wanted(),
                consistency_level=c.consistency,
            )
            rows = np.full((len(asked), count), -1)
            raw = np.full((len(asked), count), -np.inf if c.lift.inner else np.inf)
            for q, hits in enumerate(told):
                rows[q, : len(hits)] = [self.meet(_entity(hit)) for hit in hits]
                raw[q, : len(hits)] = [hit["distance"] for hit in hits]
            found.append((rows, asked.rough(number, raw)))
        return merge(found, whole=count >= self.part.items)

    def meet(self, row: dict[str, Any]) -> int:
        """The number of a row, a new one if it was not seen before."""
        number = self._number.setdefault(row["id"], len(self._rows))
        if number == len(self._rows):
            self._rows.append(row)
        return number


class Scan:
    """Every row by the similarity itself, where a graph found too few under a narrow filter."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen

    def candidates(self, asked: Asked, count: int, allowed: np.ndarray | None = None) -> Candidates:
        seen, collection = self.seen, self.seen.collection
        numbers: list[int] = []
        found: list[np.ndarray] = []
        for rows in collection.all(collection.wanted(), seen.condition):
            items = coding.gaussian(rows, collection.form)
            told = scores(seen.similarity, seen.gallery, items, asked.queries).double().numpy()
            best = np.unique(np.argsort(-told, axis=1)[:, :count])  # of some query
            numbers += [seen.meet(rows[i]) for i in best.tolist()]
            found.append(told[:, best])
        every = np.concatenate(found, 1) if found else np.empty((len(asked), 0))
        order = np.argsort(-every, axis=1)[:, :count]
        ranked = np.take_along_axis(every, order, 1)
        return merge([(np.array(numbers, dtype=np.int64)[order], ranked)], whole=False)


def _entity(hit: Any) -> dict[str, Any]:
    return {**hit["entity"], "id": hit["id"]}
