"""The best items of several segments: candidates of each, scored again by the similarity itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.lift import paired
from gaussmatch.index.lift import scores as score_all
from gaussmatch.index.segment import Segment

QUERIES = 256  # at a time
PAIRS = 8192  # scored at a time
ROUNDS = 4


@dataclass(frozen=True)
class Best:
    """(n, k) each, best first: segment, row in it (−1 where there are no more), score."""

    segment: np.ndarray
    row: np.ndarray
    score: np.ndarray


@torch.inference_mode()
def best(
    segments: Sequence[Segment],
    queries: Gaussian,
    k: int,
    allowed: Sequence[np.ndarray | None],
    shortlist: int,
) -> Best:
    """The k best live items for each query; fewer only where there are fewer.

    The structures propose, the similarity decides: a shortlist is scored in float64. Exact
    structures tell what nothing that they left out exceeds. Where the k-th best score is not
    above that by more than the rounding seen on the shortlist, a longer one is asked for.

    Args:
        allowed: for each segment the rows that may be found, ``None`` for all.
        shortlist: candidates to score again, at least.
    """
    reach = [
        s.part.items if a is None else int(a.sum()) for s, a in zip(segments, allowed, strict=True)
    ]
    k = min(k, sum(reach))
    parts = []
    for start in range(0, len(queries), QUERIES):
        some = queries[start : start + QUERIES]
        count = max(shortlist, 2 * k)
        found, sure = _round(segments, some, k, allowed, reach, count)
        for _ in range(ROUNDS):
            count *= 4
            if sure.all():
                break
            again = np.flatnonzero(~sure)
            more, now = _round(segments, some[torch.from_numpy(again)], k, allowed, reach, count)
            for old, new in zip(_fields(found), _fields(more), strict=True):
                old[again] = new
            sure[again] = now
        parts.append(found)
    columns = (np.concatenate(c) for c in zip(*(_fields(p) for p in parts), strict=True))
    return Best(*columns)


def _round(
    segments: Sequence[Segment],
    queries: Gaussian,
    k: int,
    allowed: Sequence[np.ndarray | None],
    reach: Sequence[int],
    count: int,
) -> tuple[Best, np.ndarray]:
    n = len(queries)
    places, rows, rough = [], [], []
    bound = np.full(n, -np.inf)
    for number, (segment, allow) in enumerate(zip(segments, allowed, strict=True)):
        if not reach[number]:
            continue
        told = segment.structure.candidates(queries, count, allow)
        if segment.structure.exact:
            bound = np.maximum(bound, told.bound)
        elif min(k, reach[number]) > (told.rows >= 0).sum(1).min(initial=k):
            told = segment.scan.candidates(queries, count, allow)  # it missed some: look at all
        places.append(np.full_like(told.rows, number))
        rows.append(told.rows)
        rough.append(told.scores)
    if not places:
        empty = np.empty((n, 0), dtype=np.int64)
        return Best(empty, empty, np.empty((n, 0))), np.ones(n, dtype=bool)
    place, row, approximate = (np.concatenate(x, 1) for x in (places, rows, rough))
    if row.shape[1] > count:  # only the most promising of all segments
        kept = np.argpartition(-approximate, count - 1, axis=1)
        left = np.take_along_axis(approximate, kept[:, count:], 1).max(1)
        bound = np.maximum(bound, left)
        place, row, approximate = (
            np.take_along_axis(x, kept[:, :count], 1) for x in (place, row, approximate)
        )
    score = _exact(segments, queries, place, row)
    order = np.lexsort((row, place, -score), axis=1)[:, :k]
    chosen = Best(*(np.take_along_axis(x, order, 1) for x in (place, row, score)))
    known = row >= 0
    rounding = np.abs(np.where(known, score - np.where(known, approximate, 0), 0)).max(1)
    exact = all(s.structure.exact for s, r in zip(segments, reach, strict=True) if r)
    worst = chosen.score[:, -1] if k else np.full(n, np.inf)
    sure = (bound + 4 * rounding < worst) | np.isneginf(bound) | (not exact)
    return chosen, sure


def _exact(
    segments: Sequence[Segment], queries: Gaussian, place: np.ndarray, row: np.ndarray
) -> np.ndarray:
    """Scores in float64; −inf where there is no row."""
    scores = np.full(row.shape, -np.inf)
    queries = queries.to(torch.float64)
    for p, segment in enumerate(segments):
        query, column = np.nonzero((place == p) & (row >= 0))
        for start in range(0, len(query), PAIRS):
            q, c = query[start : start + PAIRS], column[start : start + PAIRS]
            items = segment.gaussians(row[q, c]).to(torch.float64)
            if len(queries) == 1:  # the query is lifted once
                scores[q, c] = score_all(segment.similarity, segment.gallery, items, queries)[0]
            else:
                asked = queries[torch.from_numpy(q)]
                scores[q, c] = paired(segment.similarity, segment.gallery, items, asked)
    return scores


def _fields(b: Best) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return b.segment, b.row, b.score
