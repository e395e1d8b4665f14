"""Learn what fits from judged searches, and measure what a calibration says of others.

A judged search is a query, a gallery, and which of its items fit (``data.fits``). Galleries of
several sizes are drawn from the items, as what is said must hold for a hundred photos and for
thirty thousand. One query in five, by its words, is never learned from (``set_aside``): what
``measure`` reports of those is of queries that the calibration has not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance, ResultProbability, RiskControl
from gaussmatch.core.metrics.fitting import SAMPLE, TOP, Level, base_features, expanded
from gaussmatch.core.similarities import Similarity
from gaussmatch.core.similarities.base import other_side
from gaussmatch.data.fits import SHARES, Fits, stems
from gaussmatch.search.trust.calibration import (
    DOUBT,
    FACTOR,
    IMAGE,
    WHOLE,
    Gallery,
    QueryKind,
    Reader,
    Way,
)

SIZES = (100, 1000, 8000)
"""Galleries that are measured, beside that of all items; none of more than half of them."""
SMALLEST = 40
"""Galleries that are learned from are all items, a quarter of them, and so on, down to these."""
MOST = 600
"""Queries of one kind and gallery that are learned from, at most."""
MEASURED = 150
"""The same, that are measured."""
REST = 40
"""Items below the best ``TOP`` that a query is learned from; each stands for many."""
RIDGE = 1.0
GROUPS = 3
PARTS = 6
LEAST = 30
"""Queries of a kind, and of a group, from which on it is one of its own."""
ASIDE = 5
"""One query in this many is set aside."""
UNFIT = 0.25
"""The share of whole captions without a fitting item in a drawn gallery that take part: who types
ten words mostly has a photo in mind."""
NOTHING = 0.02
"""False "nothing here", at most."""
CELLS = 500_000
"""Scores that are judged at a time."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Queries of one source with the items of a gallery.

    Args:
        name: of the source, such as ``"coco people"``.
        own: (m), the item that each query was written for, −1 where there is none.
        kinds: (m), see ``trust.calibration.QueryKind``.
        keys: (m), what is the same query in other words: all are learned from, or none.
    """

    name: str
    queries: Gaussian
    items: Gaussian
    truth: Relevance
    own: Tensor
    kinds: Sequence[str]
    keys: Sequence[str]

    @staticmethod
    def of_fits(name: str, fits: Fits, queries: Gaussian, photos: Gaussian) -> Judged:
        """Texts as queries among photos (all of the data set)."""
        keys = [" ".join(sorted(stems(text))) or text for text in fits.texts]
        items = photos[fits.photos]
        kinds = fits.lengths
        return Judged(f"{name} {fits.truth}", queries, items, fits.relevance, fits.own, kinds, keys)

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
    """Some queries in one drawn gallery.

    Args:
        scores: (n, size), with every item of the gallery.
        fits: (n, size), which of them fit.
        sample: (r), the items that stand for all, see ``metrics.fitting``.
        own: (n), the item that was meant, −1 where there is none here.
    """

    judged: Judged
    rows: Tensor
    scores: Tensor
    fits: Tensor
    sample: Tensor
    own: Tensor

    @property
    def size(self) -> int:
        return self.scores.shape[1]

    @property
    def kinds(self) -> list[str]:
        return [self.judged.kinds[q] for q in self.rows.tolist()]

    @property
    def unsure(self) -> Tensor:
        g = self.judged.queries[self.rows]
        return torch.zeros(len(g)).double() if g.is_point else g.uncertainty().double()

    def level(self, temperature: float) -> Level:
        top = self.scores.topk(min(TOP, self.size)).values
        return Level.of(top, self.scores[:, self.sample], self.size, temperature)

    def reader(self, way: Way) -> Reader:
        """As a search has it: from the best results and the sample."""
        top = self.scores.topk(min(TOP, self.size)).values
        return way.reader(top, self.scores[:, self.sample], self.size, self.unsure, self.kinds)

    def without(self) -> JudgedSearch:
        """The same with all that fits removed, as far as a score tells."""
        lowest = self.scores.amin(1, keepdim=True)
        scores = torch.where(self.fits, lowest, self.scores)
        return replace(self, scores=scores, fits=torch.zeros_like(self.fits))


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
            own = place[judged.own[rows]]
            yield JudgedSearch(judged, rows, scores, fits, sample, own)


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
    """What scores mean in a gallery: P(fits) from one half of the queries, all else from the other,
    which it was not fitted on."""
    found = [
        search for one in judged for search in searches(s, gallery, one, quarters(len(one.items)))
    ]
    kinds = [k for k in (*SHARES, IMAGE) if any(k in one.kinds for one in judged)]
    temperature = _temperature(found)
    base, place, right, weight = _examples(found, temperature, kinds)
    centre, scale = base.mean(0), base.std(0, unbiased=False)
    scale = torch.where(scale > 0, scale, 1.0)
    design = expanded((base - centre) / scale)
    fits = {
        kind: ResultProbability.fit(design[own], right[own], weight[own], RIDGE)
        for at, kind in enumerate(kinds)
        if bool((own := place == at).any())
    }
    nothing = ResultProbability((0.0,) * 10, 0.0, (0.0,) * 10, (1.0,) * 10)
    standard = tuple(centre.tolist()), tuple(scale.tolist())
    bare = {kind: replace(_EMPTY, fits=fit) for kind, fit in fits.items()}
    way = Way(temperature, *standard, nothing, bare)
    read = [_Read.of(search, way) for search in found]
    way = replace(way, presence=_presence(read))
    learned = {kind: _kind(kind, fit, read, way.presence) for kind, fit in fits.items()}
    return replace(way, kinds={k: v for k, v in learned.items() if v.queries})


_NEVER = -1e9
_EMPTY = QueryKind(0, ResultProbability((), 0.0, (), ()), (), (), (), _NEVER, (), (), ())


def _temperature(found: Sequence[JudgedSearch]) -> float:
    """τ by which a fitting item is chosen among the sample."""
    match, others = [], []
    dice = torch.Generator().manual_seed(0)
    for search in found:
        some = search.fits.any(1).nonzero()[:, 0][:50]
        if len(some) and search.size >= 2:
            one = torch.multinomial(search.fits[some].double(), 1, generator=dice)
            match.append(search.scores[some].gather(1, one)[:, 0])
            near = search.sample[torch.arange(256) % len(search.sample)]
            others.append(search.scores[some][:, near])
    if not match:
        raise ValueError("no query has an item that fits; give captions of the images")
    return metrics.fit_temperature(torch.cat(match), torch.cat(others))


def _fitted(search: JudgedSearch) -> Tensor:
    """(n), the queries that P(fits) is fitted on."""
    keys = [search.judged.keys[q] for q in search.rows.tolist()]
    return torch.tensor([_hash(key) // ASIDE % 2 == 0 for key in keys])


def _examples(
    found: Sequence[JudgedSearch], temperature: float, kinds: Sequence[str]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Base features, kind, whether it fits and the weight of results: the best ``TOP`` of each
    query, and some of the others, which stand for all of them. Each kind has the weight that people
    give it (``SHARES``), each source and size of gallery an equal part of it."""
    dice = torch.Generator().manual_seed(0)
    share = {kind: SHARES.get(kind, 1.0) for kind in kinds}  # type: ignore[call-overload]
    cells: dict[tuple[str, str, int], int] = {}
    for search in found:
        for kind, fitted in zip(search.kinds, _fitted(search).tolist(), strict=True):
            if fitted:
                cell = kind, search.judged.name, search.size
                cells[cell] = cells.get(cell, 0) + 1
    of_kind = {kind: sum(cell[0] == kind for cell in cells) for kind in kinds}
    parts: list[tuple[Tensor, ...]] = []
    for search in found:
        chosen = _fitted(search)
        if not bool(chosen.any()):
            continue
        order = search.scores[chosen].argsort(1, descending=True)
        rest = order[:, TOP:]
        if rest.shape[1] > REST:
            lot = torch.rand(rest.shape, generator=dice).topk(REST).indices
            rest = rest.gather(1, lot)
        at = torch.cat([order[:, :TOP], rest], 1)
        scores = search.scores[chosen].gather(1, at)
        level = search.level(temperature)
        level = replace(level, **{n: getattr(level, n)[chosen] for n in vars(level) if n != "size"})
        base = base_features(scores, level, search.unsure[chosen], temperature)
        names = [kind for kind, c in zip(search.kinds, chosen.tolist(), strict=True) if c]
        own = torch.tensor(
            [share[k] / of_kind[k] / cells[k, search.judged.name, search.size] for k in names]
        )
        many = torch.ones(at.shape[1])
        if rest.shape[1]:
            many[TOP:] = (search.size - TOP) / rest.shape[1]
        place = torch.tensor([kinds.index(k) for k in names])[:, None].expand_as(at)
        right = search.fits[chosen].gather(1, at).double()
        weight = own[:, None] * many
        parts.append((base.flatten(0, 1), place.flatten(), right.flatten(), weight.flatten()))
    base, place, right, weight = (torch.cat(column) for column in zip(*parts, strict=True))
    return base, place, right, weight


@dataclass(frozen=True, eq=False)
class _Read:
    """Numbers of the queries of one search, as a way reads them."""

    kinds: np.ndarray
    fitted: np.ndarray
    size: int
    true: np.ndarray
    expected: np.ndarray
    unsure: np.ndarray
    present: Tensor
    removed: Tensor
    recall: list[np.ndarray]
    one: np.ndarray

    @staticmethod
    def of(search: JudgedSearch, way: Way) -> _Read:
        reader, without = search.reader(way), search.without().reader(way)
        count = search.fits.sum(1)
        order = search.fits.int().argsort(dim=1, descending=True, stable=True)
        order = order[:, : max(1, int(count.max()))]
        logits = reader.logits(search.scores.gather(1, order)).numpy()  # of what fits, then others
        dice = np.random.default_rng(0)
        one = np.full(len(logits), np.nan)
        for q in (count > 0).nonzero()[:, 0].tolist():
            mine = np.flatnonzero(order[q].numpy() == int(search.own[q]))
            one[q] = logits[q, mine[0] if len(mine) else dice.integers(int(count[q]))]
        return _Read(
            np.array(search.kinds),
            _fitted(search).numpy(),
            search.size,
            count.numpy(),
            reader.expected.numpy(),
            reader.unsure.numpy(),
            reader.presence_features(),
            without.presence_features(),
            [row[:n] for row, n in zip(logits, count.tolist(), strict=True)],
            one,
        )


def _presence(read: Sequence[_Read]) -> ResultProbability:
    """Whether anything fits: queries that have a fitting item against the same without it."""
    pairs = [
        (part.present[use], part.removed[use])
        for part in read
        if len(use := torch.from_numpy(part.fitted & (part.true > 0)).nonzero()[:, 0])
    ]
    there, gone = (torch.cat(side) for side in zip(*pairs, strict=True))
    right = torch.cat([torch.ones(len(there)), torch.zeros(len(gone))]).double()
    return ResultProbability.fit(torch.cat([there, gone]), right, ridge=RIDGE)


def _kind(
    kind: str, fits: ResultProbability, read: Sequence[_Read], presence: ResultProbability
) -> QueryKind:
    """What the queries that nothing was fitted on say of one kind; of few queries, all do."""
    held = [(part, np.flatnonzero((part.kinds == kind) & ~part.fitted)) for part in read]
    if sum(len(rows) for _, rows in held) < LEAST:
        held = [(part, np.flatnonzero(part.kinds == kind)) for part in read]
    held = [(part, rows) for part, rows in held if len(rows)]
    if not held:
        return _EMPTY

    def all_of(name: str) -> np.ndarray:
        return np.concatenate([np.asarray(getattr(part, name))[rows] for part, rows in held])

    true, expected, unsure = (all_of(name) for name in ("true", "expected", "unsure"))
    told = np.log(expected + 1)
    parts = min(PARTS, len(true) // LEAST)
    cuts = np.unique(np.quantile(told, np.arange(1, parts) / parts)) if parts > 1 else np.empty(0)
    of = np.searchsorted(cuts, told, "right")
    left = np.log(true + 1) - told
    interval = [np.quantile(left[of == k], (0.1, 0.5, 0.9)) for k in range(len(cuts) + 1)]
    there = np.concatenate(
        [presence.logit(part.present[rows]).numpy()[part.true[rows] > 0] for part, rows in held]
    )
    gone = np.concatenate(
        [presence.logit(part.removed[rows]).numpy()[part.true[rows] > 0] for part, rows in held]
    )
    absent = np.quantile(gone, np.linspace(0, 1, 101)) if len(gone) else np.empty(0)
    nothing = float(np.quantile(there, NOTHING)) if len(there) >= LEAST else _NEVER
    recall = [part.recall[q] for part, rows in held for q in rows.tolist()]
    one = [v[~np.isnan(v)] for v in all_of("one")[:, None]]
    groups = min(GROUPS, len(true) // LEAST)
    apart = groups > 1 and float(np.ptp(unsure)) > 0
    bounds = np.quantile(unsure, np.arange(1, groups) / groups) if apart else np.empty(0)
    group = np.searchsorted(bounds, unsure, "right")

    def controls(values: Sequence[np.ndarray]) -> tuple[RiskControl, ...]:
        return tuple(
            RiskControl.fit([values[q] for q in np.flatnonzero(group == g).tolist()])
            for g in range(len(bounds) + 1)
        )

    return QueryKind(
        len(true),
        fits,
        tuple(cuts.tolist()),
        tuple((float(a), float(b), float(c)) for a, b, c in np.round(interval, 4)),
        tuple(np.round(absent, 4).tolist()),
        nothing,
        tuple(bounds.tolist()),
        controls(recall),
        controls(one),
    )


# ---- measure ----


@torch.no_grad()
def measure(
    way: Way, s: Similarity, gallery: Gallery, judged: Sequence[Judged], level: float = 0.9
) -> list[dict[str, Any]]:
    """What a way says of searches that it has not seen, for each source, kind and size of gallery:

    * ``ece``, ``brier`` of P(fits) of the first ``TOP`` results, beside those of a softmax over the
      gallery and of a constant;
    * ``count_ratio``, the median of said / true, ``within_3``, and the share ``in_interval``;
    * ``narrow``, how often a number is said (an interval of less than a factor of 4);
    * ``recall``, ``one``: what sets at ``level`` hold, and ``recall_size``, ``one_size``;
    * ``false_nothing``, and ``false_number``: how often a number would be said after everything
      that fits was removed; ``absent_auroc``;
    * ``aurc`` of the first result by P(fits), and by the softmax.
    """
    cells: dict[tuple[str, str, int], list[Mapping[str, np.ndarray]]] = {}
    for one in judged:
        sizes = [size for size in SIZES if 2 * size <= len(one.items)]
        for search in searches(s, gallery, one, [*sizes, len(one.items)], MEASURED, seed=1):
            for kind, values in _said(way, search, level):
                cells.setdefault((one.name, kind, search.size), []).append(values)
    return [
        {"source": source, "kind": kind, "size": size, **_figures(parts)}
        for (source, kind, size), parts in sorted(cells.items(), key=lambda cell: str(cell[0]))
    ]


def _said(
    way: Way, search: JudgedSearch, level: float
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """For each kind of query what was said, and what is true."""
    reader, gone = search.reader(way), search.without().reader(way)
    logits = reader.logits(search.scores)
    best = search.scores.topk(min(TOP, search.size))
    p = logits.sigmoid().gather(1, best.indices).numpy()
    soft = (best.values / way.temperature - reader.level.log_sum[:, None]).exp().numpy()
    right = search.fits.gather(1, best.indices).numpy()
    needed = {promise: reader.needed(promise, level) for promise in ("recall", "one")}
    names, fits = list(way.kinds), search.fits.numpy()
    meant = search.own.numpy()
    dice = np.random.default_rng(0)
    meant = np.array(
        [
            m if m >= 0 or not row.any() else dice.choice(np.flatnonzero(row))
            for m, row in zip(meant, fits, strict=True)
        ]
    )
    sets = {k: logits.numpy() >= v[:, None] for k, v in needed.items()}
    for kind, rows in reader.each():
        if kind is None:
            continue
        true = fits[rows].sum(1)
        count = kind.count(reader.expected[rows].numpy(), search.size)
        null = np.asarray(kind.absent)
        after = gone.presence()[rows]
        said = kind.count(gone.expected[rows].numpy(), search.size)
        doubt = 1 - np.searchsorted(null, after, "left") / (1 + len(null))
        one = np.where(meant[rows] < 0, np.nan, sets["one"][rows, meant[rows]])
        yield (
            names[int(reader.kind[rows[0]])],
            {
                "p": p[rows],
                "soft": soft[rows],
                "right": right[rows],
                "true": true,
                "count": count,
                "present": reader.presence()[rows],
                "removed": after,
                "nothing": reader.presence()[rows] < kind.nothing,
                "number": narrow(said) & (doubt <= DOUBT),
                "recall": np.where(
                    true > 0,
                    (sets["recall"][rows] & fits[rows]).sum(1) / np.maximum(true, 1),
                    np.nan,
                ),
                "recall_size": sets["recall"][rows].sum(1),
                "one": one,
                "one_size": sets["one"][rows].sum(1),
            },
        )


def narrow(count: np.ndarray) -> np.ndarray:
    """(n), whether intervals (n, 3) are narrow enough for a number, which is at least one."""
    return np.asarray((count[:, 2] + 0.5 < FACTOR * (count[:, 0] + 0.5)) & (count[:, 1] >= 0.5))


def _figures(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    x = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    p, soft, right = (torch.from_numpy(x[n].astype(float).ravel()) for n in ("p", "soft", "right"))
    some, count = x["true"] > 0, x["count"]
    ratio = count[some, 1] / x["true"][some]
    low, high = np.floor(count[:, 0]), np.ceil(count[:, 2])
    there, removed = (torch.from_numpy(x[n][some]).double() for n in ("present", "removed"))
    mean = torch.full_like(right, float(right.mean()))
    return {
        "queries": len(some),
        "ece": metrics.calibration_error(p.clamp(0, 1), right),
        "softmax_ece": metrics.calibration_error(soft.clamp(0, 1), right),
        "brier": metrics.brier(p, right),
        "softmax_brier": metrics.brier(soft.clamp(0, 1), right),
        "constant_brier": metrics.brier(mean, right),
        "said": float(p.mean()),
        "right": float(right.mean()),
        "count_ratio": float(np.median(ratio)) if len(ratio) else None,
        "within_3": float(np.mean((ratio <= 3) & (ratio >= 1 / 3))) if len(ratio) else None,
        "in_interval": float(np.mean((x["true"] >= low) & (x["true"] <= high))),
        "narrow": float(narrow(count).mean()),
        "recall": _mean(x["recall"]),
        "recall_size": float(x["recall_size"].mean()),
        "one": _mean(x["one"]),
        "one_size": float(x["one_size"].mean()),
        "false_nothing": float(x["nothing"][some].mean()) if some.any() else None,
        "false_number": float(x["number"][some].mean()) if some.any() else None,
        "absent_auroc": metrics.auroc(there, removed) if some.any() else None,
        "aurc": _aurc(x["right"][some], x["p"][some]),
        "softmax_aurc": _aurc(x["right"][some], x["soft"][some]),
    }


def _aurc(right: np.ndarray, by: np.ndarray) -> float | None:
    """The mean risk of answering the surest searches only, by what is said of the first result."""
    if not len(right):
        return None
    first = torch.from_numpy(right[:, 0].astype(float))
    return metrics.risk_coverage(first, torch.from_numpy(-by[:, 0].astype(float))).aurc


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values.astype(float))]
    return float(known.mean()) if len(known) else None
