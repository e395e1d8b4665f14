"""Approximate search: walk a graph of items towards the query (faiss HNSW).

An inner product is no distance, and a graph that links each item to those of largest inner product
links everything to a few long vectors: on Gaussians under KL it finds as little as a third of the
true ten best. So the graph is *built* with the Euclidean distance between standardised items (near
items are linked) and *walked* with the inner product (the score). Measured in docs/search.md.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gaussmatch.checks import extra
from gaussmatch.files import read_json, to_json
from gaussmatch.gaussian import ArrayGaussian
from gaussmatch.index.backends.folder.arrays import blocks
from gaussmatch.index.backends.folder.exact import Scan, nearest
from gaussmatch.index.backends.folder.structure import Allowed, SegmentContent, Structure
from gaussmatch.index.lift import SAMPLE, Lift, LiftedQueries
from gaussmatch.index.manifest import IndexSettings
from gaussmatch.index.recall import BEST, QUERIES, REPORT, Recall, measure
from gaussmatch.index.topk import Candidates

MOST = 20.0
"""Standard deviations: farther coordinates are cut off, in the graph only. One wild item would
otherwise be a hub that every walk ends in; scores are exact anyway."""
ENOUGH = 0.6
"""Of the shortlist: the part of it that a filtered walk must reach. With a tenth allowed it finds
96 % of the ten best."""
STEP = 25
"""Items read in order while a walk takes one step: where a filter leaves so few that a walk would
take longer, the coded vectors of these are looked at one by one."""
SKIPPED = 200
"""Items that are not allowed and skipped while one is decoded by itself: where a filter leaves even
fewer, only theirs are touched."""


class Hnsw(Structure):
    """A graph with the lifted items in float16; one graph for each lift.

    Half the bytes of float32, and as they decide how long a walk takes, it is faster by a quarter;
    the shortlist is scored again anyway.
    """

    name: ClassVar[str] = "hnsw"
    coding: ClassVar[str] = "QT_fp16"

    @classmethod
    def build(cls, content: SegmentContent) -> None:
        faiss = needed()
        some = content.some(SAMPLE)
        lift = Lift.of(content.similarity, content.gallery, some)
        lift.save(content.folder)
        for i, sample in enumerate(a.clip(-MOST, MOST) for a in lift.items(some)):
            graph = cls._empty(faiss, sample, content.settings)
            graph.hnsw.efConstruction = content.settings.construction
            for block in blocks(content.items, 65_536):
                graph.add(_padded(lift.items(content.read(block))[i]).clip(-MOST, MOST))
            _walk_by_score(faiss, graph, lift)
            file = content.folder / f"graph{i}.faiss"
            try:
                faiss.write_index(graph, str(file))
            except RuntimeError as error:  # a full disk
                raise OSError(f"{file}: cannot be written ({error})") from error
        cls(content).measure(content)

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

    @classmethod
    def _empty(cls, faiss: Any, sample: np.ndarray, settings: IndexSettings) -> Any:
        sample = _padded(sample)
        bits = getattr(faiss.ScalarQuantizer, cls.coding)
        graph = faiss.IndexHNSWSQ(sample.shape[1], bits, settings.links, faiss.METRIC_L2)
        graph.train(sample)
        return graph

    def __init__(self, content: SegmentContent) -> None:
        self.faiss = needed()
        self.lift = Lift.load(content.folder, content.similarity, content.gallery)
        self.scan = Scan(content)
        self.settings, self.total = content.settings, content.items
        self._ways: dict[int, Any] = {}
        self.graphs = []
        for i in range(len(self.lift.centres)):
            name = str(content.folder / f"graph{i}.faiss")
            graph = self.faiss.read_index(name, self.faiss.IO_FLAG_MMAP_IFC)
            graph.hnsw.is_similarity = self.lift.inner
            self.graphs.append(graph)
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
        if allowed is not None:  # the best ones allowed are so many of all
            width += int(ENOUGH * count * self.total / reach)
        found, vectors = [], map(_padded, queries.vectors)
        for number, (q, graph) in enumerate(zip(vectors, self.graphs, strict=True)):
            if allowed is None or STEP * width < reach:
                raw, rows = graph.search(q, count, params=self._way(width, allowed))
            elif SKIPPED * reach < self.total:
                raw, rows = self._decoded(graph, q, count, allowed.rows)
            else:
                way = self.faiss.SearchParameters(sel=self.faiss.IDSelectorBitmap(allowed.bits))
                raw, rows = graph.storage.search(q, count, params=way)
            found.append((rows, partial(queries.rough, number, raw)))
        if len(found) == 1:
            return Candidates(*found[0])
        return Candidates.merged([(rows, rough()) for rows, rough in found], whole=False)

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


def _padded(vectors: np.ndarray) -> np.ndarray:
    """Zeros at the end, to a multiple of 16: faiss decodes other widths three times as slowly."""
    n, width = vectors.shape
    padded = np.zeros((n, width + -width % 16), dtype=np.float32)
    padded[:, :width] = vectors
    return padded


def _walk_by_score(faiss: Any, graph: Any, lift: Lift) -> None:
    if lift.inner:
        faiss.downcast_index(graph.storage).metric_type = faiss.METRIC_INNER_PRODUCT
        graph.metric_type = faiss.METRIC_INNER_PRODUCT
        graph.hnsw.is_similarity = True


def needed() -> Any:
    """faiss, or how to get it."""
    with extra("search", "approximate search (structure flat works without)"):
        import faiss
    return faiss
