"""Galleries that a few odd items spoil: recall@10 of each structure, or the stated fallback.

    python benchmarks/outliers.py [--items 6000] [--dim 32] [--similarity kl]
    python benchmarks/outliers.py --milvus --items 1500 --queries 30

Each gallery is clustered Gaussians with something odd in it. It is added to an index and
compacted; further Gaussians of the same clusters are the queries. Printed: the share of the
true ten best that is found, how many candidates a walk keeps, and whether the graph is used or the
items are searched exactly, which the index says when the graph is built (``gaussmatch index
info``). The last line is the number of galleries below 0.95. ``--milvus`` does the same in an
embedded Milvus, which is slow.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from search_speed import clustered

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search import Index, IndexSettings, Record

K, LEAST = 10, 0.95
PARTS = ("segments", "parts")


def outlier(g: Gaussian) -> None:
    g.mean[7] = 1e4


def two_clusters(g: Gaussian) -> None:
    g.mean[::2] += 1e3


def huge_norms(g: Gaussian) -> None:
    g.mean.mul_(torch.logspace(0, 4, len(g))[torch.randperm(len(g))][:, None])


def wide_variances(g: Gaussian) -> None:
    assert g.log_var is not None
    g.log_var.mul_(10)


def beyond_float32(g: Gaussian) -> None:
    g.mean[7] = 1e300


def extreme_variances(g: Gaussian) -> None:
    assert g.log_var is not None
    g.log_var[7] = 1e3


GALLERIES: dict[str, Callable[[Gaussian], None]] = {
    "nothing odd": lambda g: None,
    "one mean of 1e4": outlier,
    "two far clusters": two_clusters,
    "norms from 1 to 1e4": huge_norms,
    "log-variances × 10": wide_variances,
    "a float64 mean of 1e300": beyond_float32,
    "log-variances of 1e3": extreme_variances,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Recall of galleries with odd items.")
    parser.add_argument("--items", type=int, default=6000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--similarity", default="kl")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--milvus", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # what they say is printed
    low = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, spoil) in enumerate(GALLERIES.items()):
            torch.manual_seed(0)
            whole, _ = clustered(options.items + options.queries, 1, options.dim)
            whole = whole.to(torch.float64)
            spoil(whole)
            items, queries = whole[: options.items], whole[options.items :]
            for place, structure in places(Path(folder), number, options.milvus):
                result, recall = measured(place, structure, options.similarity, items, queries)
                low += recall < LEAST
                where = "Milvus" if place.startswith("milvus:") else "folder"
                print(f"{name:24} {where:7} {structure:11} {result}", flush=True)
    print(f"{low} below {LEAST}")
    sys.exit(low > 0)


def places(folder: Path, number: int, milvus: bool) -> Iterator[tuple[str, str]]:
    for structure in ("hnsw", "compressed"):
        name = f"{structure}{number}"
        yield f"milvus:{folder}/test.db#{name}" if milvus else str(folder / name), structure


def measured(
    place: str, structure: str, name: str, items: Gaussian, queries: Gaussian
) -> tuple[str, float]:
    settings = IndexSettings(structure=structure, flat_below=100)  # type: ignore[arg-type]
    index = Index.create(place, similarity=name, settings=settings)
    records = [Record(str(n)) for n in range(len(items))]
    try:
        index.add(items, records)
    except ValueError as error:
        return f"refused: {error}", 1.0
    index.compact()
    own, items = similarity(name).for_query("captions"), items.to(torch.float32)
    best = query_scores(own, queries, items, "images").topk(K).indices.numpy()
    found = [[int(id) for id in hits.ids] for hits in index.search(queries.to(torch.float32), K)]
    recall = float(np.mean([np.isin(b, f).mean() for b, f in zip(best, found, strict=True)]))
    info = index.info()
    ((part,),) = (found["images"] for key, found in info.items() if key in PARTS)
    how = f"graph, {part['search']} wide" if part["used"] else "exact: stated"
    result = f"recall {recall:.3f}  {how}; measured when built: {part['recall']:.3f}"
    return result, recall


if __name__ == "__main__":
    main()
