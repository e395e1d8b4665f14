"""From a query to its results, written once for Python, the command line and the service.

A query is read, encoded together with others, searched together with those of the same scope,
judged, and told what must be said of it. What must not be in the results ("dog −person", "no
people", "not like that picture") puts them in another order: if the model can say how likely a
picture fits, in that of

    P(fits the query) · ∏ (1 − P(fits what is excluded)),

and otherwise, as for pictures among pictures, of z(query) − ``AGAINST`` · Σ z(excluded), where z is
the score in standard deviations of the gallery. Both were chosen on COCO's classes
(``benchmarks/negation.py``), beside leaving the negation out and reading it as words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.metrics.fitting import SAMPLE, TOP, log_sigmoid, sigmoid
from gaussmatch.core.similarities.base import other_side
from gaussmatch.data.asked import TAKEN, Asked, read_query
from gaussmatch.data.language import canonical, length_of
from gaussmatch.lazy import torch
from gaussmatch.models.texts import Reading, UnknownWordsError
from gaussmatch.search.checks import check_query
from gaussmatch.search.hits import TRUNCATED, Hit, Hits
from gaussmatch.search.manifest import Gallery, known
from gaussmatch.search.topk import Scanned, Several, TopK, scores_of, top_k
from gaussmatch.search.trust.calibration import Judgment, Promise
from gaussmatch.search.trust.familiarity import CLEARLY
from gaussmatch.search.trust.verdict import FitCount, quoted
from gaussmatch.search.where import Where

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from gaussmatch.search.index import Index

EVERYTHING = Where()
SCANNED = 20_000
"""Items that are looked at if a query names nothing to look for."""
MISSED_QUERIES = 32
"""Training items that the misses of an approximate search are measured with."""
POOL = 2000
"""Best results of a query that are put in another order."""
AGAINST = 0.5
"""How much an excluded picture counts beside the one that is wanted."""
MOSTLY = "This is right most of the time, not always"
WEAKLY = "Pictures to avoid count only a little: some results may still be like them"
"""On COCO's test photos they lower the share of what is avoided from 39 % to 32 %."""


@dataclass(slots=True)
class Query:
    """What to look for: words, a picture, an item of the index. Several of them are one query,
    "like this, but at night": the product of their Gaussians.

    Args:
        text: words as they are typed, or as ``read_query`` has read them.
        picture: a file, a PIL image, or ready features.
        item: the id of an item, which is not found itself.
        of: the gallery of the item.
        like, unlike: ids of images that the results should be like too, or must not be like.

    >>> Query("a dog without a leash").asked.words
    'a dog'
    """

    text: str | Asked | None = None
    picture: str | os.PathLike[str] | Image.Image | Tensor | np.ndarray | None = None
    item: str | None = None
    of: Gallery = "images"
    like: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    asked: Asked | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.picture is None and not (self.text or self.item or self.like or self.unlike):
            raise ValueError("an empty query; give words, a picture or the id of an item")
        self.asked = read_query(self.text) if isinstance(self.text, str) else self.text

    @property
    def words(self) -> str:
        """What to look for."""
        return self.asked.words if self.asked else ""

    @property
    def side(self) -> Gallery:
        """What it is: a picture with words is a picture."""
        if self.item is not None:
            return self.of
        return "captions" if self.picture is None and self.text is not None else "images"

    @property
    def combined(self) -> bool:
        """Whether it is one query of several."""
        pictures = self.picture is not None or self.item is not None
        return bool(self.like) or (pictures and bool(self.words))

    @property
    def listed(self) -> bool:
        """Whether it names nothing to look for: only what must not be there, or when."""
        return not self.words and self.picture is None and self.item is None and not self.like


@dataclass(frozen=True, slots=True)
class Scope:
    """What is searched and what is wanted of it; see ``Index.search``."""

    k: int = 10
    gallery: Gallery = "images"
    where: Where = EVERYTHING
    exclude: tuple[str, ...] = ()
    guarantee: float | None = None
    promise: Promise = "recall"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}")
        known(self.gallery)


@dataclass(slots=True, eq=False)
class Queries:
    """Gaussians that are searched with together.

    Args:
        side: what they are; P(fits) is only known across sides.
        kinds: of each, see ``trust.calibration.QueryKind``: how long it is, for captions.
        familiar: (n), p-values of the inputs.
        said: what each is called.
    """

    gaussians: Gaussian | ArrayGaussian
    side: Gallery
    kinds: Sequence[str] | None = None
    familiar: np.ndarray | None = None
    said: tuple[str, ...] = ()
    arrays: ArrayGaussian = field(init=False)
    """Checked, by ``search``."""

    def __len__(self) -> int:
        return len(self.gaussians)


Encoding = tuple[Gaussian | ArrayGaussian, int, np.ndarray | None]
"""A batch, a row of it, and how familiar each row is."""


@dataclass(slots=True, eq=False)
class Searched:
    """A query in its scope; ``run`` fills in its Gaussian and its result."""

    query: Query
    scope: Scope
    result: Hits | Exception | None = field(init=False, default=None)
    remarks: list[str] = field(init=False, default_factory=list)
    reading: Reading | None = field(init=False, default=None)
    parts: list[Encoding] = field(init=False, default_factory=list)
    """The Gaussians that it is made of; one, once they are combined."""

    @property
    def hits(self) -> Hits:
        """The result; the error, if it is one."""
        if not isinstance(self.result, Hits):
            raise self.result or ValueError("it was not run")
        return self.result

    @property
    def gaussian(self) -> Gaussian | None:
        """As a batch of one; ``None`` for a query that names nothing to look for."""
        found = one_of(self.parts[0]) if self.parts else None
        return found.gaussian() if isinstance(found, ArrayGaussian) else found

    def shared(self) -> tuple[Any, ...]:
        """What queries must have in common to be searched together."""
        q, batch = self.query, id(self.parts[0][0] if self.parts else self)
        away = tuple(part.means for part in q.asked.without) if q.asked else ()
        return batch, q.side, away, q.unlike, replace(self.scope, k=1)


def run(index: Index, searches: Sequence[Searched]) -> None:
    """Give each search its result, or the exception that it alone has caused."""
    for_each(searches, lambda one: _read(index, one))
    _encode_texts(index, [one for one in searches if one.result is None and one.query.words])
    _encode_pictures(index, [one for one in searches if one.query.picture is not None])
    for_each(searches, lambda one: _combine(index, one))
    groups: dict[tuple[Any, ...], list[Searched]] = {}
    for one in searches:
        if one.result is None:
            groups.setdefault(one.shared(), []).append(one)
    for group in groups.values():
        try:
            _search(index, group)
        except Exception as error:
            for one in group:
                one.result = error


def for_each(searches: Iterable[Searched], work: Callable[[Searched], None]) -> None:
    """Do something for those that have no result; an exception is the result of its own."""
    for one in searches:
        if one.result is None:
            try:
                work(one)
            except Exception as error:
                one.result = error


def _read(index: Index, one: Searched) -> None:
    """Dates become conditions; what the query itself names is not found."""
    q, scope = one.query, one.scope
    if scope.guarantee is not None and (q.combined or q.listed):
        what = "a picture with words" if q.combined else "a search without words"
        raise ValueError(f"no guarantee for {what}")
    named = (q.item,) if q.item is not None and scope.gallery == q.of else ()
    pictures = (*q.like, *q.unlike) if scope.gallery == "images" else ()
    where = scope.where
    if q.asked is not None and q.asked.dates:
        if TAKEN in index.fields(scope.gallery):
            where = Where((*where.conditions, *Where.of(q.asked.where).conditions))
        else:
            said = quoted([part.said for part in q.asked.dates])
            one.remarks.append(f"no picture here has a date: {said} only counts for names")
    one.scope = replace(scope, where=where, exclude=(*scope.exclude, *named, *pictures))


def _encode_texts(index: Index, some: Sequence[Searched]) -> None:
    """All together; those without any known word are refused."""
    if not some:
        return
    try:
        for one, reading in zip(
            some, index.texts.read([canonical(one.query.words) for one in some]), strict=True
        ):
            one.reading = reading
            if not reading.known:
                one.result = UnknownWordsError([one.query.words], [0])
        good = [one for one in some if one.result is None]
        if good:
            batch, familiar = index.encode_texts([one.reading for one in good if one.reading])
            for row, one in enumerate(good):
                one.parts.append((batch, row, familiar))
    except Exception as error:
        for one in some:
            one.result = one.result or error


def _encode_pictures(index: Index, some: Sequence[Searched]) -> None:
    """All together; if one spoils the batch, one by one."""

    def encode(few: Sequence[Searched]) -> None:
        given: Any = [one.query.picture for one in few]
        if all(isinstance(one, torch.Tensor | np.ndarray) for one in given):
            given = np.stack([np.asarray(one) for one in given])
        batch, familiar = index.encode_images(given)
        for row, one in enumerate(few):
            one.parts.append((batch, row, familiar))

    left = [one for one in some if one.result is None]
    if left:
        try:
            encode(left)
        except Exception:
            for_each(left, lambda one: encode([one]))


def _combine(index: Index, one: Searched) -> None:
    """Add items of the index to the query, and make one Gaussian of several."""
    q = one.query
    items = [index.gaussian(id) for id in q.like]
    items += [] if q.item is None else [index.gaussian(q.item, q.of)]
    one.parts += [(g, 0, None) for g in items]
    if q.combined:
        g = index.together([one_of(part) for part in one.parts], one.scope.gallery)
        one.parts = [(g, 0, None)]


def one_of(part: Encoding) -> Gaussian | ArrayGaussian:
    """A row of a batch, as a batch of one."""
    return part[0][part[1] : part[1] + 1]


def _search(index: Index, group: Sequence[Searched]) -> None:
    """Search with queries of one batch and scope, and say what must be said of each."""
    first, ks = group[0], [one.scope.k for one in group]
    without, remarks = _excluded(index, first.query)
    queries = None
    if first.parts:
        batch, _, familiar = first.parts[0]
        rows = [one.parts[0][1] for one in group]
        lengths = None
        if first.query.side == "captions" and first.query.words:
            lengths = [length_of(canonical(one.query.words)) for one in group]
        strange = None if familiar is None else familiar[rows]
        queries = Queries(batch[rows], first.query.side, lengths, strange)
    found = search(index, queries, first.scope, ks, without)
    for one, hits in zip(group, found, strict=True):
        one.result = _told(index, one, hits.remarked([*one.remarks, *remarks]))


def _excluded(index: Index, q: Query) -> tuple[list[Queries], list[str]]:
    """What must not be in the results; and what to say about words that are not known."""
    found, notes = list[Queries](), list[str]()
    if q.asked is not None and q.asked.without:
        read = index.texts.read([canonical(part.means) for part in q.asked.without])
        unknown = [r.text for r in read if not r.known]
        notes = [f"I don’t know {quoted(unknown)}: it is not excluded"] if unknown else []
        if read := [r for r in read if r.known]:
            said = tuple(r.text for r in read)
            g, familiar = index.encode_texts(read)
            found.append(Queries(g, "captions", [*map(length_of, said)], familiar, said))
    if q.unlike:
        away = Gaussian.cat([index.gaussian(id) for id in q.unlike])
        found.append(Queries(away, "images", said=q.unlike))
    return found, notes


def _told(index: Index, one: Searched, hits: Hits) -> Hits:
    """The results with all that is to be said of the words of a query."""
    q, asked, reading = one.query, one.query.asked, one.reading
    hits = hits.unjudged() if q.combined else hits
    if asked is None:
        return hits
    if reading is None:
        return replace(hits, asked=asked).remarked(asked.notes)
    unknown, meant = index.words_of(reading)
    if q.side == "captions":
        return hits.for_text(asked, unknown, meant, reading.truncated)
    notes = [*hits.notes, *([TRUNCATED] if reading.truncated else [])]
    return replace(hits, unknown=unknown, notes=notes, asked=asked).remarked(asked.notes)


# ---- one search ----


def search(
    index: Index,
    queries: Queries | None,
    scope: Scope,
    k: int | Sequence[int],
    without: Sequence[Queries] = (),
) -> list[Hits]:
    """Results of queries that have one scope.

    Args:
        queries: ``None`` for one that names nothing to look for.
        k: how many results each wants, unless it wants a guarantee.
    """
    if without and scope.guarantee is not None:
        raise ValueError("no guarantee for a search that excludes something")
    for each in (*without, *([] if queries is None else [queries])):
        each.arrays = check_query(each.gaussians, index.manifest.form, index.similarity)

    ks = [k] * (1 if queries is None else len(queries)) if isinstance(k, int) else k

    def results() -> list[Hits]:
        ranking = Ranking(index, scope)
        if queries is None:
            return ranking.listed(ks[0], without)
        return ranking.searched(queries, ks, without)

    return index.fresh(results)


class Ranking:
    """The items of a gallery that one search may find, ranked and judged."""

    def __init__(self, index: Index, scope: Scope) -> None:
        self.index, self.scope, self.gallery = index, scope, scope.gallery
        self.items = Several.of(index.backend.searchable(scope.gallery, scope.where, scope.exclude))
        self.size = self.items.reach
        if not self.size:
            index.check_fields(scope.where, scope.gallery)

    def searched(
        self, queries: Queries, ks: Sequence[int], without: Sequence[Queries]
    ) -> list[Hits]:
        """The best for each query."""
        least = TOP if self._judges(queries.side) else 1
        wide = max(*ks, least, POOL if without else 1)
        found = self.best(queries, wide)
        judged = self.judged(queries, found)
        kept = [min(k, found.score.shape[1]) for k in ks]
        if (share := self.scope.guarantee) is not None:
            found, judged, kept = self._promised(share, queries, found, judged, wide)
        remarks = list[str]()
        if without and self.size:
            found, judged, remarks = self._reordered(found, judged, queries, without)
        notes = self._notes(queries.side, queries.arrays.is_point)
        return self._hits(found, judged, queries.side, kept, notes, remarks)

    def listed(self, k: int, without: Sequence[Queries]) -> list[Hits]:
        """Everything of some time, newest first; or what is least like what is excluded, of at most
        ``SCANNED`` items."""
        row, remarks = self.items.sample(min(SCANNED, self.size)), list[str]()
        found, judged = TopK(row[None], np.zeros((1, len(row)))), Judgment()
        if without and self.size:
            found, judged, remarks = self._reordered(found, judged, None, without)
        else:
            taken = [str(meta.get(TAKEN, "")) for meta in self.items.described(row)[1]]
            order = sorted(range(len(taken)), key=lambda at: taken[at], reverse=True)
            found = TopK(row[None, order], found.score)
        kept = [min(k, found.row.shape[1])]
        return self._hits(found, judged, other_side(self.gallery), kept, [], remarks)

    def best(self, queries: Queries, k: int) -> TopK:
        """The k best items for each query."""
        return top_k(self.items, queries.arrays, k, self.index.settings.rescore).complete()

    def judged(self, queries: Queries, found: TopK) -> Judgment:
        """What is known of queries and of all that was found."""
        q, sample = queries, found.score
        if sample.size and self._judges(q.side):
            sample = self._sampled(q)
        return self.index.calibration.judge(
            q.arrays, q.side, self.gallery, found.score, sample, self.size, q.kinds, q.familiar
        )

    def _judges(self, side: Gallery) -> bool:
        """Whether the calibration says what scores of such queries mean: only across sides."""
        return side != self.gallery and self.gallery in self.index.calibration.ways

    def _sampled(self, queries: Queries) -> np.ndarray:
        """(n, r), scores of queries with a sample of the items, which is lifted once."""
        index, gallery = self.index, self.gallery
        lifted = index.samples(
            (index.manifest.generation, gallery, self.scope.where),
            lambda: index.among(gallery).arrays_against(self._sample(), gallery),
        )
        return lifted(queries.arrays)

    def _sample(self) -> ArrayGaussian:
        return self.items.arrays(self.items.sample(min(SAMPLE, self.size)))

    # ---- promises ----

    def _promised(
        self, share: float, queries: Queries, found: TopK, judged: Judgment, wide: int
    ) -> tuple[TopK, Judgment, list[int]]:
        """As many results as it takes to keep the promise, and how many these are of each query."""
        if judged.reader is None and queries.side == self.gallery:
            raise ValueError(
                f"no guarantee for {self.gallery} among {self.gallery}: only across sides"
            )
        if judged.reader is None:
            raise ValueError(
                f"no guarantee: nothing is known about scores among {self.gallery}; "
                "run 'gaussmatch calibrate RUN' and make the index again"
            )
        needed = judged.reader.needed(self.scope.promise, share, self._missed())
        if np.isnan(needed).any():
            raise ValueError("no guarantee: nothing was learned about queries so short")
        logits = judged.reader.logits(found.score)
        while wide < self.size and (logits[:, -1] >= needed).any():
            wide *= 4
            found = self.best(queries, wide)
            logits = judged.reader.logits(found.score)
        held = (logits >= needed[:, None]).sum(1)
        kept = held.clip(min(1, self.size)).tolist()  # one more breaks no promise
        return found, replace(judged, probability=sigmoid(logits)), kept

    def _missed(self) -> float:
        """The share of the exact best results that a search fails to find, measured with training
        items as queries; 0 where every search is exact."""
        items = Several.of(self.index.backend.searchable(self.gallery, EVERYTHING, ()))
        reference = self.index.calibration.reference.get(other_side(self.gallery))
        if reference is None or items.exact:
            return 0.0
        sample, rescore = reference[:MISSED_QUERIES], self.index.settings.rescore
        near, exact = (top_k(some, sample, TOP, rescore) for some in (items, Scanned(items)))
        worst = exact.score[:, -1:] - 1e-9 * np.abs(exact.score[:, -1:])
        return float(1 - (near.score >= worst).mean())

    # ---- what must not be there ----

    def _reordered(
        self, found: TopK, judged: Judgment, queries: Queries | None, without: Sequence[Queries]
    ) -> tuple[TopK, Judgment, list[str]]:
        """The results of a search, those with what is excluded last; and what to say about it.

        Args:
            queries: ``None`` where everything is a result, and only the exclusion orders it.
        """
        away = [self._away(one, found) for one in without]
        remarks = [remark for *_, said in away for remark in said]
        likely = np.ones(found.score.shape) if queries is None else judged.probability
        probability = None
        if likely is not None and not np.isnan(likely).any():
            kept = [keep for keep, *_ in away if keep is not None]
            probability = likely * np.exp(np.sum(kept, 0)) if len(kept) == len(away) else None
        if probability is not None:
            value = probability
        else:
            value = -AGAINST * np.sum([against for _, against, _ in away], 0)
            value = value if queries is None else value + self._standing(queries, found.score)
        order = np.tile(np.arange(value.shape[1]), (len(value), 1))
        pool = slice(None) if queries is None else slice(POOL)
        order[:, pool] = np.argsort(-value[:, pool], axis=1, kind="stable")
        row, score = (np.take_along_axis(x, order, 1) for x in (found.row, found.score))
        if probability is not None:
            probability = np.take_along_axis(probability, order, 1)
        return TopK(row, score), replace(judged, probability=probability, count=None), remarks

    def _away(
        self, without: Queries, found: TopK
    ) -> tuple[np.ndarray | None, np.ndarray, list[str]]:
        """Of each result ln ∏ (1 − P(fits what is excluded)), ``None`` if no calibration knows it;
        Σ z(excluded); and what to say. What the model does not know is not excluded."""
        known = self.judged(without, self.best(without, TOP))
        strange = np.zeros(len(without), bool)
        if known.familiar is not None:
            strange = known.familiar < CLEARLY
        said = np.array(without.said, dtype=object)
        lost, there = said[strange].tolist(), said[~strange].tolist()
        shape, remarks = found.score.shape, list[str]()
        if lost:
            remarks.append(f"I don’t know {quoted(lost)}: it is not excluded")
        if not there:
            return np.zeros(shape), np.zeros(shape), remarks
        remarks.append(
            f"Without {quoted(there)}. {MOSTLY}" if without.side == "captions" else WEAKLY
        )
        away = (without.arrays[m : m + 1] for m in range(len(without)))
        scores = np.stack([scores_of(self.items, one, found.row).ravel() for one in away])
        against = self._standing(without, scores)[~strange].sum(0).reshape(shape)
        if known.reader is None:
            return None, against, remarks
        keep = log_sigmoid(-known.reader.logits(scores))
        return keep[~strange].sum(0).reshape(shape), against, remarks

    def _standing(self, queries: Queries, scores: np.ndarray) -> np.ndarray:
        """(n, k) scores in standard deviations of the gallery, from its mean."""
        sample = self._sampled(queries)
        spread = np.maximum(sample.std(1, keepdims=True), 1e-9)
        standing: np.ndarray = (scores - sample.mean(1, keepdims=True)) / spread
        return standing

    # ---- what is said ----

    def _hits(
        self,
        found: TopK,
        judged: Judgment,
        side: Gallery,
        kept: Sequence[int],
        notes: Sequence[str],
        remarks: Sequence[str],
    ) -> list[Hits]:
        """Of each query the first ``kept`` results."""
        n, k = len(kept), max(kept, default=0)
        row, score = found.row[:, :k].ravel(), found.score[:, :k].ravel()
        calibration, scope = self.index.calibration, self.scope
        (ids, metas), items = self.items.described(row), self.items.uncertainty(row)
        of_items = None if items is None else items.reshape(n, k)
        shares = None if of_items is None else calibration.percentile(self.gallery, of_items)
        likely = None if judged.probability is None else judged.probability[:, :k]
        columns = (_listed(x, n * k) for x in (likely, items, shares))
        hits = [
            Hit(id=i, score=s, probability=p, uncertainty=u, percentile=share, meta=meta)
            for i, s, p, u, share, meta in zip(ids, score.tolist(), *columns, metas, strict=True)
        ]
        names = ("uncertainty", "percentile", "familiar", "absent", "nothing")
        about = {name: _listed(getattr(judged, name), n) for name in names}
        return [
            Hits(
                hits[q * k : q * k + count],
                self.gallery,
                side,
                **{name: values[q] for name, values in about.items() if values[q] is not None},
                count=_count(judged, q),
                guarantee=scope.guarantee,
                promise=scope.promise,
                total=self.size if scope.guarantee is None else count,
                notes=notes,
                calibrated=bool(calibration.ways),
                remarks=remarks,
            )
            for q, count in enumerate(kept)
        ]

    def _notes(self, side: Gallery, points: bool) -> list[str]:
        notes, gauges = [], self.index.calibration.gauges
        if points:
            notes.append("this is a point model: it has no uncertainty")
        elif side not in gauges:
            notes.append(
                f"no percentile of {side}: no probe has judged their uncertainty ('gaussmatch "
                "probe RUN' does)"
            )
        elif not gauges[side]:
            notes.append(
                f"no percentile of {side}: the uncertainty of this model failed its probe "
                "('gaussmatch probe RUN' shows why)"
            )
        elif self.index.similarity.uncertainty_note:
            notes.append(f"uncertainty: {self.index.similarity.uncertainty_note}")
        if side == self.gallery:
            notes.append(f"{side} are compared with {self.gallery}: no probability of fitting")
        return notes


def _count(judged: Judgment, query: int) -> FitCount | None:
    """How many fit."""
    if judged.count is None or np.isnan(judged.count[query, 1]):
        return None
    return FitCount(*map(int, judged.count[query]))


def _listed(values: np.ndarray | None, count: int) -> list[Any]:
    """Numbers as Python has them; ``None`` if there is none."""
    if values is None:
        return [None] * count
    listed: list[Any] = values.ravel().tolist()
    return [None if x != x else x for x in listed]
