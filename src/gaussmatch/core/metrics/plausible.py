"""PMRP, Plausible Match R-Precision: what shows nearly the same object classes counts as right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from gaussmatch.core.metrics.ranking import Ranked, as_ranked, restrict

ZETAS = (0, 1, 2)
BLOCK = 256  # queries at a time


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
    parts: Sequence[tuple[slice | np.ndarray, np.ndarray | None]] = (
        [(slice(None), None)] if folds is None else list(folds)
    )
    values = []
    for queries, gallery in parts:
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
