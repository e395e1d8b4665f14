"""PMRP, Plausible Match R-Precision: what shows nearly the same object classes counts as right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from gaussmatch.metrics.folds import restrict
from gaussmatch.metrics.ranked import Ranked, as_ranked

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
    if rows.shape != (len(query_classes), len(gallery_classes)):
        raise ValueError(
            f"PMRP needs complete rankings: {len(query_classes)} queries × "
            f"{len(gallery_classes)} gallery items, got {rows.shape}"
        )
    parts = folds or [(np.arange(rows.shape[0]), np.arange(rows.shape[1]))]
    return np.mean(
        [_part(rows, query_classes, gallery_classes, zetas, *part) for part in parts], axis=0
    ).tolist()


def _part(
    rows: np.ndarray,
    query_classes: np.ndarray,
    gallery_classes: np.ndarray,
    zetas: Sequence[int],
    queries: np.ndarray,
    gallery: np.ndarray,
) -> Float[np.ndarray, "zetas"]:
    queries = queries[query_classes[queries].any(1)]
    gallery = gallery[gallery_classes[gallery].any(1)]
    if not len(queries) or not len(gallery):
        raise ValueError("PMRP: no query or no gallery item has an object class")
    total, counted = np.zeros(len(zetas)), np.zeros(len(zetas))
    codes = gallery_classes[gallery]
    for start in range(0, len(queries), BLOCK):
        chosen = queries[start : start + BLOCK]
        order = restrict(rows, chosen, gallery)
        apart = differing(query_classes[chosen], codes)
        # back to positions in the whole gallery, where the ranking speaks
        wide = np.empty((len(chosen), len(gallery_classes)), apart.dtype)
        wide[:, gallery] = apart
        ordered = np.take_along_axis(wide, order, 1)
        for z, zeta in enumerate(zetas):
            right = ordered <= zeta
            r = right.sum(1)
            known = r > 0
            found = np.where(known, right.cumsum(1)[np.arange(len(r)), r - 1], 0)
            total[z] += (found[known] / r[known]).sum()
            counted[z] += known.sum()
    return np.where(counted > 0, 100 * total / np.maximum(counted, 1), np.nan)


def differing(
    a: Bool[np.ndarray, "n classes"], b: Bool[np.ndarray, "m classes"]
) -> Float[np.ndarray, "n m"]:
    """In how many places two codes differ (Hamming distance), for all pairs.

    >>> differing(np.array([[True, False]]), np.array([[True, True], [False, True]])).tolist()
    [[1.0, 2.0]]
    """
    x, y = a.astype(np.float32), b.astype(np.float32)
    return np.asarray(x.sum(1)[:, None] + y.sum(1)[None] - 2 * (x @ y.T))
