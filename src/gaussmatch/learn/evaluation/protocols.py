"""Every retrieval measure of a split, query by query, on the whole of it and on 1K folds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.core.metrics.plausible import ZETAS
from gaussmatch.core.metrics.ranking import KS, ScoreRows
from gaussmatch.core.similarities import Similarity
from gaussmatch.data.pairs import Pairs
from gaussmatch.learn.evaluation.retrieval import ranks_of
from gaussmatch.learn.evaluation.scores import blocks_of

FOLDS = 5
BLOCK = 256  # queries whose scores are held at a time
FOLDED_FROM = 4000
"""Images from which the 1K protocol (five contiguous folds) is measured too. COCO's test has 5,000,
so a fold has 1,000; of a part of COCO it has fewer, and a note says how many."""

Each = dict[str, Tensor]
"""Measure → its value in percent for each query; NaN where it is not defined."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What is right for what: ``own`` and ``known`` are captions × images.

    Args:
        own: each caption with the image it was written for.
        known: all that is known to be true, where more is known.
        classes: (images × classes), the object classes of each image, where known.
        image_of: (captions).
    """

    own: Relevance
    known: Relevance | None
    classes: Tensor | None
    image_of: Tensor

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
