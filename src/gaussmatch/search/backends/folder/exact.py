"""Exact search: every item is looked at."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import torch

from gaussmatch.core.gaussian import ArrayGaussian
from gaussmatch.files import new_array
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search.backends.folder.arrays import as_tensor, blocks, mapped
from gaussmatch.search.backends.folder.structure import Allowed, SegmentContent, Structure
from gaussmatch.search.lift import SAMPLE, Lift, LiftedQueries
from gaussmatch.search.topk import Candidates

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
        files = [content.folder / f"lifted{i}.npy" for i in range(len(self.lift.centres))]
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
