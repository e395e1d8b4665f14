"""Approximate search: walk a graph of items towards the query (faiss HNSW).

An inner product is not a distance: a graph that links each item to those of largest inner product
links everything to a few long vectors: on Gaussians under KL it finds as little as a third of the
true ten best. So near items are *linked*, by the Euclidean distance between standardized items in
which coordinates that queries weigh more count more, and the graph is *walked* with the inner
product (the score). Measured in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.files import read_json, to_json
from gaussmatch.search.backends.folder.structure import (
    Allowed,
    Scan,
    SegmentContent,
    Structure,
    blocks,
    is_large,
    mapped,
    nearest,
)
from gaussmatch.search.lift import SAMPLE, Lift, LiftedQueries
from gaussmatch.search.topk import BEST, COARSE, QUERIES, REPORT, Candidates, Recall, measure

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
        faiss = needed()
        some = content.some(SAMPLE)
        lift = Lift.of(content.similarity, content.gallery, some)
        lift.save(content.folder)
        links, most = content.settings.links, cls.most
        for i, (sample, weight) in enumerate(
            zip(map(_padded, lift.items(some)), _weights(lift, some), strict=True)
        ):
            graph = _empty(faiss, cls.coding, sample.shape[1], links, inner=lift.inner)
            graph.train(sample.clip(-most, most))
            linked = _empty(faiss, Hnsw.coding, sample.shape[1], links, inner=False)
            linked.hnsw.efConstruction = content.settings.construction
            for block in blocks(content.items, 65_536):
                items = lift.items(content.read(block))[i]
                linked.add(_padded(items.clip(-LINKED, LINKED) * weight))
                graph.storage.add(_padded(items.clip(-most, most)))
            graph.hnsw, graph.ntotal = linked.hnsw, linked.ntotal
            del linked
            rows = _walked(faiss, graph)
            graph.permute_entries(rows)
            np.save(content.folder / f"rows{i}.npy", np.append(rows, -1))
            file = content.folder / f"graph{i}.faiss"
            try:
                faiss.write_index(graph, str(file))
            except RuntimeError as error:  # a full disk
                raise OSError(f"{file}: cannot be written ({error})") from error
        cls(content).measure(content)

    @classmethod
    def current(cls, files: Collection[str]) -> bool:
        return "rows0.npy" in files

    def measure(self, content: SegmentContent) -> None:
        """Note beside the graph how well it searches, and how wide a walk must be."""
        queries = self.lifted(content.some(QUERIES).numpy())

        def walk(width: int, count: int) -> Candidates:
            self.width = width
            return self.candidates(queries, count)

        best = self.scan.candidates(queries, BEST)
        name = f"a graph ({self.name}) of {content.items:,} items"

        def items(rows: np.ndarray) -> ArrayGaussian:
            return content.read(rows).numpy()

        report = measure(content.settings, queries, best, walk, items, name)
        (content.folder / REPORT).write_text(to_json(asdict(report)), encoding="utf-8")

    def __init__(self, content: SegmentContent) -> None:
        self.faiss = needed()
        self.lift = Lift.load(content.folder, content.similarity, content.gallery)
        self.scan = Scan(content)
        self.settings, self.total = content.settings, content.items
        self._ways: dict[int, Any] = {}
        self._allowed: WeakKeyDictionary[Allowed, list[Allowed]] = WeakKeyDictionary()
        self.graphs, self.rows = [], []
        for i in range(len(self.lift.centers)):
            file = content.folder / f"graph{i}.faiss"
            how = self.faiss.IO_FLAG_MMAP_IFC if is_large(file) else 0
            graph = self.faiss.read_index(str(file), how)
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
            return self.scan.candidates(queries, count, allowed)
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
                way = self.faiss.SearchParameters(sel=self.faiss.IDSelectorBitmap(own.bits))
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
        pointers = map(self.faiss.swig_ptr, (q, raw, rows))
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
        storage = self.faiss.downcast_index(graph.storage)
        codes = self.faiss.rev_swig_ptr(storage.codes.data(), self.total * storage.code_size)
        vectors = storage.sa_decode(codes.reshape(self.total, -1).take(some, 0))
        rows, raw = nearest(q, vectors, count, self.lift.inner)
        return raw, some[rows]

    def _way(self, width: int, allowed: Allowed | None) -> Any:
        """How to walk. Making this takes a tenth of a search, so the usual ones are kept."""
        if allowed is not None:
            chosen = self.faiss.IDSelectorBitmap(allowed.bits)
            return self.faiss.SearchParametersHNSW(efSearch=width, sel=chosen)
        if width not in self._ways:
            self._ways[width] = self.faiss.SearchParametersHNSW(efSearch=width)
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


def _empty(faiss: Any, coding: str, width: int, links: int, *, inner: bool) -> Any:
    """A graph of no items yet."""
    metric = faiss.METRIC_INNER_PRODUCT if inner else faiss.METRIC_L2
    return faiss.IndexHNSWSQ(width, getattr(faiss.ScalarQuantizer, coding), links, metric)


def _padded(vectors: np.ndarray) -> np.ndarray:
    """Zeros at the end, to a multiple of 16: faiss decodes other widths three times as slowly."""
    n, width = vectors.shape
    padded = np.zeros((n, width + -width % 16), dtype=np.float32)
    padded[:, :width] = vectors
    return padded


def _walked(faiss: Any, graph: Any) -> np.ndarray:
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


def needed() -> Any:
    """faiss, or how to get it."""
    with extra("search", "approximate search (structure flat works without)"):
        import faiss
    return faiss
