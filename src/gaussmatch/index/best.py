"""The best items of several segments: candidates of each, scored again by the similarity itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.lift import Asked
from gaussmatch.index.segment import Segment
from gaussmatch.index.structure import Candidates

QUERIES = 256  # at a time
PAIRS = 5120  # scored at a time
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
    if not len(queries):
        nothing = np.empty((0, k), dtype=np.int64)
        return Best(nothing, nothing, np.empty((0, k)))
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
    if len(parts) == 1:
        return parts[0]
    return Best(*(np.concatenate(c) for c in zip(*(_fields(p) for p in parts), strict=True)))


def _round(
    segments: Sequence[Segment],
    queries: Gaussian,
    k: int,
    allowed: Sequence[np.ndarray | None],
    reach: Sequence[int],
    count: int,
) -> tuple[Best, np.ndarray]:
    """The k best among ``count`` candidates, and for which queries they are so for sure."""
    n = len(queries)
    asked: dict[int, Asked] = {}
    told: dict[int, Candidates] = {}
    for number, (segment, allow) in enumerate(zip(segments, allowed, strict=True)):
        if not reach[number]:
            continue
        asked[number] = segment.structure.ask(queries)
        found = segment.structure.candidates(asked[number], count, allow)
        if not segment.structure.exact and _short(found, min(k, reach[number])):
            found = segment.scan.candidates(asked[number], count, allow)  # look at all
        told[number] = found
    if not told:
        empty = np.empty((n, 0), dtype=np.int64)
        return Best(empty, empty, np.empty((n, 0))), np.ones(n, dtype=bool)
    exact = all(segments[number].structure.exact for number in told)
    place, row, rough, bound = _together(told, count)
    score = _exact(segments, asked, place, row)
    order = np.lexsort((row, place, -score), axis=1)[:, :k]
    each = np.arange(n)[:, None]
    chosen = Best(place[each, order], row[each, order], score[each, order])
    if not exact or not k:
        return chosen, np.ones(n, dtype=bool)
    known = row >= 0
    rounding = np.abs(np.where(known, score - np.where(known, rough, 0), 0)).max(1)
    return chosen, (bound + 4 * rounding < chosen.score[:, -1]) | np.isneginf(bound)


def _short(found: Candidates, wanted: int) -> bool:
    """Whether some query was given fewer."""
    lost = found.rows < 0
    return bool(lost.any() and (~lost).sum(1).min() < wanted)


def _together(
    told: Mapping[int, Candidates], count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The most promising candidates of all segments: segment, row, approximate score, and what no
    other exceeds."""
    place = [np.full_like(c.rows, number) for number, c in told.items()]
    row, rough = [c.rows for c in told.values()], [c.scores for c in told.values()]
    bounds = [c.bound for c in told.values()]
    if len(told) == 1:
        return place[0], row[0], rough[0], bounds[0]
    columns = [np.concatenate(x, 1) for x in (place, row, rough)]
    if columns[0].shape[1] > count:
        kept = np.argpartition(-columns[2], count - 1, axis=1)
        bounds.append(np.take_along_axis(columns[2], kept[:, count:], 1).max(1))
        columns = [np.take_along_axis(x, kept[:, :count], 1) for x in columns]
    return columns[0], columns[1], columns[2], np.stack(bounds).max(0)


def _exact(
    segments: Sequence[Segment], asked: Mapping[int, Asked], place: np.ndarray, row: np.ndarray
) -> np.ndarray:
    """Scores in float64; −inf where there is no row."""
    if len(asked) == 1 and row.size <= PAIRS and (row >= 0).all():
        ((number, question),) = asked.items()
        return question.scores(segments[number].gaussians(row.ravel())).reshape(row.shape)
    scores = np.full(row.shape, -np.inf)
    for number, question in asked.items():
        query, column = np.nonzero((place == number) & (row >= 0))
        for start in range(0, len(query), PAIRS):
            q, c = query[start : start + PAIRS], column[start : start + PAIRS]
            scores[q, c] = question.scores(segments[number].gaussians(row[q, c]), q)
    return scores


def _fields(b: Best) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return b.segment, b.row, b.score
