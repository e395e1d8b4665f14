"""Which gallery items are right for which query (``Relevance``), and where these end up in a
ranking: of scores, block by block, or of ranked ids; and PMRP, for which what shows nearly the
same object classes counts as right.

**A tie never counts in the model's favor.** If a wrong item scores exactly as much as a right
one, the wrong one is taken to stand before it. A model that gives every item the same score is
therefore last, not first.

Of a ranking given as ids, ``ranked`` is (queries × k): for each query the ids of the gallery items,
best first. ``positives`` is one collection of right ids for each query, or a ``Relevance``. Ids are
compared by value, so positions 0, 1, 2 … and a data set's own ids do equally well. All measures are
percentages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
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


ScoreRows = Callable[[int, int], Tensor]
"""``score_rows(start, stop)`` → (stop − start, gallery): the scores of some queries."""

NEVER = torch.iinfo(torch.int64).max
"""The rank of what is not there: outside the first k for every k."""
KS = (1, 5, 10)


def first_ranks(
    scores: Float[Tensor, "queries gallery"], relevant: Bool[Tensor, "queries gallery"]
) -> Int[Tensor, "queries"]:
    """Rank (0 = first) of the best right item of each query: the wrong items that score as much
    or more. A query without a right item gets ``NEVER``, so it is a miss at every k.

    >>> first_ranks(torch.tensor([[0.9, 0.5, 0.9]]), torch.tensor([[False, False, True]]))
    tensor([1])
    """
    best = scores.masked_fill(~relevant, -torch.inf).amax(-1, keepdim=True)
    ranks = ((scores >= best) & ~relevant).sum(-1)
    return torch.where(relevant.any(-1), ranks, NEVER)


def precision_at_r(
    scores: Float[Tensor, "queries gallery"], relevant: Bool[Tensor, "queries gallery"]
) -> Float[Tensor, "queries"]:
    """R-Precision of each query: the share of right items among its first r, where r is the number
    of its right items. NaN for a query without any.

    >>> precision_at_r(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[True, False, True]]))
    tensor([0.5000])
    """
    r = relevant.sum(-1, keepdim=True)
    if scores.shape[-1] == 0 or int(r.max() if len(r) else 0) == 0:
        return torch.full_like(r[:, 0], torch.nan, dtype=scores.dtype)
    last = scores.topk(int(r.max())).values.gather(-1, (r - 1).clamp_min(0))  # the r-th best
    above, level = scores > last, scores == last
    # Places left at the level of the r-th best go to the wrong ones first.
    left = r - above.sum(-1, keepdim=True) - (level & ~relevant).sum(-1, keepdim=True)
    found = (above & relevant).sum(-1, keepdim=True) + left.clamp_min(0)
    return torch.where(r > 0, found / r, torch.nan).to(scores.dtype)[:, 0]


def over_queries(
    per_query: Callable[[Tensor, Tensor], Tensor],
    score_rows: ScoreRows,
    relevance: Relevance,
    block: int = 256,
) -> Tensor:
    """Apply ``first_ranks`` or ``precision_at_r`` to all queries, ``block`` rows at a time.

    Memory: a few block × gallery matrices, whatever the number of queries.
    """
    parts = []
    for start in range(0, relevance.queries, block):
        stop = min(start + block, relevance.queries)
        scores = score_rows(start, stop)
        check_scores(scores, start)
        relevant = relevance.dense(start, stop).to(scores.device)
        parts.append(per_query(scores, relevant).cpu())
    return torch.cat(parts) if parts else torch.zeros(0)


def check_scores(scores: Tensor, first_query: int = 0) -> None:
    """NaN compares false with everything and would pass for a good rank: refuse it."""
    bad = scores.isnan()
    if bad.any():
        query, item = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the score of query {first_query + query} with gallery item {item} is NaN; "
            "look at the embeddings of these two"
        )


def recall_at(ranks: Int[Tensor, "queries"], k: int) -> float:
    """Percentage of queries whose best right item is among the first ``k`` (ranks from 0).

    >>> recall_at(torch.tensor([0, 4, 5]), 5)
    66.66666666666667
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not len(ranks):
        raise ValueError("no queries: there is nothing to average over")
    return 100 * int((ranks < k).sum()) / len(ranks)


def median_rank(ranks: Int[Tensor, "queries"]) -> float:
    """Median rank of the queries that have a right item, counted from 1; of an even number of
    queries, the lower median.

    >>> median_rank(torch.tensor([0, 2, NEVER, NEVER]))
    1.0
    """
    if not len(ranks):
        raise ValueError("no queries: there is no median rank")
    found = ranks[ranks != NEVER]
    return float(found.median()) + 1 if len(found) else math.inf


def summary(i2t: Int[Tensor, "images"], t2i: Int[Tensor, "captions"]) -> dict[str, float]:
    """R@1/5/10 and the median rank both ways, and rsum, the sum of the six recalls.

    >>> summary(torch.tensor([0, 1]), torch.tensor([0, 0]))["rsum"]
    550.0
    """
    recalls = {
        f"{way}_r{k}": recall_at(ranks, k)
        for way, ranks in (("i2t", i2t), ("t2i", t2i))
        for k in KS
    }
    return {
        **recalls,
        "i2t_median_rank": median_rank(i2t),
        "t2i_median_rank": median_rank(t2i),
        "rsum": sum(recalls.values()),
    }


Ranked = np.ndarray | Tensor | Sequence[Sequence[int]]
Positives = Relevance | Sequence[Collection[int]]
Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]

BLOCK = 512  # queries at a time


def recall_at_k(
    ranked: Ranked, positives: Positives, ks: Sequence[int] = (1, 5, 10)
) -> list[float]:
    """R@K for each K: the share of queries with a right item among the first K.

    A query without positives is a miss. A K beyond the ranking counts all that is ranked.
    With CxC's positives this is CxC recall.

    >>> recall_at_k([[7, 3, 9], [3, 9, 7]], [[3], [7, 8]], ks=(1, 2, 10))
    [0.0, 50.0, 100.0]
    """
    if any(k < 1 for k in ks):
        raise ValueError(f"every K must be at least 1, got {list(ks)}")
    places = first_hits(as_ranked(ranked, positives)[:, : max(ks)], positives)
    return [float(100 * (places < k).sum() / len(places)) for k in ks]


def r_precision(ranked: Ranked, positives: Positives) -> float:
    """R-Precision: the share of right items among the first r, where r is the query's own number
    of positives; mean over the queries that have any, NaN if none has.

    With CxC's positives (own pairs and rated ones) this is RPC².

    >>> r_precision([[7, 3, 9], [3, 9, 7]], [[7, 9], [7]])
    25.0
    """
    return _percent(r_precision_each(ranked, positives))


def r_precision_each(ranked: Ranked, positives: Positives) -> Float[np.ndarray, "queries"]:
    """R-Precision of each query in [0, 1]; NaN for a query without positives."""
    return _each(ranked, positives, lambda right, r: right.sum(1) / r)


def map_at_r(ranked: Ranked, positives: Positives) -> float:
    """mAP@R: 1/r Σ_{k ≤ r} precision@k · [item k is right], r as in R-Precision; mean as there.

    >>> map_at_r([[7, 3, 9]], [[7, 9]]), map_at_r([[3, 7, 9]], [[7, 9]])
    (50.0, 25.0)
    """
    return _percent(map_at_r_each(ranked, positives))


def map_at_r_each(ranked: Ranked, positives: Positives) -> Float[np.ndarray, "queries"]:
    """Average precision within the first r of each query, in [0, 1]; NaN without positives."""

    def measure(right: np.ndarray, r: np.ndarray) -> np.ndarray:
        precision = right.cumsum(1) / np.arange(1, right.shape[1] + 1)
        return np.asarray((precision * right).sum(1) / r)

    return _each(ranked, positives, measure)


def first_hits(ranked: Ranked, positives: Positives) -> Int[np.ndarray, "queries"]:
    """Place (from 0) of the first right item; the largest int64 if none is ranked.

    >>> first_hits([[7, 3, 9], [3, 9, 7]], [[3, 9], [7]]).tolist()
    [1, 2]
    """
    rows = as_ranked(ranked, positives)
    places = np.full(len(rows), np.iinfo(np.int64).max)
    for start in range(0, len(rows), BLOCK):
        right = hits(rows[start : start + BLOCK], positives, start)
        found = right.any(1)
        places[start : start + BLOCK][found] = right.argmax(1)[found]
    return places


def as_ranked(ranked: Ranked, positives: Positives | None = None) -> Int[np.ndarray, "queries k"]:
    """The ranking as an integer array, checked: two-dimensional, not empty, one row a query."""
    rows = ranked.numpy() if isinstance(ranked, Tensor) else np.asarray(ranked)
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(
            f"a ranking is an integer array (queries × k), got {rows.dtype} {rows.shape}"
        )
    if rows.size == 0:
        raise ValueError(f"nothing to measure: {rows.shape[0]} queries × {rows.shape[1]} items")
    if positives is not None and _queries(positives) != len(rows):
        raise ValueError(f"{len(rows)} rankings but positives for {_queries(positives)} queries")
    return rows


def hits(
    rows: Int[np.ndarray, "block k"], positives: Positives, start: int
) -> Bool[np.ndarray, "block k"]:
    """Where the ids of queries ``start, start + 1, …`` are right."""
    if isinstance(positives, Relevance):
        if rows.min() < 0 or rows.max() >= positives.gallery:
            raise ValueError(
                f"ranked ids must lie in [0, {positives.gallery}), the gallery of the relation"
            )
        dense = positives.dense(start, start + len(rows)).numpy()
        return np.take_along_axis(dense, rows, 1)
    return np.stack(
        [np.isin(row, np.fromiter(positives[start + q], np.int64)) for q, row in enumerate(rows)]
    )


def _each(ranked: Ranked, positives: Positives, measure: Measure) -> Float[np.ndarray, "queries"]:
    rows, counts = as_ranked(ranked, positives), _counts(positives)
    if counts.max() > rows.shape[1]:
        query = int(counts.argmax())
        raise ValueError(
            f"query {query} has {counts[query]} positives but only {rows.shape[1]} items are "
            "ranked; rank at least as many as any query has positives"
        )
    values = np.full(len(rows), np.nan)
    for start in range(0, len(rows), BLOCK):
        r = counts[start : start + BLOCK]
        deepest = max(1, int(r.max()))
        right = hits(rows[start : start + BLOCK, :deepest], positives, start)
        right &= np.arange(deepest) < r[:, None]
        known = r > 0
        values[start : start + BLOCK][known] = measure(right[known], r[known])
    return values


def _percent(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(100 * known.mean()) if len(known) else float("nan")


def _queries(positives: Positives) -> int:
    return positives.queries if isinstance(positives, Relevance) else len(positives)


def _counts(positives: Positives) -> Int[np.ndarray, "queries"]:
    if isinstance(positives, Relevance):
        return positives.counts.numpy()
    return np.array([len(set(items)) for items in positives], dtype=np.int64)


# ---- the 1K protocol: each part of the data a gallery of its own ----


class Fold(NamedTuple):
    """Positions of the images and of the captions of one fold, ascending."""

    images: Int[np.ndarray, "n"]
    captions: Int[np.ndarray, "m"]


def contiguous_folds(
    image_of: Sequence[int] | np.ndarray, images: int, folds: int = 5
) -> list[Fold]:
    """Contiguous blocks of images with the captions written for them.

    Args:
        image_of: (captions), the position of each caption's image.
        images: how many there are; if they do not divide, the first folds have one more.

    >>> [f.captions.tolist() for f in contiguous_folds([0, 0, 1, 3, 2], images=4, folds=2)]
    [[0, 1, 2], [3, 4]]
    """
    if folds < 1 or images < folds:
        raise ValueError(f"{images} images cannot be split into {folds} folds")
    parts, of = np.array_split(np.arange(images), folds), np.asarray(image_of)
    return [Fold(part, np.flatnonzero((of >= part[0]) & (of <= part[-1]))) for part in parts]


def restrict(
    ranked: Ranked, queries: Int[np.ndarray, "n"], gallery: Int[np.ndarray, "m"]
) -> Int[np.ndarray, "n m"]:
    """The rows ``queries`` with only the ids in ``gallery`` left, in their order.

    Every row must rank all of ``gallery``, as a complete ranking does.

    >>> restrict([[2, 0, 1], [1, 2, 0]], np.array([1]), np.array([0, 1])).tolist()
    [[1, 0]]
    """
    rows = as_ranked(ranked)[queries]
    kept = np.isin(rows, gallery)
    short = np.flatnonzero(kept.sum(1) != len(gallery))
    if len(short):
        raise ValueError(
            f"the ranking of query {int(queries[short[0]])} holds {int(kept[short[0]].sum())} of "
            f"the {len(gallery)} items of a part of the gallery; rank the whole gallery"
        )
    return np.asarray(rows[kept].reshape(len(rows), len(gallery)))


def over_folds(
    measure: Callable[[Ranked, Positives], float],
    ranked: Ranked,
    positives: Positives,
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
) -> float:
    """The mean over the folds of a measure of complete rankings, positives outside a query's fold
    being left out.

    Args:
        measure: such as ``r_precision`` or ``lambda r, p: recall_at_k(r, p, [1])[0]``.
        folds: (positions of queries, *ids* of gallery items) of each; if ids are positions,
            ``(f.captions, f.images)`` for text-to-image and the other way for image-to-text.

    >>> parts = [(np.array([0]), np.array([0, 1])), (np.array([1]), np.array([2, 3]))]
    >>> over_folds(r_precision, [[3, 1, 2, 0], [1, 0, 3, 2]], [[1, 3], [2]], parts)
    50.0
    """
    values = []
    for queries, gallery in folds:
        held = set(gallery.tolist())
        inside = [[i for i in _of(positives, q) if i in held] for q in queries.tolist()]
        values.append(measure(restrict(ranked, queries, gallery), inside))
    if not values:
        raise ValueError("no folds to average over")
    return float(np.mean(values))


def _of(positives: Positives, query: int) -> list[int]:
    if isinstance(positives, Relevance):
        return [int(i) for i in positives.of(query).tolist()]
    return [int(i) for i in positives[query]]


ZETAS = (0, 1, 2)


def pmrp(
    ranked: Ranked,
    query_classes: Bool[np.ndarray, "queries classes"],
    gallery_classes: Bool[np.ndarray, "gallery classes"],
    zetas: Sequence[int] = ZETAS,
    folds: Sequence[tuple[np.ndarray, np.ndarray]] | None = None,
) -> list[float]:
    """PMRP in percent for each ζ; the paper's figure is the mean of ζ = 0, 1, 2.

    A gallery item is right for a query if their class codes differ in at most ζ places, the own
    pair included. Items without any class leave queries **and** gallery. R-Precision with r =
    number of right items left, mean over queries. A caption has the code of its image.

    Args:
        ranked: (queries × gallery), complete rankings of positions in ``gallery_classes``.
        folds: (queries, gallery) positions of each part for the 1K protocol: each is filtered,
            measured, and the parts are averaged.

    >>> image = np.array([[1, 0], [1, 1], [0, 0]], dtype=bool)
    >>> pmrp([[1, 2, 0], [0, 1, 2], [0, 1, 2]], image, image, zetas=(0, 1))
    [0.0, 100.0]
    """
    rows = as_ranked(ranked)
    values = []
    for queries, gallery in [(slice(None), None)] if folds is None else folds:
        each = pmrp_each(rows[queries], query_classes[queries], gallery_classes, zetas, gallery)
        known = ~np.isnan(each).any(1)
        if not known.any():
            raise ValueError("PMRP: no query has an object class, or no gallery item")
        values.append(100 * each[known].mean(0))
    return [float(v) for v in np.mean(values, axis=0)]


def pmrp_each(
    ranked: Ranked,
    query_classes: Bool[np.ndarray, "queries classes"],
    gallery_classes: Bool[np.ndarray, "gallery classes"],
    zetas: Sequence[int] = ZETAS,
    gallery: Int[np.ndarray, "kept"] | None = None,
) -> Float[np.ndarray, "queries zetas"]:
    """PMRP of each query in [0, 1] for each ζ; NaN for a query that is left out.

    Args:
        gallery: the positions that take part, all if not given. A query whose own pair is not
            among them may have no plausible match; it is left out too.
    """
    rows = as_ranked(ranked)
    if rows.shape != (len(query_classes), len(gallery_classes)):
        raise ValueError(
            f"PMRP needs complete rankings: {len(query_classes)} queries × "
            f"{len(gallery_classes)} gallery items, got {rows.shape}"
        )
    kept = np.arange(len(gallery_classes)) if gallery is None else gallery
    kept = kept[gallery_classes[kept].any(1)]
    values = np.full((len(rows), len(zetas)), np.nan)
    known = np.flatnonzero(query_classes.any(1)) if len(kept) else np.zeros(0, np.int64)
    for start in range(0, len(known), BLOCK):
        chosen = known[start : start + BLOCK]
        apart = differing(query_classes[chosen], gallery_classes)
        ordered = np.take_along_axis(apart, restrict(rows, chosen, kept), 1)
        for z, zeta in enumerate(zetas):
            right = ordered <= zeta
            r = right.sum(1)
            found = (right & (np.arange(len(kept)) < r[:, None])).sum(1)
            values[chosen, z] = np.where(r > 0, found / np.maximum(r, 1), np.nan)
    return values


def differing(
    a: Bool[np.ndarray, "n classes"], b: Bool[np.ndarray, "m classes"]
) -> Float[np.ndarray, "n m"]:
    """In how many places two codes differ (Hamming distance), for all pairs.

    >>> differing(np.array([[True, False]]), np.array([[True, True], [False, True]])).tolist()
    [[1.0, 2.0]]
    """
    x, y = a.astype(np.float32), b.astype(np.float32)
    return np.asarray(x.sum(1)[:, None] + y.sum(1)[None] - 2 * (x @ y.T))
