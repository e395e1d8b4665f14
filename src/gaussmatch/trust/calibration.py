"""What numbers mean for one model: how vague, how familiar, a match or not, and with what
guarantee. Learned from training and validation data, kept with the run."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gaussmatch.data.batches import read_images, read_texts
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.data.queries import shortened
from gaussmatch.encoders.base import Reading
from gaussmatch.evaluation.reliability import REFERENCE, evenly
from gaussmatch.evaluation.scores import query_scores
from gaussmatch.files import read_json, write_json
from gaussmatch.gaussian import Gaussian
from gaussmatch.metrics import (
    Guarantee,
    IsotonicProbability,
    Relevance,
    ResultProbability,
    auroc,
    brier,
    calibration_error,
    evidence,
    learn_guarantee,
    log_perplexity,
)
from gaussmatch.model import Model
from gaussmatch.similarities import Similarity
from gaussmatch.similarities.base import SIDES, Side
from gaussmatch.trust.familiarity import CLEARLY, Familiarity
from gaussmatch.trust.wording import canonical

Gallery = Side
GALLERIES = SIDES

QUANTILES = 1001
MOST = 20_000
"""Training items of each side that percentiles are taken from; of the texts, half are whole
captions and half their shortened forms, as people type queries."""
TOP = 10
"""Results of a query that its match probabilities are computed from."""
SHARES = (1.0, 0.5, 0.25, 0.125)
"""Parts of the validation gallery that the match probability is fitted on, to know its size."""
FOLDS = 5
ANNOTATED_PAIRS, TRUE_PAIRS = "annotated pairs", "true pairs"
"""What a calibration takes for matches."""
FEWEST = 10
"""Validation images, and captions, without which nothing is learned."""
CELLS = 25_000_000
"""Scores of validation queries with their gallery that are held at a time, at most."""


@dataclass(frozen=True)
class Way:
    """What scores mean when a gallery is searched with queries of the other side.

    Args:
        temperature, weight: of the evidence of a result, see ``metrics.evidence``.
        probability: p(match) of a result from its evidence, that of its rivals, the size of the
            gallery, the strangeness of the query and both uncertainties (``_features``).
        nothing: the best evidence of validation queries whose matches were removed, ascending.
        size: items in the validation gallery, and ``growth``: by how much the best evidence without
            a match rises when ln of the size does by one.
        guarantee: conformal thresholds on evidence.
    """

    temperature: float
    weight: float
    probability: ResultProbability
    nothing: tuple[float, ...]
    size: int
    growth: float
    guarantee: Guarantee

    def absent(self, best: np.ndarray, size: int) -> np.ndarray:
        """p-value of "nothing matches" from the best evidence in a gallery of so many items."""
        at_home = best - self.growth * np.log(size / self.size)
        below = np.searchsorted(self.nothing, at_home, "left")
        return np.asarray((1 + len(self.nothing) - below) / (1 + len(self.nothing)))


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a calibration says about n queries and their k results; ``None`` where not known.

    Args:
        percentile: (n), the share (0–100) of training items that are surer than the query; texts
            are compared with whole captions and shortened ones in equal parts.
        familiar: (n), p-value: the share of validation queries at least as far from training.
        evidence: (n, k), see ``metrics.evidence``.
        probability: (n, k), that a result is a match, never increasing; NaN for an unfamiliar
            query, about which the model cannot know.
        absent: (n), p-value of "nothing in this gallery matches": the share of such queries whose
            best result looks as good. Small where there is a match.
        p_value: (n, k), conformal p-value of "this is the match", never increasing; NaN for an
            unfamiliar query. See ``metrics.Guarantee``.
    """

    percentile: np.ndarray | None = None
    familiar: np.ndarray | None = None
    evidence: np.ndarray | None = None
    probability: np.ndarray | None = None
    absent: np.ndarray | None = None
    p_value: np.ndarray | None = None


@dataclass(frozen=True)
class Calibration:
    """Learned once from a run's own data, kept with the run and with every index of it.

    Args:
        quantiles: side → the uncertainties of training items at 0 %, 0.1 %, …, 100 %.
        reference: side → some training items.
        familiarity: side → how far held-out items lie from the reference.
        ways: gallery → what scores mean in it.
        gauges: side → whether ``probe`` found that uncertainty means ambiguity; a side that it
            did not judge is left out.
        about: what it was learned from and how good it is, for people.
        words: of the words that a sub-word encoder reads in parts, those of training captions.
    """

    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    reference: Mapping[str, Gaussian] = field(default_factory=dict)
    familiarity: Mapping[str, Familiarity] = field(default_factory=dict)
    ways: Mapping[str, Way] = field(default_factory=dict)
    gauges: Mapping[str, bool] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    words: frozenset[str] = frozenset()

    def unknown_words(self, reading: Reading) -> list[str]:
        """The words of a text that the model does not know. A sub-word encoder can read any, also
        "qwer"; one that it has no token for is known if training captions hold it."""
        unseen = [word for word in reading.cut if word.lower() not in self.words]
        return [*reading.unknown, *unseen] if self.words else reading.unknown

    def percentile(self, side: Gallery, uncertainty: np.ndarray) -> np.ndarray | None:
        """The share (0–100) of training items that are surer; ``None`` where it is not known or
        where the probe found that it means nothing."""
        if side not in self.quantiles or not self.gauges.get(side, True):
            return None
        values = self._values[side]
        share = np.linspace(0, 100, len(values))
        low = np.searchsorted(values, uncertainty, "left")
        inside = np.interp(uncertainty, values, share)
        return np.where(low == 0, 0.0, np.where(low == len(values), 100.0, inside))

    @property
    def exhaustive(self) -> bool:
        """Whether it was learned from every true match, and not from annotated pairs only."""
        return self.about.get("matches_are") == TRUE_PAIRS

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        return {side: np.asarray(known) for side, known in self.quantiles.items()}

    @torch.no_grad()
    def judge(
        self,
        similarity: Similarity,
        queries: Gaussian,
        side: Gallery,
        gallery: Gallery,
        scores: np.ndarray,
        uncertainty: np.ndarray | None,
        size: int,
    ) -> Judgement:
        """Everything that is known about queries and their results.

        Args:
            side: what the queries are.
            scores: (n, k), best first; k should be at least ``TOP`` where the gallery has as many,
                as fewer rivals make a result look better than it is.
            uncertainty: (n, k), of the results; ``None`` for a point model.
            size: items in the gallery.
        """
        own = None if queries.is_point else queries.uncertainty().double()
        share = None if own is None else self.percentile(side, own.numpy())
        near, familiar = self.familiarity.get(side), None
        far = torch.zeros(len(queries), dtype=torch.float64)
        if near is not None:
            far = near.distance(queries)
            familiar = near.p_value(far)
        way = self.ways.get(gallery)
        if way is None or side == gallery or not scores.shape[1]:
            return Judgement(share, familiar)
        reference = query_scores(similarity, queries, self.reference[gallery], gallery)
        found = evidence(torch.from_numpy(scores), reference, way.temperature, way.weight)
        spread = log_perplexity(reference, way.temperature)
        sure = [] if own is None or uncertainty is None else [own, torch.from_numpy(uncertainty)]
        features = _features(found, size, far, spread, *sure)
        if features.shape[-1] != len(way.probability.weights):
            return Judgement(share, familiar, found.numpy())
        chance = _never_rising(way.probability, features)
        absent = way.absent(found[:, 0].numpy(), size)
        group = np.zeros(len(queries)) if own is None else own.numpy()
        probability = chance.numpy()
        fits = way.guarantee.p_value(found.numpy(), group)
        if familiar is not None:
            probability[familiar < CLEARLY] = fits[familiar < CLEARLY] = np.nan
        return Judgement(share, familiar, found.numpy(), probability, absent, fits)

    @torch.no_grad()
    def needed_score(
        self,
        similarity: Similarity,
        queries: Gaussian,
        gallery: Gallery,
        coverage: float,
        missed: float = 0.0,
    ) -> np.ndarray:
        """(n), the least score of a result in the set that holds the match with a probability of
        at least ``coverage``, see ``Guarantee``."""
        way = self.ways.get(gallery)
        if way is None:
            raise ValueError(
                f"no guarantee: nothing is known about scores among {gallery}; "
                "run 'gaussmatch calibrate RUN' and make the index again"
            )
        own = np.zeros(len(queries)) if queries.is_point else queries.uncertainty().double().numpy()
        needed = way.guarantee.threshold(own, coverage, missed)
        reference = query_scores(similarity, queries, self.reference[gallery], gallery)
        zero = evidence(reference[:, :1] * 0, reference, way.temperature, way.weight)[:, 0]
        return np.asarray((needed - zero.numpy()) * way.temperature)

    def save(self, path: Path) -> None:
        """One JSON file; the reference is kept in float16."""
        write_json(
            path,
            {
                "quantiles": self.quantiles,
                "reference": {
                    side: [_packed(t.half()) for t in (g.mean, g.log_var) if t is not None]
                    for side, g in self.reference.items()
                },
                "familiarity": {
                    side: {name: _packed(t) for name, t in f.tensors().items()}
                    for side, f in self.familiarity.items()
                },
                "ways": {gallery: asdict(way) for gallery, way in self.ways.items()},
                "gauges": self.gauges,
                "about": self.about,
                "words": sorted(self.words),
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
                    side: _gaussian([_unpacked(t).float() for t in tensors], side)
                    for side, tensors in content.get("reference", {}).items()
                },
                {
                    side: Familiarity.from_tensors({n: _unpacked(t) for n, t in tensors.items()})
                    for side, tensors in content.get("familiarity", {}).items()
                },
                {gallery: _way_from(way) for gallery, way in content.get("ways", {}).items()},
                content.get("gauges", {}),
                content["about"],
                frozenset(content.get("words", ())),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: not a calibration ({error})") from error


# ---- learning it ----


def calibrate(model: Model, data: DataSet) -> Calibration:
    """Percentiles and reference from the training split, everything else from validation."""
    _check_enough(len(data.dev.images), len(data.dev.captions), data.dev.name)
    images, _ = model.encode_pairs(data.dev)
    captions = _captions(data.dev, range(len(data.dev.captions)), model)
    truth = data.dev.relevance
    about = {
        "percentiles_from": data.train.name,
        "learned_from": data.dev.name,
        "matches_are": ANNOTATED_PAIRS if truth is None else TRUE_PAIRS,
    }
    learned = calibrate_gaussians(
        model.matcher.similarity,
        images,
        captions,
        data.dev.pairs() if truth is None else truth,
        own=data.dev.pairs(),
        seen=_sample(data.train, model),
        about=about,
    )
    return replace(learned, words=_cut_words(data.train, model))


def _cut_words(pairs: Pairs, model: Model) -> frozenset[str]:
    """The words of captions that the text encoder reads in parts; none of ready embeddings."""
    if pairs.texts is not None:
        return frozenset()
    words = sorted({word for caption in pairs.captions for word in caption.lower().split()})
    return frozenset(word for reading in model.read(words) for word in reading.cut)


@torch.no_grad()
def calibrate_gaussians(
    similarity: Similarity,
    images: Gaussian,
    captions: Gaussian,
    truth: Relevance,
    *,
    own: Relevance | None = None,
    seen: Mapping[str, Gaussian] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Calibration:
    """From Gaussians alone: for an encoder of your own (examples/own_search.py).

    Args:
        images, captions: held out from training.
        truth: which images match each caption.
        own: the image that each caption was written for, which a guarantee is about; ``truth`` if
            not given.
        seen: ``"images"`` and ``"captions"`` as the model has seen them, and perhaps
            ``"queries"``, short ones as people type them, which join the captions in their
            percentiles. Without it percentiles and reference are taken from what is held out, and
            familiarity is not known.
        about: what it was learned from, for people.
    """
    _check_enough(len(images), len(captions), "validation")
    own = own or truth
    for name, relation in (("truth", truth), ("own", own)):
        if (relation.queries, relation.gallery) != (len(captions), len(images)):
            raise ValueError(
                f"{name} relates {relation.queries} captions to {relation.gallery} images, but "
                f"there are {len(captions)} and {len(images)}"
            )
    held_out = {"images": images, "captions": captions}
    known = held_out if seen is None else seen
    typed = {"captions": [known["queries"]]} if "queries" in known else {}
    quantiles = {
        k: _quantiles(Gaussian.cat([known[k], *typed.get(k, ())]))
        for k in held_out
        if not known[k].is_point
    }
    reference = {
        k: known[k][evenly(len(known[k]), REFERENCE)].to(torch.float16).to(torch.float32)
        for k in held_out
    }  # as it is stored
    familiarity = {}
    if seen is not None:
        familiarity = {k: Familiarity.fit(seen[k], g) for k, g in held_out.items()}
    notes: dict[str, Any] = {**(about or {}), "items": {k: len(g) for k, g in known.items()}}
    ways: dict[str, Way] = {}
    sides: tuple[tuple[Gallery, Gaussian, Relevance, Relevance], ...] = (
        ("images", captions, truth, own),
        ("captions", images, truth.transpose(), own.transpose()),
    )
    for gallery, queries, relevant, wanted in sides:
        near = familiarity.get("captions" if gallery == "images" else "images")
        ways[gallery], notes[gallery] = _learned(
            similarity, gallery, queries, held_out[gallery], relevant, wanted, reference, near
        )
    return Calibration(quantiles, reference, familiarity, ways, {}, notes)


def _learned(
    s: Similarity,
    gallery: Gallery,
    queries: Gaussian,
    items: Gaussian,
    truth: Relevance,
    own: Relevance,
    reference: Mapping[str, Gaussian],
    near: Familiarity | None,
) -> tuple[Way, dict[str, float]]:
    """Everything about one gallery, and how good the match probability is."""
    some = evenly(len(queries), max(FOLDS, CELLS // len(items)))
    queries, truth, own = queries[some], _rows(truth, some), _rows(own, some)
    scores = query_scores(s, queries, items, gallery).double()
    level = query_scores(s, queries, reference[gallery], gallery).double()
    unsure = None if queries.is_point else queries.uncertainty().double()
    far = torch.zeros(len(queries)).double() if near is None else near.distance(queries)
    answerable = own.counts > 0
    match = scores.new_full((len(scores),), -torch.inf).scatter_reduce(
        0, own.query_of, scores[own.query_of, own.items], "amax"
    )
    groups = torch.zeros_like(match) if unsure is None else unsure
    temperature, weight, guarantee = learn_guarantee(
        match[answerable], level[answerable], groups[answerable]
    )
    e = evidence(scores, level, temperature, weight)
    spread = log_perplexity(level, temperature)
    sides = [] if unsure is None else [unsure, items.uncertainty().double()]

    right = truth.dense()
    parts = [_Results.best(scores, e, right, share, far, spread, sides) for share in SHARES]
    probability = ResultProbability.fit(
        torch.cat([part.features.flatten(0, 1) for part in parts]),
        torch.cat([part.right.flatten() for part in parts]),
    )
    quality = _cross_validated(parts)
    nothing, growth = _best_without_match(e, right)
    if len(nothing) and len(parts[0].query):  # else there is nothing to separate
        present = parts[0].features[:, 0, 0]
        quality["absent_auroc"] = auroc(present, nothing)
        off_topic = _best_without_topic(e, items, own)
        if len(off_topic):
            quality["absent_topic_auroc"] = auroc(present, off_topic)

    null = tuple(nothing.sort().values.tolist())
    way = Way(temperature, weight, probability, null, len(items), growth, guarantee)
    return way, quality


def _best_without_match(e: Tensor, right: Tensor) -> tuple[Tensor, float]:
    """The best evidence of each query without its matches; and the slope of its median over ln of
    the size of the gallery, from one half of it to the whole."""
    without = e.masked_fill(right, -torch.inf)
    some = torch.randperm(e.shape[1], generator=torch.Generator().manual_seed(0))
    best, best_of_half = without.amax(1), without[:, some[: (e.shape[1] + 1) // 2]].amax(1)
    growth = float(best.median() - best_of_half.median()) / float(np.log(2))
    return best[best.isfinite()], growth if np.isfinite(growth) else 0.0


TOPIC = 0.05
"""Share of a gallery that is taken for the topic of a query: the items most like its match."""


def _best_without_topic(e: Tensor, items: Gaussian, own: Relevance) -> Tensor:
    """The best evidence of each query without the items most like its match: the topic is absent,
    not only the one match among others that fit as well."""
    unit = normalize(items.mean.double().flatten(1), dim=1)
    answerable = (own.counts > 0).nonzero()[:, 0]
    match = own.items[own.indptr[answerable]]
    topic = (unit[match] @ unit.T).topk(max(1, round(TOPIC * len(items)))).indices
    best = e[answerable].scatter(1, topic, -torch.inf).amax(1)
    return best[best.isfinite()]


@dataclass(frozen=True, eq=False)
class _Results:
    """The best results of each query that has a match in a random part of the gallery: their
    features (q, k, f), scores and whether they are matches (q, k), and which queries (q)."""

    features: Tensor
    scores: Tensor
    right: Tensor
    query: Tensor

    @staticmethod
    def best(
        scores: Tensor,
        e: Tensor,
        right: Tensor,
        share: float,
        far: Tensor,
        spread: Tensor,
        sides: Sequence[Tensor],
    ) -> _Results:
        size = max(min(TOP, e.shape[1]), round(share * e.shape[1]))
        chosen = torch.randperm(e.shape[1], generator=torch.Generator().manual_seed(0))[:size]
        query = right[:, chosen].any(1).nonzero()[:, 0]
        found = e[query][:, chosen].topk(min(TOP, size))
        unsure = [sides[0][query], sides[1][chosen][found.indices]] if sides else []

        def of(values: Tensor) -> Tensor:
            return values[query][:, chosen].gather(1, found.indices)

        features = _features(found.values, size, far[query], spread[query], *unsure)
        return _Results(features, of(scores), of(right).double(), query)


def _features(
    e: Tensor,
    size: int,
    far: Tensor,
    spread: Tensor,
    query: Tensor | None = None,
    item: Tensor | None = None,
) -> Tensor:
    """What the match probability goes by, (n, k, 7), or (n, k, 5) of a point model: the evidence of
    a result and of the others of the best ``TOP`` together, ln of the gallery's size, the query's
    distance from training, its perplexity over the reference, and both uncertainties."""
    e = e.double().clamp_min(-1e4)
    best = e[:, :TOP]
    total = best.logsumexp(1, keepdim=True)
    others = total.expand_as(e).clone()
    for at in range(best.shape[1]):
        others[:, at] = _without(best, at)
    rivals = torch.logaddexp(others, torch.zeros_like(others))
    columns = [e, rivals, torch.full_like(e, float(np.log(size)))]
    columns += [each[:, None].expand_as(e) for each in (far, spread)]
    if query is not None and item is not None:
        columns += [query[:, None].expand_as(e), item.double()]
    return torch.stack(columns, -1)


def _without(best: Tensor, at: int) -> Tensor:
    """ln Σ exp of all but one column; −∞ where there is no other."""
    rest = torch.cat([best[:, :at], best[:, at + 1 :]], 1)
    return rest.logsumexp(1) if rest.shape[1] else best.new_full((len(best),), -torch.inf)


def _never_rising(probability: ResultProbability, features: Tensor) -> Tensor:
    """(n, k), p(match) of results in their order: none is likelier than one above it."""
    chance = probability(features.flatten(0, 1)).reshape(features.shape[:2])
    return chance.cummin(1).values


def _cross_validated(parts: Sequence[_Results]) -> dict[str, float]:
    """ECE and Brier of the match probability over folds of queries, on the whole gallery; beside
    them those of isotonic regression on the bare score."""
    ours, isotonic, right = [], [], []
    for fold in range(FOLDS):
        fit = [part.query % FOLDS != fold for part in parts]
        features = [part.features[f].flatten(0, 1) for part, f in zip(parts, fit, strict=True)]
        matches = [part.right[f].flatten() for part, f in zip(parts, fit, strict=True)]
        whole, known = parts[0], fit[0]
        if not bool(known.any()) or bool(known.all()):
            continue
        fitted = ResultProbability.fit(torch.cat(features), torch.cat(matches))
        plain = IsotonicProbability.fit(whole.scores[known].flatten(), matches[0])
        ours.append(_never_rising(fitted, whole.features[~known]).flatten())
        isotonic.append(plain(whole.scores[~known].flatten()))
        right.append(whole.right[~known].flatten())
    if not right:
        return {}
    p, q, r = (torch.cat(values) for values in (ours, isotonic, right))
    return {
        "ece": calibration_error(p, r),
        "brier": brier(p, r),
        "isotonic_ece": calibration_error(q, r),
        "isotonic_brier": brier(q, r),
    }


# ---- samples and files ----


def _sample(pairs: Pairs, model: Model) -> dict[str, Gaussian]:
    """Training items of each side, evenly spread, and shortened captions as queries."""
    images = evenly(len(pairs.images), MOST)
    parts = [
        model.encode_images(read_images(pairs, images[k : k + 256].tolist()))
        for k in range(0, len(images), 256)
    ]
    found = {"images": Gaussian.cat(parts)}
    if pairs.texts is not None:
        found["captions"] = _captions(pairs, evenly(len(pairs.captions), MOST).tolist(), model)
        return found
    half = evenly(len(pairs.captions), MOST // 2).tolist()
    found["captions"] = _captions(pairs, half, model)
    queries = [shortened(pairs.captions[at], np.random.default_rng(at)) for at in half]
    found["queries"] = model.encode_texts([canonical(q) for q in queries], allow_unknown=True)
    return found


def _captions(pairs: Pairs, numbers: Sequence[int], model: Model) -> Gaussian:
    """Some captions as a search reads them: in canonical form, or their ready embeddings."""
    texts = read_texts(pairs, numbers)
    if not isinstance(texts, np.ndarray):
        texts = [canonical(text) for text in texts]
    return model.encode_texts(texts, allow_unknown=True)


def _check_enough(images: int, captions: int, name: str) -> None:
    if min(images, captions) < FEWEST:
        raise ValueError(
            f"{name} has {images} images and {captions} captions; a calibration needs at least "
            f"{FEWEST} of each"
        )


def _rows(relevance: Relevance, chosen: Tensor) -> Relevance:
    return relevance.subset(chosen, torch.arange(relevance.gallery))


def _quantiles(g: Gaussian) -> tuple[float, ...]:
    values = g.uncertainty().double().numpy()
    return tuple(float(v) for v in np.quantile(values, np.linspace(0, 1, QUANTILES)))


def _way_from(content: Mapping[str, Any]) -> Way:
    fit, sets = content["probability"], content["guarantee"]
    weights, centre, scale = (tuple(fit[name]) for name in ("weights", "centre", "scale"))
    held_out = tuple(tuple(part) for part in sets["held_out"])
    return Way(
        content["temperature"],
        content["weight"],
        ResultProbability(weights, fit["bias"], centre, scale),
        tuple(content["nothing"]),
        content["size"],
        content["growth"],
        Guarantee(tuple(sets["bounds"]), held_out),
    )


def _gaussian(tensors: Sequence[Tensor], side: Side) -> Gaussian:
    return Gaussian(tensors[0], tensors[1] if len(tensors) > 1 else None, side)


def _packed(values: Tensor) -> dict[str, Any]:
    array = values.numpy()
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": data}


def _unpacked(content: Mapping[str, Any]) -> Tensor:
    array = np.frombuffer(base64.b64decode(content["base64"]), content["dtype"])
    return torch.from_numpy(array.reshape(content["shape"]).copy())
