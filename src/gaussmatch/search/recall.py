"""How much of the best a graph finds, measured on a sample of its items when it is built."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian
from gaussmatch.search.lift import LiftedQueries
from gaussmatch.search.manifest import IndexSettings
from gaussmatch.search.topk import Candidates, shortlist

REPORT = "graph.json"
QUERIES, BEST = 64, 10
"""Items of a graph that its recall is measured with, and how many of their best must be found."""
WIDEST = 16
"""How many times ``search`` a walk is widened to before a graph is given up."""


@dataclass(frozen=True)
class Recall:
    """What was measured.

    Args:
        recall: recall@10, items of equal scores being equally good.
        search: candidates of a walk that reaches it.
        used: whether it is enough; otherwise the items are searched exactly.
    """

    recall: float
    search: int
    used: bool


def measure(
    settings: IndexSettings,
    queries: LiftedQueries,
    best: Candidates,
    walk: Callable[[int, int], Candidates],
    items: Callable[[np.ndarray], ArrayGaussian],
    name: str,
) -> Recall:
    """Find the narrowest walk that reaches the recall that the settings ask for.

    Args:
        best: by looking at every item.
        walk: candidates of a walk of this width, this many.
        items: of some rows.
        name: of the graph, for the warning where no walk reaches it.
    """

    def scores(found: Candidates) -> np.ndarray:
        exact = queries.scores(items(np.maximum(found.rows, 0).ravel()))
        return np.where(found.rows < 0, -np.inf, exact.reshape(found.rows.shape))

    wanted = best.rows.shape[1]
    least = scores(best).min(1, keepdims=True)
    least -= 1e-9 * np.abs(least)
    width, recall = settings.search, 0.0
    while True:
        found = scores(walk(width, shortlist(BEST, settings.rescore)))
        recall = float(np.minimum((found >= least).sum(1), wanted).mean() / wanted)
        if recall >= settings.recall or width >= WIDEST * settings.search:
            break
        width *= 2
    if recall < settings.recall:
        warnings.warn(
            f"{name} finds {recall:.0%} of the best {wanted}, less than the "
            f"{settings.recall:.0%} wanted: these items are searched exactly",
            stacklevel=2,
        )
    return Recall(recall, width, recall >= settings.recall)
