"""The contract of every search structure: which items of a segment may be the best ones?

A structure proposes candidates with approximate scores, see ``topk``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.search.lift import LiftedQueries
from gaussmatch.search.manifest import Gallery, IndexSettings
from gaussmatch.search.topk import Candidates


@dataclass(frozen=True)
class SegmentContent:
    """What a structure is built from, and later opened with.

    Args:
        folder: of the segment; the structure's files are in it.
        items: how many there are.
        read: the Gaussians of some rows, from disk.
    """

    folder: Path
    similarity: Similarity
    gallery: Gallery
    settings: IndexSettings
    items: int
    read: Callable[[slice | np.ndarray], Gaussian]

    def some(self, most: int) -> Gaussian:
        """At most ``most`` items, evenly spread."""
        return self.read(np.linspace(0, self.items - 1, min(most, self.items)).astype(np.int64))


class Allowed:
    """The rows that a search may find, in the forms that structures need.

    >>> allowed = Allowed(np.array([False, True, True, False]))
    >>> allowed.count, allowed.rows
    (2, array([1, 2]))
    """

    def __init__(self, mask: np.ndarray) -> None:
        self.mask, self.count = mask, int(np.count_nonzero(mask))

    @cached_property
    def rows(self) -> np.ndarray:
        return np.flatnonzero(self.mask)

    @cached_property
    def bits(self) -> np.ndarray:
        """One bit a row, as faiss takes them."""
        return np.packbits(self.mask, bitorder="little")


class Structure(ABC):
    """Built once from the Gaussians of a segment, then opened any number of times."""

    name: ClassVar[str]
    exact: bool
    """Whether ``bound`` holds up to rounding, so that the best rows are surely found."""

    @classmethod
    @abstractmethod
    def build(cls, content: SegmentContent) -> None:
        """Write the files that ``__init__`` opens."""

    @classmethod
    def current(cls, files: Collection[str]) -> bool:
        """Whether these files of a segment are as ``build`` writes them now."""
        return True

    @abstractmethod
    def __init__(self, content: SegmentContent) -> None: ...

    @abstractmethod
    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        """Queries in the form that ``candidates`` takes."""

    @abstractmethod
    def candidates(
        self, queries: LiftedQueries, count: int, allowed: Allowed | None = None
    ) -> Candidates:
        """At least ``count`` rows for each query, or all if there are fewer.

        Args:
            allowed: the rows that may be found; ``None`` allows all.
        """
