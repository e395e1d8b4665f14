"""What numbers mean for one model: how vague, how familiar, whether a result fits, how many do, and
with what guarantee. ``learn`` makes one from training and judged data; it is kept with the run."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.metrics.conformal import QuantileLine, RiskControl
from gaussmatch.core.metrics.fitting import (
    FARTHEST,
    TOP,
    Level,
    ResultProbability,
    base_features,
    expanded,
    expected_count,
    falling,
    sigmoid,
)
from gaussmatch.core.similarities.base import SIDES, Side
from gaussmatch.files import read_json, write_json
from gaussmatch.models.texts import Reading
from gaussmatch.search.trust.familiarity import CLEARLY, Familiarity, Features, Words
from gaussmatch.search.trust.gauges import Gauge

Gallery = Side
GALLERIES = SIDES

Promise = Literal["recall", "one"]
PROMISES: tuple[Promise, ...] = get_args(Promise)
"""What a guarantee holds: a share of all that fits, or the one item that is meant."""
WHOLE, IMAGE = "whole", "image"
"""Kinds of queries: whole captions, where nothing else is said, and images. Shorter texts are kinds
of their own, see ``data.language.length_of``."""

DOUBT = 0.5
"""p-value of "nothing fits" above which perhaps nothing does, and no number is given. Half of the
searches that have nothing to find exceed it, and about one in ten of the others of a few words."""
LIKELY, SURE = 0.5, 0.8
"""P(fits) of the first result from which on "nothing" is not said, and is not doubted either."""
FACTOR = 4
"""From this width of the interval on, no number is given."""
SMALLEST = 30
"""Items of a gallery from which on a number, or "nothing", is said: it was learned from 100 on."""


@dataclass(frozen=True)
class QueryKind:
    """What was learned of one kind of query. Lines are through the standardized features of a
    query (``Reader.features``), the size of the gallery among them.

    Args:
        queries: how many were held out.
        fits: P(fits) of a result from its standardized features (``metrics.fitting``).
        counts: lines through ln(true + 1) that it exceeds nine times in ten, five, and one.
        wider: ln of sizes of galleries, ascending, each with by how much the outer lines are to be
            moved outwards there.
        absent: the presence (``Way.presence``) of queries whose fitting items were removed, at 0 %,
            1 %, … 100 %.
        nothing: the line through the presence below which two in a hundred queries lie that have
            fitting items.
        least: the line through the logits of fitting items that one in ten lies below.
        recall, one: by how much a logit may lie below that line in the sets that keep a promise.
    """

    queries: int
    fits: ResultProbability
    counts: tuple[QuantileLine, ...]
    wider: tuple[tuple[float, float], ...]
    absent: tuple[float, ...]
    nothing: QuantileLine
    least: QuantileLine
    recall: RiskControl
    one: RiskControl

    def count(self, features: np.ndarray, size: int) -> np.ndarray:
        """(n, 3), whole numbers: how many fit, as an 80 % interval around the middle: low, about,
        high."""
        sizes, outwards = zip(*self.wider, strict=True)
        out = float(np.interp(np.log(max(size, 1)), sizes, outwards))
        lines = np.stack([line(features) for line in self.counts], 1) + out * np.array([-1, 0, 1])
        found = np.clip(np.rint(np.exp(np.minimum(lines, 50.0)) - 1), 0, size)
        low, about, high = found.T
        return np.stack([np.minimum(low, about), about, np.maximum(about, high)], 1)

    def at(self, values: Sequence[float]) -> QueryKind:
        """The same if the last features of a query have these values and are no longer given."""
        cut = {name: getattr(self, name).at(values) for name in ("nothing", "least")}
        return replace(self, counts=tuple(line.at(values) for line in self.counts), **cut)

    def absence(self, presence: np.ndarray) -> np.ndarray:
        """(n), p-values of "nothing fits"."""
        below = np.searchsorted(np.asarray(self.absent), presence, "left")
        return np.asarray((1 + len(self.absent) - below) / (1 + len(self.absent)))


@dataclass(frozen=True)
class Way:
    """What scores mean when a gallery is searched with queries of the other side.

    Args:
        temperature: τ of the softmax over the gallery.
        ``center``, scale: of the base features (``metrics.fitting``).
        middle, spread: of the features of a query (``Reader.summary``).
        presence: whether anything fits, from the features of a query.
        kinds: what was learned of each kind of query; of others nothing is said.
    """

    temperature: float
    center: tuple[float, ...]
    scale: tuple[float, ...]
    middle: tuple[float, ...]
    spread: tuple[float, ...]
    presence: ResultProbability
    kinds: Mapping[str, QueryKind]

    def reader(
        self,
        scores: np.ndarray,
        sample: np.ndarray,
        size: int,
        unsure: np.ndarray,
        kinds: Sequence[str],
    ) -> Reader:
        """How the results of n queries are to be read.

        Args:
            scores: (n, k), the best ones, descending.
            sample: (n, r), of a random sample of the gallery, or of all of it.
            size: items in the gallery.
            unsure: (n), log det Σ of the queries; 0 of points.
            kinds: (n), of the queries.
        """
        top = scores[:, :TOP]
        level = Level.of(top, sample, size, self.temperature)
        number = {name: at for at, name in enumerate(self.kinds)}
        kind = np.array([number.get(name, -1) for name in kinds])
        return Reader(self, level, top, sample, unsure, kind)


@dataclass(frozen=True, eq=False)
class Reader:
    """The queries of one search among the scores of their gallery."""

    way: Way
    level: Level
    top: np.ndarray
    sample: np.ndarray
    unsure: np.ndarray
    kind: np.ndarray

    def logits(self, scores: np.ndarray) -> np.ndarray:
        """(n, k), ln P/(1 − P) of fitting, never rising as scores fall; 0 where the query is of a
        kind that was not judged."""
        way = self.way
        base = base_features(scores, self.level, self.unsure, way.temperature)
        standard = (base - way.center) / way.scale
        values = np.zeros(scores.shape)
        for kind, rows in self.each():
            if kind is not None:
                own = expanded(standard[rows].reshape(-1, base.shape[-1]))
                values[rows] = kind.fits.logit(own).reshape(len(rows), -1)
        return falling(values, scores)

    @cached_property
    def _judged(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """P of the best and of the sample, and the number expected."""
        both = sigmoid(self.logits(np.concatenate([self.top, self.sample], 1)))
        p_top, p_sample = both[:, : self.top.shape[1]], both[:, self.top.shape[1] :]
        found = expected_count(p_top, p_sample, self.top, self.sample, self.level.size)
        return p_top, p_sample, found

    @property
    def expected(self) -> np.ndarray:
        """(n), Σ P(fits) over the gallery."""
        return self._judged[2]

    def summary(self) -> np.ndarray:
        """(n, f), what is known of a search as a whole: P of the best result and of the best ones
        in the mean, how many are expected, and the base features of the best result, among them
        the query's uncertainty and the size of the gallery."""
        p_top, _, expected = self._judged
        best = np.stack([p_top[:, 0], p_top.mean(1)], 1).clip(1e-6, 1 - 1e-6)
        told = np.log(expected + 1)
        base = base_features(self.top[:, :1], self.level, self.unsure, self.way.temperature)[:, 0]
        return np.concatenate([np.log(best / (1 - best)), np.stack([told, told**2], 1), base], 1)

    @cached_property
    def features(self) -> np.ndarray:
        """(n, f), standardized, none far from what was learned of."""
        known = (self.summary() - self.way.middle) / self.way.spread
        return np.asarray(known.clip(-FARTHEST, FARTHEST))

    def presence(self) -> np.ndarray:
        """(n), higher where something fits."""
        return self.way.presence.logit(self.features)

    def each(self) -> list[tuple[QueryKind | None, np.ndarray]]:
        """The kinds of the queries, each with the rows of its queries."""
        kinds = list(self.way.kinds.values())
        each = ((k, np.flatnonzero(self.kind == k)) for k in np.unique(self.kind))
        return [(None if k < 0 else kinds[k], rows) for k, rows in each]

    def needed(self, promise: Promise, level: float, missed: float = 0.0) -> np.ndarray:
        """(n), the least logit of a result in the set that keeps a promise; NaN where none can be
        given, as the query is of a kind that was not judged."""
        found = np.full(len(self.kind), np.nan)
        for kind, rows in self.each():
            if kind is not None:
                control = kind.recall if promise == "recall" else kind.one
                found[rows] = kind.least(self.features[rows]) + control.threshold(level, missed)
        return found


@dataclass(frozen=True, eq=False)
class Judgment:
    """What a calibration says about n queries and their k results; ``None`` where not known.

    Args:
        uncertainty: (n), log det Σ of the queries.
        percentile: (n), the share (0–100) of training items that are surer than the query; texts
            are compared with whole captions.
        familiar: (n), p-value: the share of validation queries at least as far from training.
        probability: (n, k), that a result fits, never increasing; NaN for an unfamiliar query,
            about which the model cannot know.
        absent: (n), p-value of "nothing in this gallery fits": the share of queries of the same
            kind without a fitting item that look as promising. Small where something fits.
        nothing: (n), whether fewer than two in a hundred queries that have a fitting item look as
            bad.
        count: (n, 3), how many fit: low and high of an 80 % interval, and the middle between.
        reader: for promises.
    """

    uncertainty: np.ndarray | None = None
    percentile: np.ndarray | None = None
    familiar: np.ndarray | None = None
    probability: np.ndarray | None = None
    absent: np.ndarray | None = None
    nothing: np.ndarray | None = None
    count: np.ndarray | None = None
    reader: Reader | None = None


@dataclass(frozen=True)
class Calibration:
    """Learned once from a run's own data, kept with the run and with every index of it.

    Args:
        quantiles: side → the uncertainties of training items at 0 %, 0.1 %, …, 100 %.
        reference: side → some training items.
        familiarity: side → how far held-out items lie from training.
        ways: gallery → what scores mean in it.
        gauges: side → whether ``probe`` found that uncertainty means ambiguity. One that it did
            not judge is left out, and shown no more than one that failed.
        about: what it was learned from and how good it is, for people.
        words: those of training captions, and in how many of them each stands.
        image_gauges: what an image's Gaussian says of its ambiguity, see ``gauges``.
    """

    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    reference: Mapping[str, ArrayGaussian] = field(default_factory=dict)
    familiarity: Mapping[str, Familiarity] = field(default_factory=dict)
    ways: Mapping[str, Way] = field(default_factory=dict)
    gauges: Mapping[str, bool] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    words: Words = field(default_factory=Words)
    image_gauges: Mapping[str, Gauge] = field(default_factory=dict)

    def unknown_words(self, reading: Reading) -> list[str]:
        """The words of a text that the model does not know. A sub-word encoder can read any, also
        "qwer"; one that it has no token for is known if training captions hold it."""
        unseen = [word for word in reading.cut if word not in self.words]
        return [*reading.unknown, *unseen] if len(self.words) else reading.unknown

    def familiar(
        self, side: Gallery, features: Features, texts: Sequence[str] | None = None
    ) -> np.ndarray | None:
        """(n), p-values: the share of validation inputs that are at least as unlike training;
        ``None`` if it is not known. See ``familiarity.Features``.

        Args:
            texts: in canonical form, for their words.
        """
        near = self.familiarity.get(side)
        if near is None:
            return None
        known = texts is not None and len(self.words) > 0
        usual = [self.words.usual(text) for text in texts] if known and texts else None
        return near.p_value(features, usual)

    def ambiguity(self, images: Gaussian) -> list[dict[str, float]]:
        """For each image, gauge → percentile (0–100) among training images; only gauges that a
        probe has confirmed."""
        shown = {n: g for n, g in self.image_gauges.items() if self.gauges.get(n, False)}
        columns = {name: gauge.percentile(gauge(images)) for name, gauge in shown.items()}
        return [{n: float(c[row]) for n, c in columns.items()} for row in range(len(images))]

    def percentile(
        self, side: Gallery, uncertainty: np.ndarray, familiar: np.ndarray | None = None
    ) -> np.ndarray | None:
        """The share (0–100) of training items that are surer; ``None`` if it is not known or
        where no probe has found that it means something. NaN if the model does not know such
        items (``familiar``, their p-values): the unknown is not vague."""
        if side not in self.quantiles or not self.gauges.get(side, False):
            return None
        values = self._values[side]
        share = np.linspace(0, 100, len(values))
        low = np.searchsorted(values, uncertainty, "left")
        first = np.minimum(low, len(values) - 1)  # of those that are equal: ties are not surer
        tied = values[first] == uncertainty
        inside = np.where(tied, share[first], np.interp(uncertainty, values, share))
        found = np.where(low == 0, 0.0, np.where(low == len(values), 100.0, inside))
        return found if familiar is None else np.where(familiar < CLEARLY, np.nan, found)

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        return {side: np.asarray(known) for side, known in self.quantiles.items()}

    def judge(
        self,
        queries: Gaussian | ArrayGaussian,
        side: Gallery,
        gallery: Gallery,
        scores: np.ndarray,
        sample: np.ndarray,
        size: int,
        kinds: Sequence[str] | None = None,
        familiar: np.ndarray | None = None,
    ) -> Judgment:
        """Everything that is known about queries and their results.

        Args:
            side: what the queries are.
            scores: (n, k), best first; k should be at least ``TOP`` where the gallery has as many.
            sample: (n, r), scores of a random sample of the gallery, or of all of it.
            size: items in the gallery.
            kinds: (n), of the queries; whole captions, or images, if not given.
            familiar: (n), p-values of the queries' inputs, see ``familiar``; by their means if
                not given.
        """
        own = queries.numpy() if isinstance(queries, Gaussian) else queries
        unsure = None if own.is_point else own.uncertainty().astype(np.float64)
        if familiar is None:  # its inputs are not known, and perhaps not needed
            familiar = self.familiar(side, Features.of_gaussians(own))
        share = None if unsure is None else self.percentile(side, unsure, familiar)
        way = self.ways.get(gallery)
        if way is None or side == gallery or not scores.shape[1]:
            return Judgment(unsure, share, familiar)
        kinds = kinds or [IMAGE if side == "images" else WHOLE] * len(queries)
        vague = np.zeros(len(queries)) if unsure is None else unsure
        reader = way.reader(scores, sample, size, vague, kinds)
        probability = sigmoid(reader.logits(scores))
        present, features = reader.presence(), reader.features
        absent, count = np.full(len(queries), np.nan), np.full((len(queries), 3), np.nan)
        nothing = np.zeros(len(queries), dtype=bool)
        for kind, rows in reader.each():
            if kind is None:
                probability[rows] = np.nan
                continue
            count[rows] = kind.count(features[rows], size)
            absent[rows] = kind.absence(present[rows])
            nothing[rows] = present[rows] < kind.nothing(features[rows])
        if familiar is not None:
            strange = familiar < CLEARLY
            probability[strange] = absent[strange] = count[strange] = np.nan
            nothing &= ~strange
        if size < SMALLEST:
            absent[:], count[:], nothing[:] = np.nan, np.nan, False
        return Judgment(unsure, share, familiar, probability, absent, nothing, count, reader)

    def save(self, path: Path) -> None:
        """One JSON file; the reference is kept in float16."""
        write_json(
            path,
            {
                "quantiles": self.quantiles,
                "reference": {
                    side: [
                        _packed(a.astype(np.float16)) for a in (g.mean, g.log_var) if a is not None
                    ]
                    for side, g in self.reference.items()
                },
                "familiarity": {
                    side: {name: _packed(a) for name, a in f.arrays().items()}
                    for side, f in self.familiarity.items()
                },
                "ways": {gallery: asdict(way) for gallery, way in self.ways.items()},
                "gauges": self.gauges,
                "about": self.about,
                "words": dict(sorted(self.words.counts.items())),
                "image_gauges": {
                    name: {part: _packed(a) for part, a in gauge.arrays().items()}
                    for name, gauge in self.image_gauges.items()
                },
            },
        )

    @staticmethod
    def load(path: Path) -> Calibration:
        """Read what ``save`` wrote; of a file of version 0.1 only the percentiles."""
        content = read_json(path)
        try:
            return Calibration(
                {side: tuple(values) for side, values in content["quantiles"].items()},
                {
                    side: ArrayGaussian(*(_unpacked(a).astype(np.float32) for a in arrays))
                    for side, arrays in content.get("reference", {}).items()
                },
                {
                    side: Familiarity.from_arrays({n: _unpacked(a) for n, a in arrays.items()})
                    for side, arrays in content.get("familiarity", {}).items()
                },
                {gallery: _way_from(way) for gallery, way in content.get("ways", {}).items()},
                content.get("gauges", {}),
                content["about"],
                Words(content.get("words", {})),
                {
                    name: Gauge(**{part: _unpacked(a) for part, a in parts.items()})
                    for name, parts in content.get("image_gauges", {}).items()
                },
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: not a calibration ({error})") from error


# ---- files ----


def _way_from(content: Mapping[str, Any]) -> Way:
    return Way(
        content["temperature"],
        tuple(content["center"]),
        tuple(content["scale"]),
        tuple(content["middle"]),
        tuple(content["spread"]),
        _probability_from(content["presence"]),
        {name: _kind_from(kind) for name, kind in content["kinds"].items()},
    )


def _probability_from(content: Mapping[str, Any]) -> ResultProbability:
    weights, center, scale = (tuple(content[name]) for name in ("weights", "center", "scale"))
    return ResultProbability(weights, content["bias"], center, scale)


def _line_from(content: Mapping[str, Any]) -> QuantileLine:
    return QuantileLine(tuple(content["weights"]), content["bias"])


def _kind_from(content: Mapping[str, Any]) -> QueryKind:
    known: dict[str, Any] = {**content, "fits": _probability_from(content["fits"])}
    known["counts"] = tuple(map(_line_from, content["counts"]))
    known["absent"] = tuple(content["absent"])
    known["wider"] = tuple((size, by) for size, by in content["wider"])
    known |= {name: _line_from(content[name]) for name in ("nothing", "least")}
    for name in PROMISES:
        c = content[name]
        known[name] = RiskControl(tuple(c["thresholds"]), tuple(c["held"]), c["queries"])
    return QueryKind(**known)


def _packed(array: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": data}


def _unpacked(content: Mapping[str, Any]) -> np.ndarray:
    array = np.frombuffer(base64.b64decode(content["base64"]), content["dtype"])
    return array.reshape(content["shape"])
