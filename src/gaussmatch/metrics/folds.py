"""The 1K protocol: a ranking seen in parts of the data, each part a gallery of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from gaussmatch.metrics.ranked import Positives, Ranked, as_ranked
from gaussmatch.metrics.relevance import Relevance


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

    >>> from gaussmatch.metrics.ranked import r_precision
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
