"""Which gallery items are right for which query: the relation that every metric takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Relevance:
    """A sparse yes/no relation between queries (rows) and gallery items (columns), in CSR form.

    Args:
        indptr: (queries + 1), where each query's items start.
        items: (pairs), the relevant gallery ids of query q at ``items[indptr[q]:indptr[q+1]]``,
            ascending.
        gallery: number of gallery items.

    >>> r = Relevance.from_pairs([0, 0, 1], [2, 0, 1], queries=2, gallery=3)
    >>> r.counts, r.of(0)
    (tensor([2, 1]), tensor([0, 2]))
    >>> r.transpose().counts
    tensor([1, 1, 1])
    """

    indptr: Int[Tensor, "queries_plus_1"]
    items: Int[Tensor, "pairs"]
    gallery: int

    @staticmethod
    def from_pairs(
        query: Sequence[int] | Tensor, item: Sequence[int] | Tensor, *, queries: int, gallery: int
    ) -> Relevance:
        """From (query, item) pairs in any order; a pair given twice counts once."""
        rows, columns = torch.as_tensor(query).long(), torch.as_tensor(item).long()
        if rows.shape != columns.shape or rows.ndim != 1:
            raise ValueError("query and item must be one-dimensional and of one length")
        for name, ids, size in (("query", rows, queries), ("item", columns, gallery)):
            if len(ids) and (ids.min() < 0 or ids.max() >= size):
                span = f"{int(ids.min())} to {int(ids.max())}"
                raise ValueError(f"{name} ids must lie in [0, {size}), got {span}")
        key = torch.unique(rows * max(gallery, 1) + columns)  # sorted: by query, then by item
        counts = torch.bincount(key // max(gallery, 1), minlength=queries)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Relevance(indptr, key % max(gallery, 1), gallery)

    @staticmethod
    def from_sets(sets: Iterable[Iterable[int]], *, gallery: int) -> Relevance:
        """From one collection of relevant gallery ids for each query."""
        lists = [list(s) for s in sets]
        query = [q for q, items in enumerate(lists) for _ in items]
        return Relevance.from_pairs(
            query, [i for items in lists for i in items], queries=len(lists), gallery=gallery
        )

    @property
    def queries(self) -> int:
        return len(self.indptr) - 1

    @property
    def counts(self) -> Int[Tensor, "queries"]:
        """How many items are right for each query."""
        return self.indptr.diff()

    @property
    def query_of(self) -> Int[Tensor, "pairs"]:
        """The query of each pair, beside ``items``."""
        return torch.repeat_interleave(torch.arange(self.queries), self.counts)

    def of(self, query: int) -> Int[Tensor, "r"]:
        """The relevant gallery ids of one query, ascending."""
        return self.items[self.indptr[query] : self.indptr[query + 1]]

    def dense(self, start: int = 0, stop: int | None = None) -> Bool[Tensor, "block gallery"]:
        """Rows ``start:stop`` as a boolean matrix."""
        stop = self.queries if stop is None else min(stop, self.queries)
        mask = torch.zeros(stop - start, self.gallery, dtype=torch.bool)
        lo, hi = int(self.indptr[start]), int(self.indptr[stop])
        rows = torch.repeat_interleave(torch.arange(stop - start), self.counts[start:stop])
        mask[rows, self.items[lo:hi]] = True
        return mask

    def rows(self, start: int, stop: int) -> Relevance:
        """Queries ``start:stop`` with the whole gallery, numbered from 0."""
        ends = self.indptr[start : stop + 1]
        return Relevance(ends - ends[0], self.items[int(ends[0]) : int(ends[-1])], self.gallery)

    def transpose(self) -> Relevance:
        """The same relation seen from the gallery."""
        return Relevance.from_pairs(
            self.items, self.query_of, queries=self.gallery, gallery=self.queries
        )

    def subset(self, queries: Tensor, gallery: Tensor) -> Relevance:
        """The relation among chosen queries and items, renumbered in the order given."""
        for name, ids in (("query", queries), ("gallery", gallery)):
            seen, times = torch.unique(ids, return_counts=True)
            if len(seen) < len(ids):
                raise ValueError(f"{name} id {int(seen[times > 1][0])} is chosen twice")
        new_query = torch.full((self.queries,), -1).scatter_(0, queries, torch.arange(len(queries)))
        new_item = torch.full((self.gallery,), -1).scatter_(0, gallery, torch.arange(len(gallery)))
        q, i = new_query[self.query_of], new_item[self.items]
        kept = (q >= 0) & (i >= 0)
        return Relevance.from_pairs(q[kept], i[kept], queries=len(queries), gallery=len(gallery))
