"""Search structures: which items of a segment may be the best ones? They propose candidates with
approximate scores, see ``topk``: by looking at every item, or by walking a graph of items towards
the query (faiss HNSW).

An inner product is not a distance: a graph that links each item to those of largest inner product
links everything to a few long vectors: on Gaussians under KL it finds as little as a third of the
true ten best. So near items are *linked*, by the Euclidean distance between standardized items in
which coordinates that queries weigh more count more, and the graph is *walked* with the inner
product (the score). Measured in docs/performance.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.files import new_array, read_json, to_json
from gaussmatch.lazy import torch
from gaussmatch.search.lift import SAMPLE, Lift, LiftedQueries
from gaussmatch.search.manifest import Gallery, IndexSettings
from gaussmatch.search.topk import COARSE, QUERIES, REPORT, Candidates, Recall, measure

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


def blocks(total: int, size: int = 4096) -> Iterator[slice]:
    """Slices of at most ``size`` that make up ``total``.

    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


class SegmentContent:
    """The Gaussians of a segment, which a structure is built from and later opened with; its files
    are in ``folder``."""

    def __init__(
        self,
        folder: Path,
        gallery: Gallery,
        similarity: Callable[[], Similarity],
        settings: IndexSettings,
        mean: np.ndarray,
        log_var: np.ndarray | None,
    ) -> None:
        self.folder, self.gallery, self._similarity = folder, gallery, similarity
        self.settings, self.mean, self.log_var = settings, mean, log_var
        self.total = len(mean)

    @property
    def similarity(self) -> Similarity:
        return self._similarity()

    def arrays(self, rows: np.ndarray) -> ArrayGaussian:
        """The Gaussians of some rows, copied into memory."""
        log_var = None if self.log_var is None else self.log_var.take(rows, 0)
        return ArrayGaussian(self.mean.take(rows, 0), log_var)

    def gaussians(self, rows: slice | np.ndarray) -> Gaussian:
        """The same as tensors."""
        log_var = None if self.log_var is None else np.array(self.log_var[rows])
        return ArrayGaussian(np.array(self.mean[rows]), log_var).gaussian()

    def some(self, most: int) -> Gaussian:
        """At most ``most`` items, evenly spread."""
        chosen = np.linspace(0, self.total - 1, min(most, self.total))
        return self.gaussians(chosen.astype(np.int64))


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

LINKED = 5.0
"""Standard deviations: farther coordinates are cut off where items are linked. One wild item would
otherwise be a hub that every walk ends in."""
WEIGHT = 1 / 3
"""The power of what queries weigh, in the distance that links items: on five galleries 0 took 3 to
33 % more steps for the same recall, and 1 found less on some."""
STEP = 25
"""Items read in order while a walk takes one step: where a filter leaves so few that a walk would
take longer, the coded vectors of these are looked at one by one."""
SKIPPED = 200
"""Items that are not allowed and skipped while one is decoded by itself: where a filter leaves even
fewer, only theirs are touched."""
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
        for block in blocks(content.total):
            lifted = lift.items(content.gaussians(block))
            if not arrays:
                files = [content.folder / f"lifted{i}.npy" for i in range(len(lifted))]
                shapes = [(content.total, a.shape[1]) for a in lifted]
                arrays = list(map(new_array, files, shapes))
            for whole, a in zip(arrays, lifted, strict=True):
                whole[block] = a
        for whole in arrays:
            whole.flush()  # type: ignore[attr-defined]

    def __init__(self, content: SegmentContent) -> None:
        self.lift = Lift.load(content.folder, content.similarity, content.gallery)
        files = [content.folder / f"lifted{i}.npy" for i in range(len(self.lift.centers))]
        self.arrays = [mapped(file, content.total) for file in files]
        self.total = content.total

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
        from gaussmatch.learn.evaluation.scores import query_scores

        content, own = self.content, queries.queries.gaussian()
        rows = np.arange(content.total) if allowed is None else allowed.rows
        count = min(count, len(rows))
        if not count:
            return Candidates.none(len(queries))
        best_rows, best = torch.empty(len(own), 0).long(), torch.empty(len(own), 0).double()
        for block in blocks(len(rows)):
            items = content.gaussians(rows[block])
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
    found: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    for block in blocks(len(array), ROWS):
        part = array[block]
        close = q @ part.T
        if not inner:
            close = 2 * close - np.vecdot(part, part) - np.vecdot(q, q)[:, None]
        if allowed is not None:
            close[:, ~allowed.mask[block]] = -np.inf
        some = min(count, close.shape[1])
        at = np.argpartition(close, -some, 1)[:, -some:]
        found.append(np.take_along_axis(close, at, 1))
        rows.append(at + block.start)
    best = np.concatenate(found, 1)
    order = np.argsort(-best, 1)[:, :count]
    best = np.take_along_axis(best, order, 1)
    return np.take_along_axis(np.concatenate(rows, 1), order, 1), best if inner else -best


class Hnsw(Structure):
    """A graph with the lifted items in float16; one graph for each lift.

    Half the bytes of float32, and as they decide how long a walk takes, it is faster by a quarter;
    the shortlist is scored again anyway. Items that are linked lie near each other, see
    ``_walked``, which makes it faster by a sixth.
    """

    name: ClassVar[str] = "hnsw"
    coding: ClassVar[str] = "QT_fp16"
    most: ClassVar[float] = 1e4
    """Standard deviations: farther coordinates, which float16 may not hold, are cut off in the
    walk."""
    enough: ClassVar[float] = 0.8
    """The part of a shortlist that a filtered walk must reach. With a tenth allowed it finds 95 %
    of the ten best."""

    @classmethod
    def build(cls, content: SegmentContent) -> None:
        _need_faiss()
        some = content.some(SAMPLE)
        lift = Lift.of(content.similarity, content.gallery, some)
        lift.save(content.folder)
        links, most = content.settings.links, cls.most
        for i, (sample, weight) in enumerate(
            zip(map(_padded, lift.items(some)), _weights(lift, some), strict=True)
        ):
            graph = _empty(cls.coding, sample.shape[1], links, inner=lift.inner)
            graph.train(sample.clip(-most, most))
            linked = _empty(Hnsw.coding, sample.shape[1], links, inner=False)
            linked.hnsw.efConstruction = content.settings.construction
            for block in blocks(content.total, 65_536):
                items = lift.items(content.gaussians(block))[i]
                linked.add(_padded(items.clip(-LINKED, LINKED) * weight))
                graph.storage.add(_padded(items.clip(-most, most)))
            graph.hnsw, graph.ntotal = linked.hnsw, linked.ntotal
            del linked
            rows = _walked(graph)
            graph.permute_entries(rows)
            np.save(content.folder / f"rows{i}.npy", np.append(rows, -1))
            file = content.folder / f"graph{i}.faiss"
            try:
                faiss.write_index(graph, str(file))
            except RuntimeError as error:  # a full disk
                raise OSError(f"{file}: cannot be written ({error})") from error
        queries, name = content.some(QUERIES), f"a graph ({cls.name}) of {content.total:,} items"
        report = measure(content.settings, cls(content), queries.numpy(), name)
        (content.folder / REPORT).write_text(to_json(asdict(report)), encoding="utf-8")

    @classmethod
    def current(cls, files: Collection[str]) -> bool:
        return "rows0.npy" in files

    def __init__(self, content: SegmentContent) -> None:
        _need_faiss()
        self.lift = Lift.load(content.folder, content.similarity, content.gallery)
        self.scan, self.arrays = Scan(content).candidates, content.arrays
        self.settings, self.total = content.settings, content.total
        self._ways: dict[int, Any] = {}
        self._allowed: WeakKeyDictionary[Allowed, list[Allowed]] = WeakKeyDictionary()
        self.graphs, self.rows = [], []
        for i in range(len(self.lift.centers)):
            file = content.folder / f"graph{i}.faiss"
            how = faiss.IO_FLAG_MMAP_IFC if is_large(file) else 0
            graph = faiss.read_index(str(file), how)
            graph.hnsw.is_similarity = self.lift.inner
            self.graphs.append(graph)
            self.rows.append(mapped(content.folder / f"rows{i}.npy", self.total + 1))
        self.width, self.exact = self.settings.search, False
        if (content.folder / REPORT).is_file():
            report = Recall(**read_json(content.folder / REPORT))
            self.width, self.exact = report.search, not report.used

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        return self.lift.queries(queries)

    def candidates(
        self, queries: LiftedQueries, count: int, allowed: Allowed | None = None
    ) -> Candidates:
        reach = self.total if allowed is None else allowed.count
        if not reach:
            return Candidates.none(len(queries))
        if self.exact or count >= reach:
            return self.scan(queries, count, allowed)
        width = max(self.settings.search, self.width, count)
        if allowed is not None:  # how far down the best allowed ones reach
            width += int(self.enough * count * self.total / reach)
        found, vectors = [], map(_padded, queries.vectors)
        for number, (q, graph) in enumerate(zip(vectors, self.graphs, strict=True)):
            own = None if allowed is None else self._in_graph(allowed, number)
            if own is None or STEP * width < reach:
                raw, rows = self._walk(graph, q, count, self._way(width, own))
            elif SKIPPED * reach < self.total:
                raw, rows = self._decoded(graph, q, count, own.rows)
            else:
                way = faiss.SearchParameters(sel=faiss.IDSelectorBitmap(own.bits))
                raw, rows = graph.storage.search(q, count, params=way)
            rows = self.rows[number].take(rows)  # −1, for none, stays: it is the last one
            found.append((rows, partial(queries.rough, number, raw)))
        if len(found) == 1:
            return Candidates(*found[0])
        return Candidates.merged([(rows, rough()) for rows, rough in found], whole=False)

    def _walk(
        self, graph: Any, q: np.ndarray, count: int, way: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """``graph.search`` without its checks, which take a hundredth of an answer."""
        raw = np.empty((len(q), count), dtype=np.float32)
        rows = np.empty((len(q), count), dtype=np.int64)
        pointers = map(faiss.swig_ptr, (q, raw, rows))
        graph.search_c(len(q), next(pointers), count, *pointers, way)
        return raw, rows

    def _in_graph(self, allowed: Allowed, number: int) -> Allowed:
        """The same in the order of a graph; kept as long as the filter is."""
        if allowed not in self._allowed:
            self._allowed[allowed] = [Allowed(allowed.mask.take(r[:-1])) for r in self.rows]
        return self._allowed[allowed][number]

    def _decoded(
        self, graph: Any, q: np.ndarray, count: int, some: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best of some rows, as faiss would return them."""
        storage = faiss.downcast_index(graph.storage)
        codes = faiss.rev_swig_ptr(storage.codes.data(), self.total * storage.code_size)
        vectors = storage.sa_decode(codes.reshape(self.total, -1).take(some, 0))
        rows, raw = nearest(q, vectors, count, self.lift.inner)
        return raw, some[rows]

    def _way(self, width: int, allowed: Allowed | None) -> Any:
        """How to walk. Making this takes a tenth of a search, so the usual ones are kept."""
        if allowed is not None:
            chosen = faiss.IDSelectorBitmap(allowed.bits)
            return faiss.SearchParametersHNSW(efSearch=width, sel=chosen)
        if width not in self._ways:
            self._ways[width] = faiss.SearchParametersHNSW(efSearch=width)
        return self._ways[width]


class Compressed(Hnsw):
    """The same graph with one byte for each coordinate: half the bytes of the vectors."""

    name: ClassVar[str] = "compressed"
    coding: ClassVar[str] = "QT_8bit"
    most: ClassVar[float] = 40.0  # a byte divides what lies between the extremes
    enough: ClassVar[float] = Hnsw.enough / COARSE

    def candidates(
        self, queries: LiftedQueries, count: int, allowed: Allowed | None = None
    ) -> Candidates:
        return super().candidates(queries, COARSE * count, allowed)


def _need_faiss() -> None:
    with extra("search", "approximate search (structure flat works without)"):
        import faiss  # noqa: F401


def _empty(coding: str, width: int, links: int, *, inner: bool) -> Any:
    """A graph of no items yet."""
    metric = faiss.METRIC_INNER_PRODUCT if inner else faiss.METRIC_L2
    return faiss.IndexHNSWSQ(width, getattr(faiss.ScalarQuantizer, coding), links, metric)


def _padded(vectors: np.ndarray) -> np.ndarray:
    """Zeros at the end, to a multiple of 16: faiss decodes other widths three times as slowly."""
    n, width = vectors.shape
    padded = np.zeros((n, width + -width % 16), dtype=np.float32)
    padded[:, :width] = vectors
    return padded


def _walked(graph: Any) -> np.ndarray:
    """The items in the order in which a walk through all of the graph, breadth first, meets them:
    so those that a search looks at one after the other share pages and cache lines."""
    links, total = graph.hnsw.nb_neighbors(0), graph.ntotal
    every = faiss.rev_swig_ptr(graph.hnsw.neighbors.data(), graph.hnsw.neighbors.size())
    first = faiss.vector_to_array(graph.hnsw.offsets)[:-1].astype(np.int64)
    rows, met = np.empty(total, dtype=np.int64), np.zeros(total, dtype=bool)
    start, stop, unmet = 0, 0, 0
    while stop < total:
        if not stop:
            new = np.array([graph.hnsw.entry_point])
        elif start == stop:  # the rest: no link led there
            unmet += int(np.argmin(met[unmet:]))
            new = np.array([unmet])
        else:
            some = rows[start : min(stop, start + 4096)]
            start += len(some)
            linked = every[first[some][:, None] + np.arange(links)].ravel()
            linked = linked[linked >= 0]
            linked = linked[~met[linked]]
            new = linked[np.sort(np.unique(linked, return_index=True)[1])]
        met[new] = True
        rows[stop : stop + len(new)] = new
        stop += len(new)
    return rows


def _weights(lift: Lift, some: Gaussian) -> Iterator[np.ndarray]:
    """How much each coordinate counts where items are linked: by what queries weigh, of which the
    items themselves, as queries, are typical. In a distance all count alike."""
    for vectors in lift.queries(some.numpy()).vectors:
        if not lift.inner:
            yield np.ones(vectors.shape[1], dtype=np.float32)
            continue
        length = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        mean = np.sqrt(np.mean((vectors / np.maximum(length, 1e-30)) ** 2, axis=0))
        yield ((mean / mean.max()) ** WEIGHT).astype(np.float32)
