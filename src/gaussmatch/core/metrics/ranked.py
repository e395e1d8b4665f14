"""Measures of a ranking given as ids: plain integer arrays in, plain numbers out.

``ranked`` is (queries × k): for each query the ids of the gallery items, best first. ``positives``
is one collection of right ids for each query, or a ``Relevance``. Ids are compared by value, so
positions 0, 1, 2 … and a data set's own ids do equally well. All measures are percentages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gaussmatch.core.metrics.relevance import Relevance

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
    rows = as_ranked(ranked, positives)
    deepest = min(max(ks), rows.shape[1])
    found = np.zeros(len(ks))
    for start in range(0, len(rows), BLOCK):
        right = hits(rows[start : start + BLOCK, :deepest], positives, start)
        found += [right[:, :k].any(1).sum() for k in ks]
    return [float(100 * n / len(rows)) for n in found]


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
    return _each(ranked, positives, _precision)


def map_at_r(ranked: Ranked, positives: Positives) -> float:
    """mAP@R: 1/r Σ_{k ≤ r} precision@k · [item k is right], r as in R-Precision; mean as there.

    >>> map_at_r([[7, 3, 9]], [[7, 9]]), map_at_r([[3, 7, 9]], [[7, 9]])
    (50.0, 25.0)
    """
    return _percent(map_at_r_each(ranked, positives))


def map_at_r_each(ranked: Ranked, positives: Positives) -> Float[np.ndarray, "queries"]:
    """Average precision within the first r of each query, in [0, 1]; NaN without positives."""
    return _each(ranked, positives, _average_precision)


def first_hits(ranked: Ranked, positives: Positives) -> Int[np.ndarray, "queries"]:
    """Place (from 0) of the first right item; the largest int64 where none is ranked.

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


def _precision(right: np.ndarray, r: np.ndarray) -> np.ndarray:
    return np.asarray(right.sum(1) / r)


def _average_precision(right: np.ndarray, r: np.ndarray) -> np.ndarray:
    precision = right.cumsum(1) / np.arange(1, right.shape[1] + 1)
    return np.asarray((precision * right).sum(1) / r)


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
        images: how many there are; where they do not divide, the first folds have one more.

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
    part: np.ndarray = rows[kept].reshape(len(rows), len(gallery))
    return part


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
        folds: (positions of queries, *ids* of gallery items) of each; where ids are positions,
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
