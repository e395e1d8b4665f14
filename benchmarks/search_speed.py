"""How fast is search, against plain vectors of the same size? Ratios in one run.

    python benchmarks/search_speed.py [--items 200000] [--dim 128] [--similarity kl] [--clock cpu]

Exact: ``Index.search``, flat, whole answers with ids and metadata, against faiss's flat
index on random vectors of the same lifted width.

Approximate: ``Index.search``, hnsw against HNSW on the means alone, twice: in an index of
this library (similarity cosine), which answers in the same way with ids and metadata and scores
a shortlist again, and as a bare faiss index, which gives row numbers only. Each is given the
smallest width of the walk (efSearch) that finds 95 % of its own true ten best; the truth is the
exact search by the similarity for the one, by the means for the others.

``--clock cpu`` counts the processor's time instead of the wall's: with one thread the two are the
same on a quiet machine, and only the former means anything on a busy one.

Gaussians are clustered: unit means about ``items / 100`` centers, each cluster with log-variances
of its own; queries are further draws from the same clusters.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.search import Index, IndexSettings, Record
from gaussmatch.search.backends.folder.structure import Hnsw

K = 10
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = time.perf_counter
WIDTHS = (*range(10, 64), *range(64, 129, 8), 192, 256, 384, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast is search?")
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--similarity", default="kl")
    parser.add_argument("--structures", nargs="+", default=["flat", "hnsw"])
    parser.add_argument("--threads", type=int, default=1, help="of the searches")
    parser.add_argument("--build-threads", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--repeats", type=int, default=3, help="the best of these counts")
    options = parser.parse_args()
    if options.clock == "cpu" and options.threads != 1:
        parser.error("--clock cpu adds up threads; it needs --threads 1")
    global clock
    clock = CLOCKS[options.clock]
    gallery, queries = clustered(options.items, options.queries, options.dim)
    print(
        f"{options.items:,} Gaussians, D = {options.dim}, {options.similarity}, "
        f"{options.queries} queries, {options.threads} thread(s)",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        threads(options.build_threads)
        flat = filled(Path(folder) / "flat", options.similarity, "flat", gallery)
        threads(options.threads)
        truth = ids(flat, queries)
        if "flat" in options.structures:
            exact(flat, queries, options.repeats)
        plain: dict[str, dict[int, float]] = {}
        for structure in options.structures:
            if structure != "flat":
                plain = plain or {
                    "bare faiss on the means": bare_means(gallery, queries, options),
                    "an index of the means": index_of_means(folder, gallery, queries, options),
                }
                approximate(folder, structure, gallery, queries, truth, plain, options)


def exact(index: Index, queries: Gaussian, repeats: int) -> None:
    held = index.backend.segments("images")[0].structure
    width = sum(a.shape[1] for a in held.arrays)  # type: ignore[attr-defined]
    plain = faiss.IndexFlatIP(width)
    plain.add(np.random.default_rng(0).normal(size=(len(index), width)).astype(np.float32))
    vectors = np.random.default_rng(1).normal(size=(len(queries), width)).astype(np.float32)
    print(f"\nexact, lifted width {width}: ms a query")
    for batch in (1, len(queries)):
        few = min(len(queries), 50 if batch == 1 else len(queries))
        ours = timed(lambda b=batch, n=few: ask(index, queries[:n], b), few, repeats)
        theirs = timed(lambda b=batch, n=few: search(plain, vectors[:n], b), few, repeats)
        print(
            f"  {batch:4} at once: index {ours:8.3f}   faiss flat {theirs:8.3f}   "
            f"ratio {ours / theirs:.2f}",
            flush=True,
        )


def bare_means(
    gallery: Gaussian, queries: Gaussian, options: argparse.Namespace
) -> dict[int, float]:
    """ms a query of HNSW on the means at 95 % of their own truth, by how many come at once."""
    means, probes = gallery.mean.numpy(), queries.mean.numpy()
    settings = IndexSettings()
    threads(options.build_threads)
    started = time.perf_counter()
    graph = faiss.IndexHNSWFlat(options.dim, settings.links)
    graph.hnsw.efConstruction = settings.construction
    graph.add(means)
    built = time.perf_counter() - started
    threads(options.threads)
    _, truth = faiss.knn(probes, means, K)

    def at(width: int) -> Sequence[Sequence[int]]:
        graph.hnsw.efSearch = width
        return graph.search(probes, K)[1].tolist()

    width, recall = smallest(at, truth.tolist())
    graph.hnsw.efSearch = width
    print(f"\nbare faiss HNSW on the means alone: built in {built:.0f} s")
    found = {}
    for batch in (1, len(probes)):
        found[batch] = timed(lambda b=batch: search(graph, probes, b), len(probes), options.repeats)
        print(
            f"  efSearch {width:4}, {batch:4} at once: recall@10 {recall:.3f}, "
            f"{found[batch]:.3f} ms a query",
            flush=True,
        )
    return found


def index_of_means(
    folder: str, gallery: Gaussian, queries: Gaussian, options: argparse.Namespace
) -> dict[int, float]:
    """The same of an index of this library with points and the cosine."""
    points, probes = Gaussian(gallery.mean), Gaussian(queries.mean)
    flat = filled(Path(folder) / "flat-means", "cosine", "flat", points)
    truth = ids(flat, probes)
    return walked(folder, "hnsw", "cosine", points, probes, truth, options)


def approximate(
    folder: str,
    structure: str,
    gallery: Gaussian,
    queries: Gaussian,
    truth: Sequence[Sequence[str]],
    plain: dict[str, dict[int, float]],
    options: argparse.Namespace,
) -> None:
    found = walked(folder, structure, options.similarity, gallery, queries, truth, options)
    for name, theirs in plain.items():
        ratios = ", ".join(f"{ms / theirs[n]:.2f} ({n} at once)" for n, ms in found.items())
        print(f"  ratio to {name}: {ratios}", flush=True)


def walked(
    folder: str,
    structure: str,
    name: str,
    gallery: Gaussian,
    queries: Gaussian,
    truth: Sequence[Sequence[str]],
    options: argparse.Namespace,
) -> dict[int, float]:
    """ms a query of an index at a recall of 95 %, by how many come at once."""
    threads(options.build_threads)
    started = time.perf_counter()
    index = filled(Path(folder) / f"{structure}-{name}", name, structure, gallery)
    built = time.perf_counter() - started
    threads(options.threads)
    graph = index.backend.segments("images")[0].structure
    assert isinstance(graph, Hnsw)

    def at(width: int) -> Sequence[Sequence[str]]:
        graph.settings = replace(graph.settings, search=width)
        return ids(index, queries)

    width, recall = smallest(at, truth)
    graph.settings = replace(graph.settings, search=width)
    size = sum(f.stat().st_size for f in graph_files(index)) / len(index)
    print(f"\n{structure} index, {name}: built in {built:.0f} s, graph of {size:.0f} bytes an item")
    found = {}
    for batch in (1, len(queries)):
        found[batch] = timed(lambda b=batch: ask(index, queries, b), len(queries), options.repeats)
        print(
            f"  efSearch {width:4}, {batch:4} at once: recall@10 {recall:.3f}, "
            f"{found[batch]:.3f} ms a query",
            flush=True,
        )
    return found


def clustered(items: int, queries: int, dim: int) -> tuple[Gaussian, Gaussian]:
    dice = torch.Generator().manual_seed(0)
    clusters = max(1, items // 100)
    centers = torch.nn.functional.normalize(torch.randn(clusters, dim, generator=dice), dim=-1)
    widths = 0.5 * torch.randn(clusters, dim, generator=dice) - 1

    def draw(n: int) -> Gaussian:
        own = torch.randint(clusters, (n,), generator=dice)
        mean = centers[own] + torch.randn(n, dim, generator=dice) / dim**0.5
        log_var = widths[own] + 0.3 * torch.randn(n, dim, generator=dice)
        return Gaussian(torch.nn.functional.normalize(mean, dim=-1), log_var)

    return draw(items), draw(queries)


def filled(path: Path, name: str, structure: str, gallery: Gaussian) -> Index:
    assert similarity(name)
    settings = IndexSettings(structure=structure)  # type: ignore[arg-type]
    index = Index.create(path, similarity=name, settings=settings)
    index.add(gallery, [Record(str(i)) for i in range(len(gallery))])
    return index


def smallest(
    found: Callable[[int], Sequence[Sequence[object]]], truth: Sequence[Sequence[object]]
) -> tuple[int, float]:
    """The smallest width with a recall of 0.95, and that recall."""
    share = 0.0
    for width in WIDTHS:
        share = recall_of(found(width), truth)
        if share >= 0.95:
            break
    return width, share


def recall_of(found: Sequence[Sequence[object]], truth: Sequence[Sequence[object]]) -> float:
    """The share of the true ten best that were found."""
    return float(np.mean([len({*a} & {*b}) / K for a, b in zip(found, truth, strict=True)]))


def ids(
    index: Index, queries: Gaussian, where: Mapping[str, object] | None = None
) -> list[list[str]]:
    return [hits.ids for hits in index.search(queries, K, where=where)]


def ask(index: Index, queries: Gaussian, batch: int) -> None:
    for start in range(0, len(queries), batch):
        index.search(queries[start : start + batch], K)


def search(index: faiss.Index, queries: np.ndarray, batch: int) -> None:
    for start in range(0, len(queries), batch):
        index.search(queries[start : start + batch], K)


def timed(work: Callable[[], object], queries: int, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        started = clock()
        work()
        best = min(best, clock() - started)
    return 1000 * best / queries


def graph_files(index: Index) -> list[Path]:
    return sorted(index.backend.segments("images")[0].path.glob("graph*"))


def threads(count: int) -> None:
    faiss.omp_set_num_threads(count)
    torch.set_num_threads(count)


if __name__ == "__main__":
    main()
