"""What must not be in the results: "dog −person", "no people", "not like that picture".

If the model can say how likely a picture fits, results are ordered by

    P(fits the query) · ∏ (1 − P(fits what is excluded)),

and otherwise, as for pictures among pictures, by z(query) − ``AGAINST`` · Σ z(excluded), where z is
the score in standard deviations of the gallery. Both were chosen on COCO's classes
(``benchmarks/negation.py``), beside leaving the negation out and reading it as words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.metrics.fitting import TOP
from gaussmatch.search.manifest import Gallery
from gaussmatch.search.topk import Searchable, TopK, scores_of, top_k
from gaussmatch.search.trust.calibration import Judgement
from gaussmatch.search.trust.familiarity import CLEARLY
from gaussmatch.search.trust.verdict import quoted
from gaussmatch.search.where import Where

if TYPE_CHECKING:
    from gaussmatch.search.index import Index

POOL = 2000
"""Best results of a query that are put in another order."""
AGAINST = 0.5
"""How much an excluded picture counts beside the one that is wanted."""
MOSTLY = "This is right most of the time, not always"
WEAKLY = "Pictures to avoid count only a little: some results may still be like them"
"""On COCO's test photos they lower the share of what is avoided from 39 % to 32 %."""


@dataclass(frozen=True, eq=False)
class Exclusion:
    """What must not be in the results.

    Args:
        queries: (m).
        said: (m), what they are called.
        side: what they are: captions or images.
        kinds, familiar: see ``Index.search``.
    """

    queries: Gaussian
    said: tuple[str, ...]
    side: Gallery = "captions"
    kinds: Sequence[str] | None = None
    familiar: np.ndarray | None = None


def reordered(
    index: Index,
    without: Sequence[Exclusion],
    parts: Sequence[Searchable],
    found: TopK,
    judged: Judgement,
    queries: ArrayGaussian | None,
    gallery: Gallery,
    where: Where,
    size: int,
) -> tuple[TopK, Judgement, list[str]]:
    """The results of a search, those with what is excluded last; and what to say about it.

    Args:
        queries: ``None`` where everything is a result, and only the exclusion orders it.
    """
    notes: list[str] = []
    keep, against = np.zeros(found.score.shape), np.zeros(found.score.shape)
    certain = judged.probability is not None and not np.isnan(judged.probability).any()
    certain |= queries is None
    for each in without:
        own = each.queries.numpy()
        near = top_k(parts, own, TOP, index.settings.rescore).complete()
        known = index.judged(
            parts, near, own, each.side, gallery, where, size, each.kinds, each.familiar
        )
        strange = np.zeros(len(own), bool) if known.familiar is None else known.familiar < CLEARLY
        scores = np.stack(
            [scores_of(parts, own[m : m + 1], found) for m in range(len(own))]
        )  # (m, n, k)
        names = [name for name, lost in zip(each.said, strange, strict=True) if lost]
        if names:
            notes.append(f"I don’t know {quoted(names)}: it is not excluded")
        if len(names) < len(own):
            flat = scores.reshape(len(own), -1)
            against += (
                _standing(index, parts, own, flat, gallery, where)[~strange]
                .sum(0)
                .reshape(found.score.shape)
            )
            if known.reader is None:
                certain = False
            else:
                away = torch.nn.functional.logsigmoid(-known.reader.logits(flat)).numpy()
                keep += away[~strange].sum(0).reshape(found.score.shape)
            there = [n for n, lost in zip(each.said, strange, strict=True) if not lost]
            if each.side == "captions":
                notes.append(f"Without {quoted(there)}. {MOSTLY}")
            else:
                notes.append(WEAKLY)
    if certain:
        before = np.ones(found.score.shape) if queries is None else judged.probability
        assert before is not None
        probability = before * np.exp(keep)
        value = probability
    else:
        probability = None
        value = -AGAINST * against
        if queries is not None:
            value = value + _standing(index, parts, queries, found.score, gallery, where)
    order = np.tile(np.arange(value.shape[1]), (len(value), 1))
    pool = slice(None) if queries is None else slice(POOL)
    order[:, pool] = np.argsort(-value[:, pool], axis=1, kind="stable")
    part, row, score = (
        np.take_along_axis(x, order, 1) for x in (found.part, found.row, found.score)
    )
    if probability is not None:
        probability = np.take_along_axis(probability, order, 1)
    return TopK(part, row, score), replace(judged, probability=probability, count=None), notes


def _standing(
    index: Index,
    parts: Sequence[Searchable],
    queries: ArrayGaussian,
    scores: np.ndarray,
    gallery: Gallery,
    where: Where,
) -> np.ndarray:
    """(n, k) scores in standard deviations of the gallery, from its mean."""
    with torch.no_grad():
        sample = index.sampled(parts, gallery, where)(queries.gaussian()).double().numpy()
    spread = np.maximum(sample.std(1, keepdims=True), 1e-9)
    standing: np.ndarray = (scores - sample.mean(1, keepdims=True)) / spread
    return standing
