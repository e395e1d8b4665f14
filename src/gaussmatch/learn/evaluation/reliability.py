"""Is the uncertainty of a run worth anything? Measured on its own queries."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.learn.evaluation.scores import BothWays

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


def best_scores(blocks: BothWays) -> tuple[Tensor, Tensor]:
    """The closeness of each image to its nearest caption, and of each caption to its image."""
    i, c = blocks.image_queries, blocks.caption_queries
    i2t = i.offset.new_full((i.images,), -torch.inf)
    t2i = c.offset.new_full((c.captions,), -torch.inf)
    for rows, columns, by_image, by_caption in blocks.tiles():
        i2t[rows] = i2t[rows].maximum(by_image.amax(1))
        t2i[columns] = t2i[columns].maximum(by_caption.amax(0))
    return (i2t + i.offset).cpu(), (t2i + c.offset).cpu()


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
