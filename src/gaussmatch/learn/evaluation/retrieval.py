"""Every retrieval measure of a split, from Gaussians to numbers: ranks in blocks, query by query,
on the whole of it, on 1K folds and on ECCV Caption; and what its uncertainty is worth."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussmatch.checks import extra
from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance, map_at_r, r_precision, recall_at_k, summary
from gaussmatch.core.metrics.ranking import KS, NEVER, ZETAS, ScoreRows
from gaussmatch.core.similarities import Similarity
from gaussmatch.data.pairs import Pairs
from gaussmatch.learn.evaluation.scores import BothWays, blocks_of

ROWS = 1024
"""Images at a time: a block of 1,024 × 25,000 float32 scores takes 100 MB."""


def ranks(
    s: Similarity,
    images: Gaussian,
    captions: Gaussian,
    pairs: Relevance,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Rank (from 0) of the best right item: of each image among captions, and the other way.

    One matrix product serves both ways, two where the similarity depends on the direction. A
    query's rank is the number of wrong items that come as close as its best right one; what differs
    by no more than the rounding of the product is a tie, and a tie never counts in the model's
    favor. A query without right items gets ``NEVER``.

    Args:
        pairs: captions × images.
        dtype: of the product, see ``Blocks``.
    """
    return ranks_of(blocks_of(s, images, captions, dtype), pairs)


def ranks_of(blocks: BothWays, pairs: Relevance) -> tuple[Tensor, Tensor]:
    """``ranks`` of scores that are already lifted."""
    of_images = pairs.transpose()  # image by image, as the blocks come
    sides, starts = blocks.image_queries, of_images.indptr
    image, caption = (ids.to(sides.offset.device) for ids in (of_images.query_of, of_images.items))
    least_i, least_c = (
        close.new_full((size,), torch.inf).scatter_reduce(
            0, ids, close - rounding, "amax", include_self=False
        )
        for (close, rounding), size, ids in zip(
            blocks.pairs(image, caption),
            (sides.images, sides.captions),
            (image, caption),
            strict=True,
        )
    )
    i2t, t2i = image.new_zeros(sides.images), image.new_zeros(sides.captions)
    for rows, columns, by_image, by_caption in blocks.tiles():
        i2t[rows] += _count(by_image >= least_i[rows, None], 1)
        t2i[columns] += _count(by_caption >= least_c[columns], 0)
        here = slice(int(starts[rows.start]), int(starts[rows.stop]))
        inside = (caption[here] >= columns.start) & (caption[here] < columns.stop)
        i, c = image[here][inside], caption[here][inside]
        at = i - rows.start, c - columns.start  # right items do not count
        i2t.index_add_(0, i, -(by_image[at] >= least_i[i]).long())
        t2i.index_add_(0, c, -(by_caption[at] >= least_c[c]).long())
    i2t, t2i = i2t.cpu(), t2i.cpu()
    i2t[of_images.counts == 0] = NEVER
    t2i[pairs.counts == 0] = NEVER
    return i2t, t2i


def _count(true: Tensor, dim: int) -> Tensor:
    """How many are true: ten times as fast as ``true.sum(dim)``, which counts in int64."""
    return true.view(torch.uint8).sum(dim, dtype=torch.int32)


def top(
    s: Similarity, images: Gaussian, captions: Gaussian, k: int, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The ids of the k best captions of each image, and of the k best images of each caption,
    best first: what the measures of ranked ids take. A k beyond the gallery gives all of it."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    blocks = blocks_of(s, images, captions, dtype)
    count_i, count_c = len(images), len(captions)
    return (
        _top(blocks.image_queries.rows, count_i, min(k, count_c)),
        _top(blocks.caption_queries.columns, count_c, min(k, count_i)),
    )


def _top(rows: ScoreRows, queries: int, k: int) -> Tensor:
    parts = [
        rows(start, min(start + ROWS, queries)).topk(k).indices for start in range(0, queries, ROWS)
    ]
    return torch.cat(parts)


def recalls(s: Similarity, images: Gaussian, captions: Gaussian, pairs: Pairs) -> dict[str, float]:
    """R@1/5/10 and median rank both ways, and rsum, with each caption's own image as the match."""
    return summary(*ranks(s, images, captions, pairs.pairs()))


FOLDS = 5
BLOCK = 256  # queries whose scores are held at a time
FOLDED_FROM = 4000
"""Images from which the 1K protocol (five contiguous folds) is measured too. COCO's test has 5,000,
so a fold has 1,000; of a part of COCO it has fewer, and a note says how many."""

Each = dict[str, Tensor]
"""Measure → its value in percent for each query; NaN if it is not defined."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What is right for what: ``own`` and ``known`` are captions × images."""

    own: Relevance  #: each caption with the image it was written for
    known: Relevance | None  #: all that is known to be true, if more is known
    classes: Tensor | None  #: (images × classes), the object classes of each image, if known
    image_of: Tensor  #: (captions)

    @staticmethod
    def of(pairs: Pairs) -> Truth:
        return Truth(pairs.pairs(), pairs.relevance, pairs.classes, pairs.image_of)

    def part(self, images: Tensor, captions: Tensor) -> Truth:
        """The truth within a part; what lies outside neither counts as right nor can be found."""
        place = torch.full((self.own.gallery,), -1)
        place[images] = torch.arange(len(images))
        return Truth(
            self.own.subset(captions, images),
            None if self.known is None else self.known.subset(captions, images),
            None if self.classes is None else self.classes[images],
            place[self.image_of[captions]],
        )


def measures_of(
    s: Similarity, images: Gaussian, captions: Gaussian, truth: Truth
) -> tuple[dict[str, float], Each]:
    """All measures of a split that its truth allows, and their values for each query.

    R@1/5/10, median rank and rsum on the own pairs; with known truth R@K on it (``…_true_r1``;
    CxC recall where CxC is the truth), R-Precision (RPC² there) and mAP@R; with classes PMRP for
    ζ = 0, 1, 2 and their mean.
    """
    blocks = blocks_of(s, images, captions)
    i2t, t2i = ranks_of(blocks, truth.own)
    measures = metrics.summary(i2t, t2i)
    each = _recalls(i2t, t2i, "")
    if truth.known is not None:
        each |= _recalls(*ranks_of(blocks, truth.known), "true_")
    if truth.known is not None or truth.classes is not None:
        by_image = None if truth.known is None else truth.known.transpose()
        classes = None if truth.classes is None else truth.classes.numpy()
        spread = None if classes is None else classes[truth.image_of.numpy()]
        each |= _precisions(
            "i2t", blocks.image_queries.rows, len(images), by_image, classes, spread
        )
        each |= _precisions(
            "t2i", blocks.caption_queries.columns, len(captions), truth.known, spread, classes
        )
    return means(each) | measures, each


def folded(s: Similarity, images: Gaussian, captions: Gaussian, truth: Truth) -> dict[str, float]:
    """The same measures as means over contiguous folds of the images, named ``1k_…``."""
    parts = []
    for fold in metrics.contiguous_folds(truth.image_of.numpy(), len(images), FOLDS):
        i, c = torch.from_numpy(fold.images), torch.from_numpy(fold.captions)
        parts.append(measures_of(s, images[i], captions[c], truth.part(i, c))[0])
    shared = [key for key in parts[0] if all(key in part for part in parts)]
    return {f"1k_{key}": float(np.mean([part[key] for part in parts])) for key in shared}


def means(each: Each) -> dict[str, float]:
    """Mean over the queries that have a value; a measure that none has is left out."""
    return {
        name: float(values.nanmean())
        for name, values in each.items()
        if not bool(values.isnan().all())
    }


def _recalls(i2t: Tensor, t2i: Tensor, truth: str) -> Each:
    return {
        f"{way}_{truth}r{k}": 100 * (ranks < k).double()
        for way, ranks in (("i2t", i2t), ("t2i", t2i))
        for k in KS
    }


def _precisions(
    way: str,
    rows: ScoreRows,
    queries: int,
    known: Relevance | None,
    query_classes: np.ndarray | None,
    gallery_classes: np.ndarray | None,
) -> Each:
    """R-Precision, mAP@R and PMRP of all queries of one direction, in one pass over the scores."""
    parts: dict[str, list[Tensor]] = {}

    def add(name: str, values: Tensor | np.ndarray) -> None:
        parts.setdefault(f"{way}_{name}", []).append(100 * torch.as_tensor(values).double())

    for start in range(0, queries, BLOCK):
        stop = min(start + BLOCK, queries)
        scores = rows(start, stop)
        if query_classes is not None and gallery_classes is not None:
            order = scores.argsort(1, descending=True)
            values = metrics.pmrp_each(order, query_classes[start:stop], gallery_classes, ZETAS)
            for z, zeta in enumerate(ZETAS):
                add(f"pmrp_{zeta}", values[:, z])
            add("pmrp", values.mean(1))
        if known is not None:
            right = known.rows(start, stop)
            add("r_precision", metrics.precision_at_r(scores, right.dense()))
            deepest = max(1, int(right.counts.max()))
            add("map_at_r", metrics.map_at_r_each(scores.topk(deepest).indices, right))
    return {name: torch.cat(values) for name, values in parts.items()}


def eccv(s: Similarity, images: Gaussian, captions: Gaussian, pairs: Pairs) -> dict[str, float]:
    """``eccv_measures`` of the whole test split of COCO; nothing of other data, of a part of it, or
    if the package is not installed."""
    if pairs.name != "coco/test" or pairs.ids is None or find_spec("eccv_caption") is None:
        return {}
    image_ids, caption_ids = (np.array(ids, dtype=np.int64) for ids in pairs.ids)
    queries, truth = {"i2t": image_ids, "t2i": caption_ids}, eccv_positives()
    if any(set(truth[way]) - set(ids.tolist()) for way, ids in queries.items()):
        return {}
    deepest = max(len(positives) for way in truth.values() for positives in way.values())
    i2t, t2i = top(s, images, captions, deepest)
    return eccv_measures({"i2t": caption_ids[i2t], "t2i": image_ids[t2i]}, queries)


def eccv_positives() -> dict[str, dict[int, list[int]]]:
    """``i2t`` and ``t2i``: COCO id of a query → COCO ids of its positives, from the package
    ``eccv_caption``. Only some images and captions are queries there; all are in the gallery."""
    with extra("eccv", "ECCV Caption"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where its faster JSON reader is missing
        from eccv_caption import Metrics
    truth: dict[str, dict[int, list[int]]] = Metrics().eccv_gts
    return truth


def eccv_measures(
    rankings: Mapping[str, np.ndarray], queries: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """R@1, R-Precision and mAP@R in percent on ECCV Caption, for each direction given.

    Args:
        rankings: ``i2t`` or ``t2i`` → (queries × k) COCO ids, best first.
        queries: the same keys → (queries), COCO id of each row.
    """
    truth, measures = eccv_positives(), {}
    for way, ranked in rankings.items():
        row = {int(q): n for n, q in enumerate(queries[way])}
        missing = [q for q in truth[way] if q not in row]
        if missing:
            raise ValueError(f"ECCV Caption needs {way} query {missing[0]}, which is not ranked")
        rows = ranked[[row[q] for q in truth[way]]]
        positives = list(truth[way].values())
        measures[f"{way}_eccv_r1"] = recall_at_k(rows, positives, [1])[0]
        measures[f"{way}_eccv_r_precision"] = r_precision(rows, positives)
        measures[f"{way}_eccv_map_at_r"] = map_at_r(rows, positives)
    return measures


# ---- is the uncertainty worth anything? ----

POINTS = 50  # of a stored curve


def ambiguity(images: Gaussian, captions: Gaussian, relevance: Relevance) -> dict[str, float]:
    """Spearman's ρ of uncertainty with the log of the number of true matches.

    For captions: images it is true of. For images: captions that are true of it. Left out where
    it is not defined (fewer than two items, or all alike).
    """
    found = {
        "caption_rho": _rho(captions, relevance.counts),
        "image_rho": _rho(images, relevance.transpose().counts),
    }
    return {name: rho for name, rho in found.items() if not math.isnan(rho)}


def selective(way: str, correct: Tensor, unsure: Tensor, by: str = "") -> dict[str, Any]:
    """Answer only the surest queries: areas, the gain over chance, R@1 of the surest half and
    fifth, R@1 by uncertainty decile, and the curve.

    Args:
        way: ``i2t`` or ``t2i``; ``by`` names what stands for uncertainty if not the variance.
        correct: 1 where the first item is right.
    """
    curve = metrics.risk_coverage(correct, unsure)
    name = f"{way}_{by}"
    measures: dict[str, Any] = {
        f"{name}aurc": curve.aurc,
        f"{name}aurc_oracle": curve.oracle,
        f"{name}aurc_random": curve.random,
        f"{name}r1_surest_half": curve.accuracy_at(0.5),
        f"{name}r1_surest_fifth": curve.accuracy_at(0.2),
        f"{name}deciles": [vars(b) for b in metrics.accuracy_by_bin(correct, unsure)],
        f"{name}curve": thinned(curve.coverage, curve.risk),
    }
    if not math.isnan(curve.gain):
        measures[f"{name}aurc_gain"] = curve.gain
    return measures


def _rho(items: Gaussian, counts: Tensor) -> float:
    known = counts > 0
    if int(known.sum()) < 2:
        return math.nan
    return metrics.spearman(items.uncertainty()[known].double(), torch.log(counts[known].double()))


def evenly(total: int, most: int) -> Tensor:
    """Positions of at most ``most`` items, evenly spread.

    >>> evenly(7, 3), evenly(2, 3)
    (tensor([0, 3, 6]), tensor([0, 1]))
    """
    return torch.linspace(0, total - 1, min(total, most)).round().long().unique()


def thinned(x: Tensor, y: Tensor) -> list[list[float]]:
    """Some points of a curve, evenly spread."""
    chosen = evenly(len(x), POINTS)
    return [
        [round(a, 6), round(b, 6)]
        for a, b in zip(x[chosen].tolist(), y[chosen].tolist(), strict=True)
    ]
