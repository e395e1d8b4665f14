"""Learn what fits from judged searches, and measure what a calibration says of others.

A judged search is a query, a gallery, and which of its items fit (``data.fits``). Galleries of
several sizes are drawn from the items, as what is said must hold for a hundred photos and for
thirty thousand. A model knows the photos it was trained on better than those of its users, and
class names, the only short queries that are judged in the largest galleries, are easier than other
words. So what is learned has a term for each, which is held at "not trained on" and at the usual
share of class names when users search. One query in five, by its words, is never learned from
(``set_aside``): what ``measure`` reports of those is of queries that the calibration has not seen.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import QuantileLine, Relevance, ResultProbability, RiskControl
from gaussmatch.core.metrics.fitting import (
    FARTHEST,
    SAMPLE,
    TOP,
    Level,
    base_features,
    expanded,
    sigmoid,
)
from gaussmatch.core.similarities import Similarity
from gaussmatch.core.similarities.base import other_side
from gaussmatch.data.fits import SHARES, Fits, stems
from gaussmatch.search.trust.calibration import (
    DOUBT,
    FACTOR,
    IMAGE,
    LIKELY,
    PROMISES,
    SURE,
    WHOLE,
    Gallery,
    QueryKind,
    Reader,
    Way,
)
from gaussmatch.search.trust.verdict import MAYBE

SIZES = (100, 1000, 8000)
"""Galleries that are measured, beside that of all items; none of more than half of them."""
NEAR = (100, 1000, 8000, 33_000)
ALL = "all sources"
SMALLEST = 40
"""Galleries that are learned from are all items, a quarter of them, and so on, down to these."""
MOST = 600
"""Queries of one kind and gallery that are learned from, at most."""
MEASURED = 600
"""The same, that are measured."""
REST = 40
"""Items below the best ``TOP`` that a query is learned from; each stands for those around its rank,
with the square root of their number: so neither the best nor the many others rule the fit."""
RIDGE = 1.0
LEAST = 30
"""Queries of a kind from which on some are held out."""
HELD = 0.8
"""The share of intervals that hold the true number."""
ASIDE = 5
"""One query in this many is set aside."""
UNFIT = 0.25
"""The share of whole captions without a fitting item in a drawn gallery that take part: who types
ten words mostly has a photo in mind."""
NOTHING = 0.01
"""False "nothing here" of each source in galleries of each size; other photos have a few more."""
CELLS = 500_000
"""Scores that are judged at a time."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Queries of one source with the items of a gallery.

    Args:
        name: of the source, such as ``"coco people"``.
        own: (m), the item that each query was written for, −1 if there is none.
        kinds: (m), see ``trust.calibration.QueryKind``.
        keys: (m), what is the same query in other words: all are learned from, or none.
        seen: whether the model was trained on these items.
        named: whether the queries are names of classes.
    """

    name: str
    queries: Gaussian
    items: Gaussian
    truth: Relevance
    own: Tensor
    kinds: Sequence[str]
    keys: Sequence[str]
    seen: bool = False
    named: bool = False

    @staticmethod
    def of_fits(
        name: str, fits: Fits, queries: Gaussian, photos: Gaussian, seen: bool = False
    ) -> Judged:
        """Texts as queries among photos (all of the data set)."""
        keys = [" ".join(sorted(stems(text))) or text for text in fits.texts]
        name, items, named = f"{name} {fits.truth}", photos[fits.photos], fits.truth == "boxes"
        truth, own, kinds = fits.relevance, fits.own, fits.lengths
        return Judged(name, queries, items, truth, own, kinds, keys, seen, named)

    @staticmethod
    def of_pairs(
        name: str, queries: Gaussian, items: Gaussian, truth: Relevance, own: Relevance, kind: str
    ) -> Judged:
        """Queries of one kind, without their words; ``own`` has the item each was written for."""
        first = torch.full((len(queries),), -1)
        some = own.counts > 0
        first[some] = own.items[own.indptr[:-1][some]]
        keys = [str(q) for q in range(len(queries))]
        return Judged(name, queries, items, truth, first, [kind] * len(queries), keys)

    def part(self, aside: bool) -> Judged:
        """The queries that are set aside, or all others."""
        kept = torch.tensor([q for q, k in enumerate(self.keys) if set_aside(k) == aside]).long()
        return self.some(kept)

    def some(self, kept: Tensor) -> Judged:
        places = kept.tolist()
        return replace(
            self,
            queries=self.queries[kept],
            truth=self.truth.subset(kept, torch.arange(len(self.items))),
            own=self.own[kept],
            kinds=[self.kinds[q] for q in places],
            keys=[self.keys[q] for q in places],
        )


def set_aside(key: str) -> bool:
    """Whether a query is kept for measuring."""
    return _hash(key) % ASIDE == 0


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


@dataclass(frozen=True, eq=False)
class JudgedSearch:
    """Some queries in one drawn gallery, as far as a search knows its scores.

    Args:
        size: items of the gallery.
        top, right: (n, k), the best scores, and whether those items fit.
        others: (n, k), the best scores of items that do not fit.
        sample, sample_fits: (n, r), scores of items that stand for all, see ``metrics.fitting``.
        fitting: of each query, the scores of all that fits, best first.
        own: (n), the score of the item that was meant, NaN if there is none here.
    """

    judged: Judged
    rows: Tensor
    size: int
    top: Tensor
    right: Tensor
    others: Tensor
    sample: Tensor
    sample_fits: Tensor
    fitting: Sequence[Tensor]
    own: Tensor

    @cached_property
    def kinds(self) -> list[str]:
        return [self.judged.kinds[q] for q in self.rows.tolist()]

    @cached_property
    def keys(self) -> list[str]:
        return [self.judged.keys[q] for q in self.rows.tolist()]

    @property
    def true(self) -> np.ndarray:
        """(n), how many fit."""
        return np.array([len(some) for some in self.fitting])

    @property
    def unsure(self) -> Tensor:
        g = self.judged.queries[self.rows]
        return torch.zeros(len(g)).double() if g.is_point else g.uncertainty().double()

    def reader(self, way: Way) -> Reader:
        """As a search has it: from the best results and the sample."""
        top, sample = self.top.double().numpy(), self.sample.double().numpy()
        return way.reader(top, sample, self.size, self.unsure.numpy(), self.kinds)

    def without(self) -> JudgedSearch:
        """The same with all that fits removed; what is left of the sample stands for all."""
        left = (~self.sample_fits).sum(1, keepdim=True).clamp_min(1)
        order = self.sample_fits.int().argsort(dim=1, stable=True)
        order = order.gather(1, torch.arange(order.shape[1])[None] % left)
        return replace(
            self,
            top=self.others,
            right=torch.zeros_like(self.right),
            sample=self.sample.gather(1, order),
            fitting=[scores[:0] for scores in self.fitting],
        )


def quarters(total: int) -> list[int]:
    """Sizes of the galleries that are learned from; at least two.

    >>> quarters(5000), quarters(150)
    ([5000, 1250, 312, 78], [150, 37])
    """
    found = [total, total // 4]
    while found[-1] // 4 >= SMALLEST:
        found.append(found[-1] // 4)
    return [size for size in found if size > 1]


def searches(
    s: Similarity,
    gallery: Gallery,
    judged: Judged,
    sizes: Sequence[int],
    most: int = MOST,
    seed: int = 0,
) -> Iterator[JudgedSearch]:
    """Judged queries in galleries of several sizes, some at a time."""
    total = len(judged.items)
    dice = torch.Generator().manual_seed(seed)
    for size in sizes:
        chosen = torch.randperm(total, generator=dice)[:size].sort().values
        sample = torch.randperm(size, generator=dice)[: min(SAMPLE, size)]
        asked = torch.randperm(len(judged.queries), generator=dice)
        here = judged.truth.subset(torch.arange(len(judged.queries)), chosen)
        if size < total:
            lucky = torch.rand(len(asked), generator=dice) < UNFIT
            short = torch.tensor([kind not in (WHOLE, IMAGE) for kind in judged.kinds])
            asked = asked[((here.counts > 0) | lucky | short)[asked]]
        asked = _most(asked, judged.kinds, most)
        if not len(asked):
            continue
        place = torch.full((total + 1,), -1)
        place[chosen] = torch.arange(size)
        score = s.for_query(other_side(gallery)).against(judged.items[chosen], gallery)
        for rows in asked.split(max(1, min(200, CELLS // size))):
            scores = score(judged.queries[rows]).float()
            fits = torch.stack([here.dense(q, q + 1)[0] for q in rows.tolist()])
            best = scores.topk(min(TOP, size))
            others = scores.masked_fill(fits, -torch.inf).topk(min(TOP, size)).values
            own = place[judged.own[rows]]
            mine = scores.gather(1, own.clamp_min(0)[:, None])[:, 0]
            yield JudgedSearch(
                judged,
                rows,
                size,
                best.values,
                fits.gather(1, best.indices),
                others.maximum(scores.amin(1, keepdim=True)),
                scores[:, sample],
                fits[:, sample],
                [row[f].sort(descending=True).values for row, f in zip(scores, fits, strict=True)],
                torch.where(own < 0, torch.nan, mine),
            )


def _most(asked: Tensor, kinds: Sequence[str], most: int) -> Tensor:
    """The first queries of each kind, up to a limit."""
    taken: dict[str, int] = {}
    kept = []
    for q in asked.tolist():
        taken[kinds[q]] = taken.get(kinds[q], 0) + 1
        if taken[kinds[q]] <= most:
            kept.append(q)
    return torch.tensor(kept).long()


# ---- learn ----


@torch.no_grad()
def learn_way(s: Similarity, gallery: Gallery, judged: Sequence[Judged]) -> Way:
    """What scores mean in a gallery. P(fits) and the lines through the features of a query are
    fitted on one half of the queries; by the other, which nothing was fitted on, the lines are
    moved until they hold what they promise."""
    found = [
        search for one in judged for search in searches(s, gallery, one, quarters(len(one.items)))
    ]
    kinds = [k for k in (*SHARES, IMAGE) if any(k in one.kinds for one in judged)]
    temperature = _temperature(found)
    base, place, right, weight, seen, named = _examples(found, temperature, kinds)
    center, scale = base.mean(0), base.std(0, unbiased=False)
    scale = torch.where(scale > 0, scale, 1.0)
    standard = (base - center) / scale
    wide = torch.from_numpy(expanded(standard.numpy()))
    design = torch.cat([wide, _of_source(standard, seen, named)], 1)
    fits, shares = {}, {}
    for at, kind in enumerate(kinds):
        if bool((own := place == at).any()):
            users = _of_source(standard[own], torch.zeros_like(seen[own]), named[own]).mean(0)
            with_source = ResultProbability.fit(design[own], right[own], weight[own], RIDGE)
            fits[kind] = with_source.at(users.tolist())
            shares[kind] = float(named[own].mean())
    bare = {kind: replace(_EMPTY, fits=fit) for kind, fit in fits.items()}
    moments = tuple(center.tolist()), tuple(scale.tolist())
    way = Way(temperature, *moments, (), (), ResultProbability((), 0.0, (), ()), bare)
    read = [_Read.of(search, way) for search in found]
    every = np.concatenate([part.there for part in read])
    middle, spread = every.mean(0), every.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    read = [
        part.standard(middle, spread, [search.judged.seen, search.judged.named])
        for part, search in zip(read, found, strict=True)
    ]
    way = replace(way, middle=tuple(middle.tolist()), spread=tuple(spread.tolist()))
    presence = _presence(read)
    learned = {kind: _kind(kind, fit, read, presence) for kind, fit in fits.items()}
    usual = [0.0, float(np.mean([*shares.values()]))]
    learned = {k: v.at([0.0, shares[k]]) for k, v in learned.items() if v.queries}
    return replace(way, presence=presence.at(usual), kinds=learned)


def _of_source(standard: Tensor, seen: Tensor, named: Tensor) -> Tensor:
    """What the source of results changes: if the model was trained on them, the level and the
    slopes of the score, of the softmax and of the size; if queries are class names, the level and
    the slope of the size."""
    one, slopes, size = torch.ones_like(standard[:, :1]), standard[:, 1:3], standard[:, 4:5]
    of_seen, of_named = torch.cat([one, slopes, size], 1), torch.cat([one, size], 1)
    return torch.cat([seen[:, None] * of_seen, named[:, None] * of_named], 1)


_LINE, _NEVER = QuantileLine((), 0.0), -1e9
_CELL = np.dtype([("name", "U120"), ("size", float)])
"""The source of a query, and ln of the size of its gallery."""
_EMPTY = QueryKind(
    0, ResultProbability((), 0.0, (), ()), (), (), (), _LINE, _LINE, *[RiskControl((), (), 0)] * 2
)


def _temperature(found: Sequence[JudgedSearch]) -> float:
    """τ by which a fitting item is chosen among the sample."""
    match, others = [], []
    dice = np.random.default_rng(0)
    for search in found:
        some = np.flatnonzero(search.true)[:50].tolist()
        if some and search.size >= 2:
            match.append(torch.tensor([dice.choice(search.fitting[q]) for q in some]))
            near = torch.arange(256) % search.sample.shape[1]
            others.append(search.sample[some][:, near])
    if not match:
        raise ValueError("no query has an item that fits; give captions of the images")
    return metrics.fit_temperature(torch.cat(match), torch.cat(others))


def _fitted(search: JudgedSearch) -> Tensor:
    """(n), the queries that P(fits) is fitted on."""
    return torch.tensor([_hash(key) // ASIDE % 2 == 0 for key in search.keys])


def _examples(
    found: Sequence[JudgedSearch], temperature: float, kinds: Sequence[str]
) -> tuple[Tensor, ...]:
    """Base features, kind, whether it fits, weight, whether the model was trained on it and whether
    the query is the name of a class, of results: the best ``TOP`` of each query, and some of the
    others (``REST``). Each kind has the weight that people give it (``SHARES``), each query in a
    gallery an equal part of it: a source of few queries, such as class names, must not speak for
    all of their length."""
    share = {kind: SHARES.get(kind, 1.0) for kind in kinds}  # type: ignore[call-overload]
    chosen = [_fitted(search) for search in found]
    asked = Counter(
        (kind, key, search.judged.name, search.size)
        for search, use in zip(found, chosen, strict=True)
        for kind, key, fitted in zip(search.kinds, search.keys, use.tolist(), strict=True)
        if fitted
    )
    of_kind = Counter(kind for kind, *_ in asked)
    parts: list[tuple[Tensor, ...]] = []
    for search, use in zip(found, chosen, strict=True):
        if not bool(use.any()):
            continue
        top, sample = search.top[use], search.sample[use]
        below, places = sample.sort(1, descending=True)
        scale = search.size / sample.shape[1]
        first = min(max(1, round(TOP / scale)), sample.shape[1])
        bounds = np.unique(np.geomspace(first, sample.shape[1], REST + 1).round().astype(int))
        at = torch.from_numpy((bounds[:-1] + bounds[1:] - 1) // 2)
        each = torch.from_numpy(np.diff(bounds) * scale).sqrt()
        scores = torch.cat([top, below[:, at]], 1)
        fits = torch.cat([search.right[use], search.sample_fits[use].gather(1, places[:, at])], 1)
        level = Level.of(top.numpy(), sample.numpy(), search.size, temperature)
        base = torch.from_numpy(
            base_features(scores.numpy(), level, search.unsure[use].numpy(), temperature)
        )
        rows = use.nonzero()[:, 0].tolist()
        names = [search.kinds[q] for q in rows]
        same = [
            asked[search.kinds[q], search.keys[q], search.judged.name, search.size] for q in rows
        ]
        own = torch.tensor([share[k] / of_kind[k] / n for k, n in zip(names, same, strict=True)])
        weight = torch.cat([torch.ones_like(top).double(), (below[:, at] < top[:, -1:]) * each], 1)
        place = torch.tensor([kinds.index(k) for k in names])[:, None].expand_as(fits)
        source = search.judged.seen, search.judged.named
        seen, named = (torch.full(fits.shape, float(is_so)).double() for is_so in source)
        columns = place, fits.double(), own[:, None] * weight, seen, named
        parts.append((base.flatten(0, 1), *(column.flatten() for column in columns)))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


@dataclass(frozen=True, eq=False)
class _Read:
    """Numbers of the queries of one search, as a way reads them: features of the query (``there``)
    and of the same with all that fits removed (``gone``), the last two of both about the source;
    logits of what fits and of the one."""

    kinds: np.ndarray
    fitted: np.ndarray
    cells: np.ndarray
    true: np.ndarray
    there: np.ndarray
    gone: np.ndarray
    recall: list[np.ndarray]
    one: np.ndarray

    @staticmethod
    def of(search: JudgedSearch, way: Way) -> _Read:
        reader, true = search.reader(way), search.true
        recall = fitting_logits(search, reader)
        dice = np.random.default_rng(0)
        one = np.full(len(true), np.nan)
        for q in np.flatnonzero(true).tolist():
            mine = np.flatnonzero(search.fitting[q].numpy() == float(search.own[q]))
            one[q] = recall[q][mine[0] if len(mine) else dice.integers(len(recall[q]))]
        return _Read(
            np.array(search.kinds),
            _fitted(search).numpy(),
            np.array([(search.judged.name, np.log(search.size))] * len(true), _CELL),
            true,
            reader.summary(),
            search.without().reader(way).summary(),
            recall,
            one,
        )

    def standard(self, middle: np.ndarray, spread: np.ndarray, source: Sequence[bool]) -> _Read:
        there, gone = (
            np.c_[((x - middle) / spread).clip(-FARTHEST, FARTHEST), [source] * len(x)]
            for x in (self.there, self.gone)
        )
        return replace(self, there=there, gone=gone)


def fitting_logits(search: JudgedSearch, reader: Reader) -> list[np.ndarray]:
    """Of each query, the logits of all that fits."""
    widest = max(1, int(search.true.max()))
    lowest = torch.full((len(search.rows), widest), -torch.inf)
    for q, scores in enumerate(search.fitting):
        lowest[q, : len(scores)] = scores
    both = torch.cat([search.top, lowest], 1)
    logits = reader.logits(both.numpy())[:, search.top.shape[1] :]
    return [row[:n] for row, n in zip(logits, search.true.tolist(), strict=True)]


def _presence(read: Sequence[_Read]) -> ResultProbability:
    """Whether anything fits: queries that have a fitting item against the same without it."""
    use = [part.fitted & (part.true > 0) for part in read]
    if not any(rows.any() for rows in use):
        use = [part.true > 0 for part in read]
    there = np.concatenate([part.there[rows] for part, rows in zip(read, use, strict=True)])
    gone = np.concatenate([part.gone[rows] for part, rows in zip(read, use, strict=True)])
    right = torch.cat([torch.ones(len(there)), torch.zeros(len(gone))]).double()
    return ResultProbability.fit(torch.from_numpy(np.r_[there, gone]), right, ridge=RIDGE)


@dataclass(frozen=True, eq=False)
class _Half:
    """The queries of one kind that lines are fitted on, or that were held out."""

    cells: np.ndarray
    true: np.ndarray
    there: np.ndarray
    gone: np.ndarray
    one: np.ndarray
    recall: list[np.ndarray]

    @staticmethod
    def of(kind: str, read: Sequence[_Read], fitted: bool | None) -> _Half:
        rows = [
            np.flatnonzero((p.kinds == kind) & ((p.fitted == fitted) | (fitted is None)))
            for p in read
        ]
        cells, true, there, gone, one = (
            np.concatenate([getattr(p, name)[r] for p, r in zip(read, rows, strict=True)])
            for name in ("cells", "true", "there", "gone", "one")
        )
        recall = [p.recall[q] for p, r in zip(read, rows, strict=True) for q in r.tolist()]
        return _Half(cells, true, there, gone, one, recall)


def _kind(
    kind: str, fits: ResultProbability, read: Sequence[_Read], presence: ResultProbability
) -> QueryKind:
    """Lines from the queries that P(fits) was fitted on, moved by the others; of few queries, all
    do both."""
    halves = [_Half.of(kind, read, fitted) for fitted in (True, False)]
    if min(len(half.true) for half in halves) < LEAST:
        halves = [_Half.of(kind, read, None)] * 2
    seen, held = halves
    if not len(held.true):
        return _EMPTY
    dice = np.random.default_rng(0)
    number = np.log(seen.true + 1 + dice.uniform(-0.5, 0.5, len(seen.true)))  # has no ties
    counts = [QuantileLine.fit(seen.there, number, q) for q in (0.1, 0.5, 0.9)]
    middle = np.log(held.true + 1) - counts[1](held.there)
    counts[1] = counts[1].moved(float(np.median(middle)))
    bare = _widened(replace(_EMPTY, fits=fits, counts=tuple(counts)), held)
    there, gone = (presence.logit(x[held.true > 0]) for x in (held.there, held.gone))
    nothing = QuantileLine((0.0,) * held.there.shape[1], _NEVER)
    if len(there) >= LEAST:
        some = seen.there[seen.true > 0]
        nothing = QuantileLine.fit(some, presence.logit(some), NOTHING)
        left = there - nothing(held.there[held.true > 0])
        lowest = [np.quantile(left[own], NOTHING) for _, own in _cells(held.cells[held.true > 0])]
        nothing = nothing.moved(float(min(lowest)))
    each = [(q, v[:: max(1, len(v) // 20)]) for q, v in enumerate(seen.recall) if len(v)]
    least = QuantileLine((0.0,) * held.there.shape[1], 0.0)
    if each:
        at = np.concatenate([np.full(len(v), q) for q, v in each])
        weight = np.concatenate([np.full(len(v), 1 / len(v)) for _, v in each])
        logits = np.concatenate([v for _, v in each])
        least = QuantileLine.fit(seen.there[at], logits, 0.1, weight)
    low = least(held.there)
    one = [np.array([v - b] if v == v else []) for v, b in zip(held.one, low, strict=True)]
    return replace(
        bare,
        queries=len(held.true),
        absent=tuple(np.round(np.quantile(gone, np.linspace(0, 1, 101)), 4)) if len(gone) else (),
        nothing=nothing,
        least=least,
        recall=RiskControl.fit([v - b for v, b in zip(held.recall, low, strict=True)]),
        one=RiskControl.fit(one),
    )


def _cells(cells: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """ln of the mean size of galleries of about one size, and which queries of one source were
    asked there; all queries, if no source has enough."""
    near = np.abs(cells["size"][:, None] - np.log(NEAR)).argmin(1)
    found = False
    for at, name in itertools.product(np.unique(near), np.unique(cells["name"])):
        own = (near == at) & (cells["name"] == name)
        if own.sum() >= 2 * LEAST:
            found = True
            yield float(cells["size"][near == at].mean()), own
    if not found:
        yield float(cells["size"].mean()), np.ones(len(cells), bool)


def _widened(kind: QueryKind, held: _Half) -> QueryKind:
    """The same with intervals, in whole numbers, that hold the share ``HELD`` of the true ones in
    galleries of any size: moved outwards, never inwards, by what it takes there, in the mean over
    sources (conformalized quantile regression, Romano et al., 2019)."""
    low, _, high = (line(held.there) for line in kind.counts)
    outside = np.maximum(low - np.log(held.true + 1.5), np.log(held.true + 0.5) - high)
    needed: dict[float, list[float]] = {}
    for size, own in _cells(held.cells):
        far = float(np.quantile(outside[own], HELD, method="higher")) + 1e-6  # past the half
        needed.setdefault(size, []).append(max(far, 0.0))
    wider = sorted((size, float(np.mean(each))) for size, each in needed.items())
    return replace(kind, wider=tuple(wider))


# ---- measure ----


@torch.no_grad()
def measure(
    way: Way, s: Similarity, gallery: Gallery, judged: Sequence[Judged], level: float = 0.9
) -> list[dict[str, Any]]:
    """What a way says of searches that it has not seen, for each kind and size of gallery (near
    one of ``SIZES``), over all sources and for each source:

    * ``ece``, ``brier`` of P(fits) of the first ``TOP`` results, beside those of a softmax over the
      gallery and of a constant;
    * ``count_ratio``, the median of said / true, ``within_3``, and the share ``in_interval``;
    * ``narrow``, how often a number is said (an interval of less than a factor of 4);
    * ``recall``, ``one``: what sets at ``level`` hold;
    * ``false_nothing``, and ``false_number``: how often a number would be said after everything
      that fits was removed; ``absent_auroc``;
    * ``aurc`` of the first result by P(fits), and by the softmax.
    """
    cells: dict[tuple[str, str, int], list[Mapping[str, np.ndarray]]] = {}
    for one in judged:
        sizes = [size for size in SIZES if 2 * size <= len(one.items)]
        for search in searches(s, gallery, one, [*sizes, len(one.items)], MEASURED, seed=1):
            for kind, values in _said(way, search, level):
                near = min(NEAR, key=lambda size: abs(np.log(size / search.size)))
                cells.setdefault((ALL, kind, near), []).append(values)
                cells.setdefault((one.name, kind, search.size), []).append(values)
    return [
        {"source": source, "kind": kind, "size": size, **_figures(parts)}
        for (source, kind, size), parts in sorted(cells.items(), key=_place)
    ]


def _place(cell: tuple[tuple[str, str, int], Any]) -> tuple[Any, ...]:
    source, kind, size = cell[0]
    return source != ALL, source, kind, size


def _said(
    way: Way, search: JudgedSearch, level: float
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """For each kind of query what was said, and what is true."""
    reader, gone = search.reader(way), search.without().reader(way)
    p = sigmoid(reader.logits(reader.top))
    soft = np.exp(reader.top / way.temperature - reader.level.log_sum[:, None])
    read = _Read.of(search, way)
    needed = {promise: reader.needed(promise, level) for promise in PROMISES}
    names, present, after = list(way.kinds), reader.presence(), gone.presence()
    best_after = sigmoid(gone.logits(gone.top)[:, 0])
    both = zip(read.recall, needed["recall"], strict=True)
    recall = np.array([np.mean(v >= least) if len(v) else np.nan for v, least in both])
    for kind, rows in reader.each():
        if kind is None:
            continue
        best = best_after[rows]
        doubt = (best < MAYBE) | (best < SURE) & (kind.absence(after[rows]) >= DOUBT)
        doubt |= (best < LIKELY) & (after[rows] < kind.nothing(gone.features[rows]))
        nothing = present[rows] < kind.nothing(reader.features[rows])
        one = read.one[rows]
        yield (
            names[int(reader.kind[rows[0]])],
            {
                "p": p[rows],
                "soft": soft[rows],
                "right": search.right[rows].numpy(),
                "true": search.true[rows],
                "count": kind.count(reader.features[rows], search.size),
                "present": present[rows],
                "removed": after[rows],
                "nothing": nothing & (p[rows, 0] < LIKELY),
                "number": narrow(kind.count(gone.features[rows], search.size)) & ~doubt,
                "recall": recall[rows],
                "one": np.where(np.isnan(one), np.nan, one >= needed["one"][rows]),
            },
        )


def narrow(count: np.ndarray) -> np.ndarray:
    """(n), whether intervals (n, 3) are narrow enough for a number, which is at least one."""
    return np.asarray((count[:, 2] + 0.5 < FACTOR * (count[:, 0] + 0.5)) & (count[:, 1] >= 0.5))


def _figures(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    flat = {n: [part[n].astype(float).ravel() for part in parts] for n in ("p", "soft", "right")}
    p, soft, right = (torch.from_numpy(np.concatenate(column)) for column in flat.values())
    first = {n: np.concatenate([part[n][:, 0] for part in parts]) for n in flat}
    x = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].keys() - flat}
    some, count = x["true"] > 0, x["count"]
    ratio = count[some, 1] / x["true"][some]
    there, removed = (torch.from_numpy(x[n][some]).double() for n in ("present", "removed"))
    mean = torch.full_like(right, float(right.mean()))
    return {
        "queries": len(some),
        "ece": metrics.calibration_error(p.clamp(0, 1), right),
        "softmax_ece": metrics.calibration_error(soft.clamp(0, 1), right),
        "brier": metrics.brier(p, right),
        "softmax_brier": metrics.brier(soft.clamp(0, 1), right),
        "constant_brier": metrics.brier(mean, right),
        "count_ratio": float(np.median(ratio)) if len(ratio) else None,
        "within_3": float(np.mean((ratio <= 3) & (ratio >= 1 / 3))) if len(ratio) else None,
        "in_interval": float(np.mean((x["true"] >= count[:, 0]) & (x["true"] <= count[:, 2]))),
        "narrow": float(narrow(count).mean()),
        "recall": _mean(x["recall"]),
        "one": _mean(x["one"]),
        "false_nothing": float(x["nothing"][some].mean()) if some.any() else None,
        "false_number": float(x["number"][some].mean()) if some.any() else None,
        "absent_auroc": metrics.auroc(there, removed) if some.any() else None,
        "aurc": _aurc(first["right"][some], first["p"][some]),
        "softmax_aurc": _aurc(first["right"][some], first["soft"][some]),
    }


def _aurc(right: np.ndarray, by: np.ndarray) -> float | None:
    """The mean risk of answering the surest searches only, by what is said of the first result."""
    if not len(right):
        return None
    first = torch.from_numpy(right.astype(float))
    return metrics.risk_coverage(first, torch.from_numpy(-by.astype(float))).aurc


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values.astype(float))]
    return float(known.mean()) if len(known) else None
