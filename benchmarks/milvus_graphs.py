"""Which index of Milvus suits an inner product? faiss stands in for it, on the standardised lift.

    python benchmarks/milvus_graphs.py [--items 20000] [--dim 128] [--similarity kl]

Milvus builds a graph with the metric that it is searched with, so for KL with the inner product.
Recall: the share of the true ten best, by the similarity itself, among 32 candidates.
"""

from __future__ import annotations

import argparse
import time

import faiss
import numpy as np
import torch
from search_speed import clustered

from gaussmatch.core.similarities import similarity
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search import GALLERIES
from gaussmatch.search.lift import SAMPLE, Lift

CELLS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description="Which index of Milvus suits an inner product?")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--similarity", default="kl")
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    torch.set_num_threads(1)
    used = similarity(options.similarity)
    items, queries = clustered(options.items, 100, options.dim)
    for gallery in GALLERIES:
        truth = query_scores(used, queries, items, gallery).topk(10).indices.numpy()
        lift = Lift.of(used, gallery, items[:SAMPLE])
        vectors, lifted = lift.items(items)[0], lift.queries(queries.numpy()).vectors[0]
        metric = faiss.METRIC_INNER_PRODUCT if lift.inner else faiss.METRIC_L2
        graph = faiss.IndexHNSWFlat(vectors.shape[1], 32, metric)
        graph.hnsw.efConstruction = 100
        graph.add(vectors)
        for width in (64, 256):
            graph.hnsw.efSearch = width
            report(f"{gallery} HNSW, efSearch {width}", graph, lifted, truth)
        for code in ("Flat", "SQ8"):
            cells = faiss.index_factory(vectors.shape[1], f"IVF{CELLS},{code}", metric)
            cells.train(vectors)
            cells.add(vectors)
            cells.nprobe = 16
            report(f"{gallery} IVF {code}, 16 of {CELLS} cells", cells, lifted, truth)


def report(name: str, index: faiss.Index, lifted: np.ndarray, truth: np.ndarray) -> None:
    start = time.perf_counter()
    _, found = index.search(lifted, 32)
    took = (time.perf_counter() - start) / len(lifted)
    recall = np.mean([np.isin(t, f).mean() for t, f in zip(truth, found, strict=True)])
    print(f"{name:36} recall {recall:.3f}  {1000 * took:6.2f} ms a query", flush=True)


if __name__ == "__main__":
    main()
