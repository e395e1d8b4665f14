"""Search structures: which items of a segment may be the best ones? Here are their contract, and
those that look at every item.

A structure proposes candidates with approximate scores, see ``topk``.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.files import new_array
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search.lift import SAMPLE, Lift, LiftedQueries
from gaussmatch.search.manifest import Gallery, IndexSettings
from gaussmatch.search.topk import Candidates

WHOLE = 32 * 2**20
"""Bytes of a file up to which it is read, so that whoever cuts it while it is open does no harm: to
read beyond the end of a map ends the process."""


def is_large(path: Path) -> bool:
    """Whether a file is mapped, not read."""
    return path.stat().st_size > WHOLE


def mapped(path: Path, rows: int | None = None) -> np.ndarray:
    """An array that is read on access, unless it is small; a wrong number of rows is refused."""
    mode: Literal["r"] | None = "r" if is_large(path) else None
    try:
        array: np.ndarray = np.load(path, mmap_mode=mode, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy parses a damaged header as Python
        raise ValueError(
            f"{path}: not a whole array ({error}); restore the index or make it again"
        ) from error
    if rows is not None and len(array) != rows:
        raise ValueError(f"{path}: {len(array)} rows, but {rows} were written")
    return array.view(np.ndarray)  # indexing a memmap is slow


def as_tensor(array: np.ndarray) -> Tensor:
    """A float32 array as a tensor in the same memory. It may be mapped for reading, of which torch
    would warn: nothing may be written to it."""
    memory = (ctypes.c_float * array.size).from_address(array.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.float32).view(array.shape)


def blocks(total: int, size: int = 4096) -> Iterator[slice]:
    """Slices of at most ``size`` that make up ``total``.

    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


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


faiss: Any = None  # the extra 'search'; flat search works without it
with suppress(ImportError):
    import faiss

ROWS = 16_384  # items of one product
MANY = 8
"""Queries from which on a product of all with the items is faster than faiss, which goes through
the items for each of them: four times with 256."""


class Flat(Structure):
    """The lifted items as one memory-mapped array; a product with the query, and the best of it."""

    name: ClassVar[str] = "flat"
    exact = True

    @classmethod
    def build(cls, content: SegmentContent) -> None:
        lift = Lift.of(content.similarity, content.gallery, content.some(SAMPLE))
        lift.save(content.folder)
        arrays: list[np.ndarray] = []
        for block in blocks(content.items):
            lifted = lift.items(content.read(block))
            if not arrays:
                files = [content.folder / f"lifted{i}.npy" for i in range(len(lifted))]
                shapes = [(content.items, a.shape[1]) for a in lifted]
                arrays = list(map(new_array, files, shapes))
            for whole, a in zip(arrays, lifted, strict=True):
                whole[block] = a
        for whole in arrays:
            whole.flush()  # type: ignore[attr-defined]

    def __init__(self, content: SegmentContent) -> None:
        self.lift = Lift.load(content.folder, content.similarity, content.gallery)
        files = [content.folder / f"lifted{i}.npy" for i in range(len(self.lift.centers))]
        self.arrays = [mapped(file, content.items) for file in files]
        self.total = content.items

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        return self.lift.queries(queries)

    def candidates(
        self, queries: LiftedQueries, count: int, allowed: Allowed | None = None
    ) -> Candidates:
        reach = self.total if allowed is None else allowed.count
        count = min(count, reach)
        if not count:
            return Candidates.none(len(queries))
        found = []
        for number, (q, array) in enumerate(zip(queries.vectors, self.arrays, strict=True)):
            rows, raw = nearest(q, array, count, self.lift.inner, allowed)
            found.append((rows, queries.rough(number, raw)))
        return Candidates.merged(found, whole=count >= reach)


class Scan(Structure):
    """``Similarity.matrix`` over all items, for similarities that are not a product of vectors."""

    name: ClassVar[str] = "scan"
    exact = True

    @classmethod
    def build(cls, content: SegmentContent) -> None:
        """Nothing: the Gaussians are all it needs."""

    def __init__(self, content: SegmentContent) -> None:
        self.content = content

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        return LiftedQueries(self.content.similarity, self.content.gallery, queries)

    def candidates(
        self, queries: LiftedQueries, count: int, allowed: Allowed | None = None
    ) -> Candidates:
        content, own = self.content, queries.queries.gaussian()
        rows = np.arange(content.items) if allowed is None else allowed.rows
        count = min(count, len(rows))
        if not count:
            return Candidates.none(len(queries))
        best_rows, best = torch.empty(len(own), 0).long(), torch.empty(len(own), 0).double()
        for block in blocks(len(rows)):
            items = content.read(rows[block])
            found = query_scores(content.similarity, own, items, content.gallery).double()
            here = torch.from_numpy(rows[block]).expand(len(own), -1)
            best, best_rows = torch.cat([best, found], 1), torch.cat([best_rows, here], 1)
            best, order = best.topk(min(count, best.shape[1]))
            best_rows = best_rows.gather(1, order)
        return Candidates.merged([(best_rows.numpy(), best.numpy())], whole=count >= len(rows))


def nearest(
    q: np.ndarray, array: np.ndarray, count: int, inner: bool, allowed: Allowed | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and raw values of the best ``count``, best first."""
    if allowed is not None and allowed.count < 0.2 * len(array):
        some = allowed.rows  # few: copying them is cheaper than looking at all
        rows, raw = nearest(q, array[some], count, inner)
        return some[rows], raw
    if faiss is None or len(q) >= MANY:
        return _by_product(q, array, count, inner, allowed)
    rows = np.empty((len(q), count), dtype=np.int64)
    raw = np.empty((len(q), count), dtype=np.float32)
    selector = None
    if allowed is not None:
        selector = faiss.IDSelectorBitmap(allowed.bits)
    where = (faiss.swig_ptr(q), faiss.swig_ptr(array), array.shape[1], len(q), len(array), count)
    out = (faiss.swig_ptr(raw), faiss.swig_ptr(rows))
    if inner:
        faiss.knn_inner_product(*where, *out, selector)
    else:
        faiss.knn_L2sqr(*where, *out, None, selector)
    return rows, raw


def _by_product(
    q: np.ndarray, array: np.ndarray, count: int, inner: bool, allowed: Allowed | None
) -> tuple[np.ndarray, np.ndarray]:
    queries, items = torch.from_numpy(q), as_tensor(array)
    banned = None if allowed is None else torch.from_numpy(~allowed.mask)
    best, rows = torch.empty(len(q), 0), torch.empty(len(q), 0, dtype=torch.long)
    for block in blocks(len(array), ROWS):
        part = items[block]
        close = queries @ part.T
        if not inner:
            close.mul_(2).sub_(part.square().sum(-1)).sub_(queries.square().sum(-1, keepdim=True))
        if banned is not None:
            close.masked_fill_(banned[block], -torch.inf)
        found, at = close.topk(min(count, close.shape[1]))
        best, rows = torch.cat([best, found], 1), torch.cat([rows, at + block.start], 1)
        best, order = best.topk(min(count, best.shape[1]))
        rows = rows.gather(1, order)
    return rows.numpy(), (best if inner else -best).numpy()
