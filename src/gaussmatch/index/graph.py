"""Approximate search: walk a graph of items towards the query (faiss HNSW).

An inner product is no distance, and a graph that links each item to those of largest inner product
links everything to a few long vectors: on Gaussians under KL it finds as little as a third of the
true ten best. So the graph is *built* with the Euclidean distance between standardised items (near
items are linked) and *walked* with the inner product (the score). Measured in docs/search.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.exact import Scan, none
from gaussmatch.index.layout import Gallery
from gaussmatch.index.lift import SAMPLE, Lift, blocks
from gaussmatch.index.settings import Settings
from gaussmatch.index.structure import Candidates, Structure, Vectors, merge
from gaussmatch.similarities import Similarity

FEW = 0.1
"""Where fewer than this share of the items is allowed, those are looked at one by one."""


class Hnsw(Structure):
    """A graph with the lifted items in float32; one graph for each lift."""

    kind: ClassVar[str] = "hnsw"
    exact: ClassVar[bool] = False

    @classmethod
    def build(
        cls,
        folder: Path,
        similarity: Similarity,
        gallery: Gallery,
        vectors: Vectors,
        settings: Settings,
    ) -> None:
        faiss = needed()
        some = vectors.some(SAMPLE)
        lift = Lift.of(similarity, gallery, some)
        lift.save(folder)
        for i, sample in enumerate(lift.items(some)):
            graph = cls._empty(faiss, sample, settings)
            graph.hnsw.efConstruction = settings.construction
            for block in blocks(vectors.items, 65_536):
                graph.add(lift.items(vectors.read(block))[i])
            _walk_by_score(faiss, graph, lift)
            faiss.write_index(graph, str(folder / f"graph{i}.faiss"))

    @classmethod
    def _empty(cls, faiss: Any, sample: np.ndarray, settings: Settings) -> Any:
        graph = faiss.IndexHNSWFlat(sample.shape[1], settings.links, faiss.METRIC_L2)
        plain = faiss.IndexFlat(sample.shape[1], faiss.METRIC_L2)  # its metric can be changed
        plain.this.disown()
        graph.storage = plain
        return graph

    def __init__(
        self,
        folder: Path,
        similarity: Similarity,
        gallery: Gallery,
        vectors: Vectors,
        settings: Settings,
    ) -> None:
        self.faiss = needed()
        self.lift = Lift.load(folder, similarity, gallery)
        self.scan = Scan(folder, similarity, gallery, vectors, settings)
        self.settings, self.total = settings, vectors.items
        self.graphs = []
        for i in range(len(self.lift.centres)):
            name = str(folder / f"graph{i}.faiss")
            graph = self.faiss.read_index(name, self.faiss.IO_FLAG_MMAP_IFC)
            graph.hnsw.is_similarity = self.lift.inner
            self.graphs.append(graph)

    def candidates(
        self, queries: Gaussian, count: int, allowed: np.ndarray | None = None
    ) -> Candidates:
        reach = self.total if allowed is None else int(allowed.sum())
        if not reach:
            return none(len(queries))
        share = reach / self.total
        if share < FEW or count >= reach:
            return self.scan.candidates(queries, count, allowed)
        options: dict[str, Any] = {}
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            options["sel"] = self.faiss.IDSelectorBitmap(len(bits), self.faiss.swig_ptr(bits))
        width = int(max(self.settings.search, count) / share)
        found = []
        for (q, constant), graph in zip(self.lift.queries(queries), self.graphs, strict=True):
            told = self.faiss.SearchParametersHNSW(efSearch=width, **options)
            raw, rows = graph.search(q, count, params=told)
            found.append((rows, self.lift.score(raw, constant)))
        return merge(found, whole=False)


class Compressed(Hnsw):
    """The same graph with one byte for each coordinate: about a third of the memory."""

    kind: ClassVar[str] = "compressed"

    @classmethod
    def _empty(cls, faiss: Any, sample: np.ndarray, settings: Settings) -> Any:
        bits = faiss.ScalarQuantizer.QT_8bit
        graph = faiss.IndexHNSWSQ(sample.shape[1], bits, settings.links, faiss.METRIC_L2)
        graph.train(sample)
        return graph


def _walk_by_score(faiss: Any, graph: Any, lift: Lift) -> None:
    if lift.inner:
        faiss.downcast_index(graph.storage).metric_type = faiss.METRIC_INNER_PRODUCT
        graph.metric_type = faiss.METRIC_INNER_PRODUCT
        graph.hnsw.is_similarity = True


def needed() -> Any:
    """faiss, or how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "approximate search needs faiss: pip install 'gaussmatch[search]' "
            "(an index of kind flat works without it)"
        ) from error
    return faiss
