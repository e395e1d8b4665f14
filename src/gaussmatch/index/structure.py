"""The contract of every search structure: which items of a segment may be the best ones?

A structure answers with candidates and their approximate scores; whoever asked scores them again
with the similarity itself (``best``). So no structure has a formula of its own, and a coarse one
costs recall, never a wrong score.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.layout import Gallery
from gaussmatch.index.lift import Asked
from gaussmatch.index.settings import Settings
from gaussmatch.similarities import Similarity


@dataclass(frozen=True)
class Content:
    """What a structure is built from, and later opened with.

    Args:
        folder: of the segment; the structure's files are in it.
        items: how many there are.
        read: the Gaussians of some rows, from disk.
    """

    folder: Path
    similarity: Similarity
    gallery: Gallery
    settings: Settings
    items: int
    read: Callable[[slice | np.ndarray], Gaussian]

    def some(self, most: int) -> Gaussian:
        """At most so many, evenly spread."""
        return self.read(np.linspace(0, self.items - 1, min(most, self.items)).astype(np.int64))


@dataclass(frozen=True)
class Candidates:
    """For each query the rows that may be best; in no order.

    Args:
        rows: (n, c); −1 where there are no more.
        scores: (n, c), approximate; −inf where there are no more.
        bound: (n), what the approximate score of no other row exceeds; −inf if there is none.
    """

    rows: np.ndarray
    scores: np.ndarray
    bound: np.ndarray


class Structure(ABC):
    """Built once from the Gaussians of a segment, then opened any number of times."""

    kind: ClassVar[str]
    exact: ClassVar[bool]
    """Whether ``bound`` holds up to rounding, so that the best rows are surely found."""

    @classmethod
    @abstractmethod
    def build(cls, content: Content) -> None:
        """Write the files that ``__init__`` opens."""

    @abstractmethod
    def __init__(self, content: Content) -> None: ...

    @abstractmethod
    def ask(self, queries: Gaussian) -> Asked:
        """Queries in the form that ``candidates`` takes."""

    @abstractmethod
    def candidates(self, asked: Asked, count: int, allowed: np.ndarray | None = None) -> Candidates:
        """At least ``count`` rows for each query, where there are so many.

        Args:
            allowed: (items), true for the rows that may be found; ``None`` allows all.
        """


def merge(found: list[tuple[np.ndarray, np.ndarray]], whole: bool) -> Candidates:
    """Candidates of several searches for the same queries: a row counts once, with its best score.

    Args:
        found: (rows, scores) of each search, best first, −1 and −inf where there are no more.
        whole: whether each search saw every allowed row.
    """
    if len(found) == 1:
        rows, scores = found[0]
        worst = scores[:, -1]
    else:
        worst = np.stack([scores[:, -1] for _, scores in found]).max(0)
        rows = np.concatenate([rows for rows, _ in found], 1)
        scores = np.concatenate([scores for _, scores in found], 1)
        order = np.lexsort((-scores, rows), axis=1)
        rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
        again = np.zeros_like(rows, dtype=bool)
        again[:, 1:] = rows[:, 1:] == rows[:, :-1]
        rows, scores = np.where(again, -1, rows), np.where(again, -np.inf, scores)
    bound = np.full_like(worst, -np.inf) if whole else worst
    lost = rows < 0
    return Candidates(rows, np.where(lost, -np.inf, scores) if lost.any() else scores, bound)
