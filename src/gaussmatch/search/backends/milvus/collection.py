"""The collection of a gallery, and how one search sees it: rows are what was found so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search.backends.milvus import rows as coding
from gaussmatch.search.backends.milvus.client import Client
from gaussmatch.search.backends.milvus.filter import ids as among
from gaussmatch.search.lift import Lift, LiftedQueries
from gaussmatch.search.manifest import Gallery, IndexSettings
from gaussmatch.search.topk import COARSE, Candidates

MOST = 16_384  # results of one query that Milvus gives at most
BLOCK = 1000  # rows read at a time


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

    def wanted(self) -> list[str]:
        return [w for w in coding.WANTED if w != "uncertainty" or self.form["variances"]]

    def count(self, condition: str = "", consistency: str = "Strong") -> int:
        found = self.client(
            "query",
            self.name,
            filter=condition,
            output_fields=["count(*)"],
            consistency_level=consistency,
        )
        return int(found[0]["count(*)"])

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


class CollectionView:
    """One search; a ``Searchable``. Rows are numbered as they are met, all fulfil ``condition``."""

    def __init__(self, collection: Collection, similarity: Similarity, condition: str) -> None:
        self.collection, self.similarity, self.condition = collection, similarity, condition
        self.reach = collection.count(condition, collection.consistency)
        self.exact = collection.settings.structure == "flat"
        self._rows: list[dict[str, Any]] = []
        self._number: dict[str, int] = {}

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        return self.collection.lift.queries(queries)

    def candidates(self, queries: LiftedQueries, count: int) -> Candidates:
        """The best of each lift, as Milvus finds them."""
        c = self.collection
        coarse = COARSE if c.settings.structure == "compressed" else 1
        count = min(coarse * count, MOST, self.reach)
        found = []
        for number, vectors in enumerate(queries.vectors):
            answers = c.client(
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
            rows = np.full((len(queries), count), -1)
            raw = np.full((len(queries), count), -np.inf if c.lift.inner else np.inf)
            for q, hits in enumerate(answers):
                rows[q, : len(hits)] = [self._meet({**h["entity"], "id": h["id"]}) for h in hits]
                raw[q, : len(hits)] = [hit["distance"] for hit in hits]
            found.append((rows, queries.rough(number, raw)))
        return Candidates.merged(found, whole=count >= self.reach)

    def scan(self, queries: LiftedQueries, count: int) -> Candidates:
        """Where a graph found too few under a narrow filter."""
        c, own = self.collection, queries.queries.gaussian()
        numbers: list[int] = []
        found: list[np.ndarray] = []
        for rows in c.all(c.wanted(), self.condition):
            items = coding.gaussian(rows, c.form)
            here = query_scores(self.similarity, own, items, c.gallery).double().numpy()
            best = np.unique(np.argsort(-here, axis=1)[:, :count])  # of some query
            numbers += [self._meet(rows[i]) for i in best.tolist()]
            found.append(here[:, best])
        every = np.concatenate(found, 1) if found else np.empty((len(queries), 0))
        order = np.argsort(-every, axis=1)[:, :count]
        ranked = np.take_along_axis(every, order, 1)
        return Candidates.merged([(np.array(numbers, dtype=np.int64)[order], ranked)], whole=False)

    def arrays(self, rows: np.ndarray) -> ArrayGaussian:
        found = [self._rows[r] for r in rows.tolist()]
        return coding.gaussian(found, self.collection.form).numpy()

    def described(self, rows: np.ndarray) -> tuple[list[str], list[Mapping[str, Any]]]:
        found = [coding.record(self._rows[r]) for r in rows.tolist()]
        return [record.id for record in found], [record.meta for record in found]

    def uncertainty(self, rows: np.ndarray) -> np.ndarray | None:
        if not self.collection.form["variances"]:
            return None
        return np.array([self._rows[r]["uncertainty"] for r in rows.tolist()])

    def _meet(self, row: dict[str, Any]) -> int:
        """The number of a row, a new one if it was not seen before."""
        number = self._number.setdefault(row["id"], len(self._rows))
        if number == len(self._rows):
            self._rows.append(row)
        return number
