"""A calibration is learned from the training and validation data of a run, and kept in its folder
with the verdict of its probe."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.core.similarities import Similarity
from gaussmatch.data.pairs import DataSet, Pairs, read_images, read_texts
from gaussmatch.data.queries import shortened
from gaussmatch.files import write_json
from gaussmatch.learn.evaluation.reliability import REFERENCE, evenly
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.models.features import load_data
from gaussmatch.models.model import Model
from gaussmatch.models.run import CALIBRATION, PROBE, keeping, load, read_listed, read_recipe
from gaussmatch.search.trust.calibration import (
    ANNOTATED_PAIRS,
    TOP,
    TRUE_PAIRS,
    Calibration,
    Gallery,
    Way,
    match_features,
    never_rising,
)
from gaussmatch.search.trust.familiarity import Familiarity
from gaussmatch.search.trust.probe import gauges_of, probe
from gaussmatch.search.trust.wording import canonical

QUANTILES = 1001
MOST = 20_000
"""Training items of each side that percentiles are taken from; of the texts, half are whole
captions and half their shortened forms, as people type queries."""
SHARES = (1.0, 0.5, 0.25, 0.125)
"""Parts of the validation gallery that the match probability is fitted on, to know its size."""
FOLDS = 5
FEWEST = 10
"""Validation images, and captions, without which nothing is learned."""
CELLS = 25_000_000
"""Scores of validation queries with their gallery that are held at a time, at most."""
TOPIC = 0.05
"""Share of a gallery that is taken for the topic of a query: the items most like its match."""


def calibrate(model: Model, data: DataSet) -> Calibration:
    """Percentiles and reference from the training split, everything else from validation."""
    _check_enough(len(data.dev.images), len(data.dev.captions), data.dev.name)
    images, _ = model.encode_pairs(data.dev)
    captions = _captions(data.dev, range(len(data.dev.captions)), model)
    truth = data.dev.relevance
    about = {
        "percentiles_from": data.train.name,
        "learned_from": data.dev.name,
        "matches_are": TRUE_PAIRS if data.dev.exhaustive else ANNOTATED_PAIRS,
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


# ---- kept with a run ----


def calibrate_run(run: Path, overrides: Mapping[str, Any] = {}) -> Calibration:
    """Learn what the numbers of a run mean, judge its uncertainty on validation unless a probe has
    done so, and keep both in its folder.

    Args:
        overrides: fields of other data than the run's own, as on the command line. The model is
            judged on that then, whatever a probe has found elsewhere.
    """
    model = load(run)
    data = load_data(read_recipe(run, overrides).data)
    calibration = calibrate(model, data)
    before = None if overrides else read_listed(run, PROBE)
    found = before or probe(model, data, calibration, split="dev")
    try:
        with keeping(run, CALIBRATION) as temporary:
            calibration.save(temporary)
        keep_probe(run, found)
    except OSError as error:
        warnings.warn(f"the calibration is not kept in {run}: {error}", stacklevel=2)
    return replace(calibration, gauges=gauges_of(found))


def keep_probe(run: Path, found: Mapping[str, Any]) -> None:
    """Keep the findings of a probe in the folder of a run."""
    with keeping(run, PROBE) as temporary:
        write_json(temporary, found)


def kept_calibration(run: Path) -> Calibration:
    """The calibration of a run with the verdict of its probe; made now if there is none, or with a
    warning empty if the run's own data cannot be read any more or is too little."""
    if read_listed(run, CALIBRATION) is not None:
        calibration = Calibration.load(run / CALIBRATION)
        found = read_listed(run, PROBE) or {"verdict": {}}
        return replace(calibration, gauges=gauges_of(found))
    try:
        return calibrate_run(run)
    except (OSError, ValueError) as error:
        warnings.warn(
            f"no percentiles and match probabilities from the model's own data: {error}",
            stacklevel=2,
        )
        return Calibration()


# ---- one gallery ----


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
    temperature, weight, guarantee = metrics.learn_guarantee(
        match[answerable], level[answerable], groups[answerable]
    )
    e = metrics.evidence(scores, level, temperature, weight)
    spread = metrics.log_perplexity(level, temperature)
    sides = [] if unsure is None else [unsure, items.uncertainty().double()]

    right = truth.dense()
    parts = [_Results.best(scores, e, right, share, far, spread, sides) for share in SHARES]
    probability = metrics.ResultProbability.fit(
        torch.cat([part.features.flatten(0, 1) for part in parts]),
        torch.cat([part.right.flatten() for part in parts]),
    )
    quality = _cross_validated(parts)
    nothing, growth = _best_without_match(e, right)
    if len(nothing) and len(parts[0].query):  # else there is nothing to separate
        present = parts[0].features[:, 0, 0]
        quality["absent_auroc"] = metrics.auroc(present, nothing)
        off_topic = _best_without_topic(e, items, own)
        if len(off_topic):
            quality["absent_topic_auroc"] = metrics.auroc(present, off_topic)

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

        features = match_features(found.values, size, far[query], spread[query], *unsure)
        return _Results(features, of(scores), of(right).double(), query)


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
        fitted = metrics.ResultProbability.fit(torch.cat(features), torch.cat(matches))
        plain = metrics.IsotonicProbability.fit(whole.scores[known].flatten(), matches[0])
        ours.append(never_rising(fitted, whole.features[~known]).flatten())
        isotonic.append(plain(whole.scores[~known].flatten()))
        right.append(whole.right[~known].flatten())
    if not right:
        return {}
    p, q, r = (torch.cat(values) for values in (ours, isotonic, right))
    return {
        "ece": metrics.calibration_error(p, r),
        "brier": metrics.brier(p, r),
        "isotonic_ece": metrics.calibration_error(q, r),
        "isotonic_brier": metrics.brier(q, r),
    }


# ---- samples ----


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


def _cut_words(pairs: Pairs, model: Model) -> frozenset[str]:
    """The words of captions that the text encoder reads in parts; none of ready embeddings."""
    if pairs.texts is not None:
        return frozenset()
    words = sorted({word for caption in pairs.captions for word in caption.lower().split()})
    return frozenset(word for reading in model.read(words) for word in reading.cut)


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
