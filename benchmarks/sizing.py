"""How much memory, disk and time does an item cost? Measured at two sizes, then extrapolated.

    python benchmarks/sizing.py [--items 200000 1000000] [--dim 128] [--similarity kl]

For each structure: bytes an item on disk, split into what a search touches (the structure) and what
only a rescore or an answer reads (Gaussians, records); recall@10 against the exact index and
ms a query, one query at a time, for each ``--search`` (efSearch); seconds to build. Bytes an item
are the slope between the two sizes. Clustered Gaussians as in search_speed.py.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from search_speed import clustered, threads

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, IndexSettings, Record

STRUCTURES = ("flat", "hnsw", "compressed")
TARGETS = (10**6, 10**8, 10**9)


def main() -> None:
    parser = argparse.ArgumentParser(description="What does an item cost?")
    parser.add_argument("--items", type=int, nargs=2, default=[200_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--similarity", default="kl")
    parser.add_argument("--build-threads", type=int, default=2)
    parser.add_argument("--search", type=int, nargs="+", default=[64, 256], help="efSearch")
    options = parser.parse_args()
    print(
        f"{options.similarity}, D = {options.dim}; built by {options.build_threads} thread(s), "
        "searched by one"
    )
    print(
        f"{'structure':12}{'items':>10}{'touched':>9}{'rest':>7}{'build s':>9}"
        f"   recall@10 and ms a query at efSearch {', '.join(map(str, options.search))}"
    )
    held: dict[str, list[tuple[int, int, int]]] = {structure: [] for structure in STRUCTURES}
    for items in options.items:
        gallery, queries = clustered(items, options.queries, options.dim)
        truth: list[list[str]] = []
        for structure in STRUCTURES:
            with tempfile.TemporaryDirectory() as folder:
                settings = IndexSettings(structure=structure, flat_below=1)
                threads(options.build_threads)
                start = time.perf_counter()
                index = Index.create(
                    Path(folder) / "index", similarity=options.similarity, settings=settings
                )
                index.add(gallery, [Record(f"{i:09}") for i in range(items)])
                built = time.perf_counter() - start
                threads(1)
                touched, rest = sizes(index)
                held[structure].append((items, touched, rest))
                found = []
                for width in options.search[:1] if structure == "flat" else options.search:
                    index.set_settings(replace(settings, search=width))
                    index = Index.open(index.place)
                    results, took = search_all(index, queries)
                    truth = truth or results
                    found.append(f"{recall(results, truth):.3f} {1000 * took:.2f}")
                print(
                    f"{structure:12}{items:10,}{touched / items:9.0f}{rest / items:7.0f}"
                    f"{built:9.1f}   " + ", ".join(found),
                    flush=True,
                )
    extrapolate(held)


def search_all(index: Index, queries: Gaussian) -> tuple[list[list[str]], float]:
    """What is found, one query at a time, and seconds a query."""
    found = [index.search(queries[i : i + 1])[0].ids for i in range(len(queries))]
    start = time.perf_counter()
    for i in range(len(queries)):
        index.search(queries[i : i + 1])
    return found, (time.perf_counter() - start) / len(queries)


def recall(found: list[list[str]], truth: list[list[str]]) -> float:
    right = sum(len({*a} & {*b}) for a, b in zip(found, truth, strict=True))
    return right / sum(map(len, truth))


def extrapolate(held: dict[str, list[tuple[int, int, int]]]) -> None:
    print("\nGB that a search touches + GB of the rest = items × bytes an item")
    print(f"{'structure':12}{'bytes an item':>16}" + "".join(f"{f'{t:,}':>20}" for t in TARGETS))
    for structure, ((n, a, b), (m, c, d)) in held.items():
        touched, rest = (c - a) / (m - n), (d - b) / (m - n)
        row = "".join(f"{f'{touched * t / 1e9:,.1f} + {rest * t / 1e9:,.1f}':>20}" for t in TARGETS)
        print(f"{structure:12}{f'{touched:.0f} + {rest:.0f}':>16}{row}")


def sizes(index: Index) -> tuple[int, int]:
    """Bytes of the files that every search reads, and of the others."""
    touched = rest = 0
    for segment in index.backend.segments("images"):
        for name, mark in segment.part.files.items():
            if name.startswith(("graph", "lifted")):
                touched += mark.size
            else:
                rest += mark.size
    return touched, rest


if __name__ == "__main__":
    main()
