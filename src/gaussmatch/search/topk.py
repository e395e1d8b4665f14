"""The k best items: candidates of a gallery, scored again by the similarity itself.

A structure proposes candidates with approximate scores; a shortlist is scored again in float64. So
no structure has a formula of its own, and a coarse one costs recall, never a wrong score.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian
from gaussmatch.search.lift import LiftedQueries
from gaussmatch.search.manifest import IndexSettings

AT_A_TIME = 256  # queries searched at a time
PART = 2**40  # rows of a part, at most
PAIRS = 256  # scored at a time: what is computed of them stays in the processor's cache
ROUNDS = 4
COARSE = 2
"""Times as many candidates of a structure that has one byte of a coordinate."""


class Candidates:
    """For each query the rows that may be best; in no order.

    Args:
        rows: (n, c); −1 where there are no more.
        scores: (n, c), approximate, or how to get them: they are only needed if several parts
            compete or the search is exact; −inf where there are no more.
        bound: (n), what the approximate score of no other row exceeds; −inf if there is none, and
            inf if nothing is known of the others.
    """

    def __init__(
        self,
        rows: np.ndarray,
        scores: np.ndarray | Callable[[], np.ndarray],
        bound: np.ndarray | float = np.inf,
    ) -> None:
        self.rows, self._scores, self.bound = rows, scores, bound
        self.full = _full(rows)
        """Whether there is a row everywhere."""

    @property
    def scores(self) -> np.ndarray:
        if not isinstance(self._scores, np.ndarray):
            self._scores = np.where(self.rows < 0, -np.inf, self._scores())
        return self._scores

    @staticmethod
    def none(queries: int) -> Candidates:
        empty = np.empty((queries, 0))
        return Candidates(empty.astype(np.int64), empty, np.full(queries, -np.inf))

    @staticmethod
    def merged(found: Sequence[tuple[np.ndarray, np.ndarray]], whole: bool) -> Candidates:
        """Of several searches for the same queries: a row counts once, with its best score.

        Args:
            found: (rows, scores) of each search, best first, −1 and −inf where there are no more.
            whole: whether each search saw every allowed row.
        """
        if len(found) == 1:
            rows, scores = found[0]
            worst = scores[:, -1]
        else:
            worst = np.stack([scores[:, -1] for _, scores in found]).max(0)
            rows = np.concatenate([rows for rows, _ in found], 1)
            scores = np.concatenate([scores for _, scores in found], 1)
            order = np.lexsort((-scores, rows), axis=1)
            rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
            again = np.zeros_like(rows, dtype=bool)
            again[:, 1:] = rows[:, 1:] == rows[:, :-1]
            rows, scores = np.where(again, -1, rows), np.where(again, -np.inf, scores)
        bound = np.full_like(worst, -np.inf) if whole else worst
        lost = rows < 0
        return Candidates(rows, np.where(lost, -np.inf, scores) if lost.any() else scores, bound)


class Searchable(Protocol):
    """Items of a gallery as one search sees them; a row is a number that only it understands.

    ``reach`` is how many rows may be found; ``exact``, whether the bound of ``candidates`` holds up
    to rounding, so that the best rows are surely found.
    """

    @property
    def reach(self) -> int: ...
    @property
    def exact(self) -> bool: ...
    def lifted(self, queries: ArrayGaussian) -> LiftedQueries: ...
    def candidates(self, queries: LiftedQueries, count: int) -> Candidates:
        """At least ``count`` rows for each query, or all if there are fewer."""

    def scan(self, queries: LiftedQueries, count: int) -> Candidates:
        """The same by looking at every row: slow and sure."""

    def sample(self, count: int) -> np.ndarray:
        """At most ``count`` rows, a cheap sample; the same at each call."""

    def arrays(self, rows: np.ndarray) -> ArrayGaussian: ...
    def described(self, rows: np.ndarray) -> tuple[list[str], list[Mapping[str, Any]]]:
        """The id of each row, and its metadata."""

    def uncertainty(self, rows: np.ndarray) -> np.ndarray | None:
        """log det Σ of each row; ``None`` for points."""


class Scanned:
    """A part that is always searched by looking at every row."""

    exact = True

    def __init__(self, part: Searchable) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def candidates(self, queries: LiftedQueries, count: int) -> Candidates:
        return self._part.scan(queries, count)


class Several:
    """One search of several parts; a ``Searchable``. Row r of part p is row p·2⁴⁰ + r here.

    Args:
        unique: whether an item that several parts have is found once, where it scores best.
    """

    def __init__(self, parts: Sequence[Searchable], unique: bool = False) -> None:
        self.parts, self.unique = parts, unique
        self.reach = sum(part.reach for part in parts)
        self.exact = all(part.exact for part in parts)

    @staticmethod
    def of(parts: Sequence[Searchable]) -> Searchable:
        """All that may be found."""
        some = [part for part in parts if part.reach]
        return some[0] if len(some) == 1 else Several(some)

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        """Exact scores are the same by the lift of any part."""
        return self.parts[0].lifted(queries)

    def candidates(self, queries: LiftedQueries, count: int, k: int | None = None) -> Candidates:
        """
        Args:
            k: how many each part must find, ``count`` if not given.
        """
        return self._best(self.parts, queries, k or count, count)

    def scan(self, queries: LiftedQueries, count: int) -> Candidates:
        return self._best([Scanned(part) for part in self.parts], queries, count, count)

    def _best(
        self, parts: Sequence[Searchable], queries: LiftedQueries, k: int, count: int
    ) -> Candidates:
        """The most promising of all parts: ``count``, or as many as a coarse part gives."""
        found = []
        for number, part in enumerate(parts):
            own = queries if not number else part.lifted(queries.queries)
            found.append(proposed(part, own, k, count))
        rows = [np.where(c.rows < 0, -1, c.rows + p * PART) for p, c in enumerate(found)]
        row, rough = np.concatenate(rows, 1), np.concatenate([c.scores for c in found], 1)
        bounds = [c.bound for c in found]
        count = max(count, *(c.rows.shape[1] for c in found))
        if self.unique:
            row, rough = self._once(row, rough)
        elif row.shape[1] > count:
            kept = np.argpartition(-rough, count - 1, axis=1)
            bounds.append(np.take_along_axis(rough, kept[:, count:], 1).max(1))
            row, rough = (np.take_along_axis(x, kept[:, :count], 1) for x in (row, rough))
        return Candidates(row, rough, reduce(np.maximum, bounds))

    def _once(self, rows: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(-scores, axis=1, kind="stable")
        rows, scores = (np.take_along_axis(a, order, 1) for a in (rows, scores))
        for q in range(len(rows)):
            ids = np.array(self.described(rows[q][rows[q] >= 0])[0], dtype=object)
            _, first = np.unique(ids, return_index=True)
            again = np.setdiff1d(np.arange(len(ids)), first)
            rows[q, again], scores[q, again] = -1, -np.inf
        return rows, scores

    def sample(self, count: int) -> np.ndarray:
        """Of each part as its share is, rounded up."""
        drawn = [
            part.sample(-(-count * part.reach // max(self.reach, count))) + p * PART
            for p, part in enumerate(self.parts)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *drawn])

    def arrays(self, rows: np.ndarray) -> ArrayGaussian:
        found = self._each(rows, lambda part, some: part.arrays(some))
        order = np.argsort(np.concatenate([at for at, _ in found]))
        mean = np.concatenate([g.mean for _, g in found])[order]
        widths = [g.log_var for _, g in found if g.log_var is not None]
        return ArrayGaussian(mean, np.concatenate(widths)[order] if widths else None)

    def described(self, rows: np.ndarray) -> tuple[list[str], list[Mapping[str, Any]]]:
        ids: list[str] = [""] * len(rows)
        metas: list[Mapping[str, Any]] = [{}] * len(rows)
        for at, (names, some) in self._each(rows, lambda part, some: part.described(some)):
            for n, id_, meta in zip(at.tolist(), names, some, strict=True):
                ids[n], metas[n] = id_, meta
        return ids, metas

    def uncertainty(self, rows: np.ndarray) -> np.ndarray | None:
        found = np.full(len(rows), np.nan)
        for at, own in self._each(rows, lambda part, some: part.uncertainty(some)):
            found[at] = np.nan if own is None else own
        return None if np.isnan(found).any() else found

    def _each(
        self, rows: np.ndarray, ask: Callable[[Searchable, np.ndarray], Any]
    ) -> list[tuple[np.ndarray, Any]]:
        """What each part says of its rows, and where they are among all."""
        place, row = np.divmod(rows, PART)
        at = [np.flatnonzero(place == p) for p in range(len(self.parts))]
        return [(here, ask(self.parts[p], row[here])) for p, here in enumerate(at) if len(here)]


@dataclass(eq=False, slots=True)
class TopK:
    """(n, k) each, best first: row (−1 where there are no more) and score."""

    row: np.ndarray
    score: np.ndarray

    def complete(self) -> TopK:
        """Without columns where a query has no result: items that another process has deleted
        since they were counted."""
        if not self.row.size or _full(self.row):
            return self
        whole = (self.row >= 0).all(0)
        return TopK(self.row[:, whole], self.score[:, whole])


def shortlist(k: int, least: int) -> int:
    """Candidates to score again for the k best, at least ``least``. A quarter more than k lost none
    of the best if approximate scores are in float16; for a coarser structure see ``COARSE``.

    >>> shortlist(10, 12), shortlist(10, 40)
    (12, 40)
    """
    return max(least, k + k // 4)


def top_k(part: Searchable, queries: ArrayGaussian, k: int, least: int) -> TopK:
    """The k best items for each query; fewer only if there are fewer.

    Exact structures bound what nothing that they left out exceeds. Where the k-th best score is not
    above that by more than the rounding seen on the shortlist, a longer one is requested.

    Args:
        least: candidates to score again, see ``shortlist``.
    """
    k, n = min(k, part.reach), len(queries)
    if not n or not k:
        return TopK(np.empty((n, k), dtype=np.int64), np.empty((n, k)))
    found = []
    for start in range(0, n, AT_A_TIME):
        some = queries if n <= AT_A_TIME else queries[start : start + AT_A_TIME]
        count = shortlist(k, least)
        best, sure = _round(part, some, k, count)
        for _ in range(ROUNDS):
            count *= 4
            if sure is None or sure.all():
                break
            again = np.flatnonzero(~sure)
            more, now = _round(part, some[again], k, count)
            best.row[again], best.score[again] = more.row, more.score
            sure[again] = True if now is None else now
        found.append(best)
    if len(found) == 1:
        return found[0]
    return TopK(*(np.concatenate(c) for c in zip(*((b.row, b.score) for b in found), strict=True)))


def _round(
    part: Searchable, queries: ArrayGaussian, k: int, count: int
) -> tuple[TopK, np.ndarray | None]:
    """The k best among ``count`` candidates, and for which queries they are so for sure; ``None``
    where nothing more can be done."""
    lifted = part.lifted(queries)
    found = proposed(part, lifted, k, count)
    row, score = found.rows, _scores(part, lifted, found)
    order = np.lexsort((row, -score), axis=1)[:, :k]
    if len(row) > 1 and row.size:
        order += np.arange(0, row.size, row.shape[1])[:, None]
    chosen = TopK(row.take(order), score.take(order))
    if not row.size or not part.exact:
        return chosen, None
    known = row >= 0
    rounding = np.abs(np.where(known, score - np.where(known, found.scores, 0), 0)).max(1)
    return chosen, (found.bound + 4 * rounding < chosen.score[:, -1]) | np.isneginf(found.bound)


def proposed(part: Searchable, queries: LiftedQueries, k: int, count: int) -> Candidates:
    """Candidates of one part; by looking at every row if it finds fewer than it must."""
    least = (k,) if isinstance(part, Several) else ()
    found = part.candidates(queries, count, *least)
    wanted = min(k, part.reach)
    if not part.exact and (
        found.rows.shape[1] < wanted if found.full else (found.rows >= 0).sum(1).min() < wanted
    ):
        found = part.scan(queries, count)
    return found


def _scores(part: Searchable, queries: LiftedQueries, found: Candidates) -> np.ndarray:
    """Of all candidates, (n, c) in float64; −inf where there is no row."""
    row = found.rows
    if not found.full:
        scores, where = np.full(row.shape, -np.inf), np.nonzero(row >= 0)
        scores[where] = _scores_of(part, queries, row[where], where[0])
        return scores
    if row.size <= PAIRS:
        return queries.scores(part.arrays(row.ravel())).reshape(row.shape)
    step = max(1, PAIRS // row.shape[1])
    parts = [
        queries.scores(part.arrays(row[some].ravel()), some)
        for some in (slice(start, start + step) for start in range(0, len(row), step))
    ]
    return np.concatenate(parts).reshape(row.shape)


def _scores_of(
    part: Searchable, queries: LiftedQueries, rows: np.ndarray, of: np.ndarray
) -> np.ndarray:
    """Of each row with query ``of`` it, (c) in float64."""
    scores = np.empty(len(rows))
    for start in range(0, len(rows), PAIRS):
        some = slice(start, start + PAIRS)
        scores[some] = queries.scores(part.arrays(rows[some]), of[some])
    return scores


def scores_of(part: Searchable, query: ArrayGaussian, rows: np.ndarray) -> np.ndarray:
    """Scores of one query with what others have found, (n, k) in float64."""
    scores, where = np.full(rows.shape, -np.inf), np.nonzero(rows >= 0)
    some = rows[where]
    scores[where] = _scores_of(part, part.lifted(query), some, np.zeros(len(some), dtype=np.int64))
    return scores


def _full(rows: np.ndarray) -> bool:
    return bool(rows.size and np.minimum.reduce(rows, axis=None) >= 0)


REPORT = "graph.json"
QUERIES, BEST = 64, 10
"""Items of a graph that its recall is measured with, and how many of their best must be found."""
WIDEST = 16
"""How many times ``search`` a walk is widened to before a graph is given up."""


@dataclass(frozen=True)
class Recall:
    """What was measured.

    Args:
        recall: recall@10, items of equal scores being equally good.
        search: candidates of a walk that reaches it.
        used: whether it is enough; otherwise the items are searched exactly.
    """

    recall: float
    search: int
    used: bool


class Walked(Protocol):
    """A graph of items, which is walked as wide as ``width`` says."""

    width: int

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries: ...
    def candidates(self, queries: LiftedQueries, count: int) -> Candidates: ...
    def scan(self, queries: LiftedQueries, count: int) -> Candidates: ...
    def arrays(self, rows: np.ndarray) -> ArrayGaussian: ...


def measure(settings: IndexSettings, graph: Walked, sample: ArrayGaussian, name: str) -> Recall:
    """Find the narrowest walk that reaches the recall that the settings ask for.

    Args:
        sample: items of the graph, as queries.
        name: of the graph, for the warning where no walk reaches it.
    """
    queries = graph.lifted(sample)
    best = graph.scan(queries, BEST)

    def scores(found: Candidates) -> np.ndarray:
        exact = queries.scores(graph.arrays(np.maximum(found.rows, 0).ravel()))
        return np.where(found.rows < 0, -np.inf, exact.reshape(found.rows.shape))

    wanted = best.rows.shape[1]
    least = scores(best).min(1, keepdims=True)
    least -= 1e-9 * np.abs(least)
    graph.width, count = settings.search, shortlist(BEST, settings.rescore)
    while True:
        found = scores(graph.candidates(queries, count))
        recall = float(np.minimum((found >= least).sum(1), wanted).mean() / wanted)
        if recall >= settings.recall or graph.width >= WIDEST * settings.search:
            break
        graph.width *= 2
    if recall < settings.recall:
        warnings.warn(
            f"{name} finds {recall:.0%} of the best {wanted}, less than the "
            f"{settings.recall:.0%} wanted: these items are searched exactly",
            stacklevel=2,
        )
    return Recall(recall, graph.width, recall >= settings.recall)
