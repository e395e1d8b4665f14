"""What an index costs in the engine that keeps it: adding, compacting, searching.

    python benchmarks/engines.py PLACE [--items 20000] [--dim 128] [--levels Strong Bounded]

PLACE is a new one: a folder, milvus:http://HOST:19530#NAME or postgresql://HOST/DATABASE#NAME.
``milvus`` or ``postgres`` alone starts a server of the tests (tests/index/real_*.py) and stops it.
Recall: the share of the true ten best, by the similarity itself, among the ten found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from search_speed import clustered

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search import Index, IndexSettings, Record

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
QUERIES, AT_ONCE = 100, 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description="What an index costs in the engine that keeps it")
    parser.add_argument("place")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--structure", default="hnsw")
    parser.add_argument("--levels", nargs="*", default=[], help="of consistency, for Milvus")
    options = parser.parse_args()
    torch.set_num_threads(1)
    items, queries = clustered(options.items, QUERIES, options.dim)
    truth = query_scores(similarity("kl"), queries, items, "images").topk(10).indices.numpy()
    settings = IndexSettings(structure=options.structure)
    with started(options.place) as place:
        index = Index.create(place, similarity="kl", settings=settings)
        start = time.perf_counter()
        for first in range(0, options.items, AT_ONCE):
            last = min(first + AT_ONCE, options.items)
            some = [Record(f"i{n}", {"n": n, "mod": n % 100}) for n in range(first, last)]
            index.add(items[first:last], some)
        took = time.perf_counter() - start
        print(f"add      {options.items / took:8,.0f} items a second", flush=True)
        report("added", index, queries, truth)
        start = time.perf_counter()
        index.compact()
        print(f"compact  {time.perf_counter() - start:8.1f} s", flush=True)
        print(f"         {index.backend.describe()}", flush=True)
        report("compacted", index, queries, truth)
        if index.place.startswith("postgresql:"):
            print(f"bytes    {bytes_of(index, options.items)}", flush=True)
        for level in options.levels:
            base, _, name = index.place.partition("#")
            other = Index.open(f"{base}?consistency={level}#{name or 'gaussmatch'}")
            report(level, other, queries, truth)
            other.close()
        start = time.perf_counter()
        index.verify()
        print(f"verify   {time.perf_counter() - start:8.1f} s", flush=True)
        index.drop()


def report(name: str, index: Index, queries: Gaussian, truth: np.ndarray) -> None:
    """Recall of all queries at once; time of one after the other."""
    index.search(queries[:1])
    found = [[int(id_[1:]) for id_ in hits.ids[:10]] for hits in index.search(queries)]
    recall = np.mean([np.isin(t, f).mean() for t, f in zip(truth, found, strict=True)])
    line = f"search   recall {recall:.3f} "
    for what, where in (("", None), (" filtered", {"mod": {"lt": 10}})):
        times = []
        for q in range(20):
            start = time.perf_counter()
            index.search(queries[q : q + 1], where=where)
            times.append(time.perf_counter() - start)
        line += f"{1000 * np.median(times):8.1f} ms a query{what}"
    print(f"{line}  ({name})", flush=True)


def bytes_of(index: Index, items: int) -> str:
    """What an item takes in PostgreSQL, and how much of that is the graph."""
    import psycopg

    uri, _, name = index.place.partition("#")
    with psycopg.connect(uri) as connection:
        query = "SELECT pg_total_relation_size(%s::regclass), pg_relation_size(%s::regclass)"
        found = connection.execute(query, [f"{name}_images", f"{name}_images_lift0"]).fetchone()
    total, graph = (int(n) / items for n in found or (0, 0))
    return f"{total:,.0f} an item, of which the graph {graph:,.0f}"


@contextmanager
def started(place: str) -> Iterator[str]:
    """The place itself, or one on a server that runs meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        if place == "milvus":
            from index.real_milvus import RealMilvus

            server = RealMilvus(Path(folder))
        elif place == "postgres":
            from index.real_postgres import RealPostgres

            server = RealPostgres()
        else:
            yield place
            return
        try:
            yield f"{server.address}#bench"
        finally:
            server.close()


if __name__ == "__main__":
    main()
