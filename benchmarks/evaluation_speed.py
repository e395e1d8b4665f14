"""How much longer is a whole ranking than the matrix product in it?

    python benchmarks/evaluation_speed.py [--images 5000] [--captions 25000] [--dim 1024]

Ranks of every image among the captions and of every caption among the images, from Gaussians with
variances, against one bare float32 product of the same lifted vectors in the same run. Minimum KL
contains two products, so its ratio is about twice that of the others. Memory (Linux) is the
process's peak while ranking above what it held with the embeddings.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance, summary
from gaussmatch.core.similarities import SIMILARITIES, Similarity, similarity
from gaussmatch.learn.evaluation.retrieval import ranks


def main() -> None:
    parser = argparse.ArgumentParser(description="How much longer is ranking than its product?")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--captions", type=int, default=25000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3, help="the best of these counts")
    lifted = [name for name, s in SIMILARITIES.items() if s.no_lift is None]
    parser.add_argument("--similarities", nargs="+", default=lifted, choices=lifted)
    options = parser.parse_args()
    n, m, dim = options.images, options.captions, options.dim
    torch.manual_seed(0)
    images, captions = gaussians(n, dim), gaussians(m, dim)
    own = torch.arange(m) * n // m
    pairs = Relevance.from_pairs(torch.arange(m), own, queries=m, gallery=n)
    print(f"{n} × {m}, D = {dim}, {torch.get_num_threads()} thread(s)")
    heads = f"{'product':>9} {'ranking':>9} {'ratio':>6} {'CPU ratio':>9} {'memory':>10}"
    print(f"{'similarity':20} {heads}")
    for name in options.similarities:
        s = similarity(name)
        product, ranking = [], []
        held = memory("VmRSS", reset=True)
        for _ in range(options.repeats):
            ranking.append(seconds(partial(measure, s, images, captions, pairs)))
        peak = memory("VmHWM") - held
        left, right = (f(g)[0].float() for f, g in lifts(s, images, captions))
        for _ in range(options.repeats):
            product.append(seconds(partial(torch.matmul, left, right.T)))
        del left, right
        (p, p_cpu), (r, r_cpu) = fastest(product), fastest(ranking)
        print(
            f"{name:20} {p:8.2f}s {r:8.2f}s {r / p:6.2f} {r_cpu / p_cpu:9.2f} "
            f"{peak / 2**20:6.2f} GiB",
            flush=True,
        )


def measure(s: Similarity, images: Gaussian, captions: Gaussian, pairs: Relevance) -> None:
    summary(*ranks(s, images, captions, pairs))


def lifts(s: Similarity, images: Gaussian, captions: Gaussian) -> tuple[tuple, ...]:
    return (s.lift_images, images), (s.lift_captions, captions)


def gaussians(n: int, dim: int) -> Gaussian:
    mean = torch.nn.functional.normalize(torch.randn(n, dim), dim=-1)
    return Gaussian(mean, 0.5 * torch.randn(n, dim))


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Time on the clock, and of the processor (all threads), which a busy machine changes less."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def fastest(times: list[tuple[float, float]]) -> tuple[float, float]:
    return min(t for t, _ in times), min(t for _, t in times)


def memory(what: str, reset: bool = False) -> float:
    """KiB of this process now (VmRSS) or at most since the last reset (VmHWM); NaN elsewhere."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = status.read_text().splitlines()
    return float(next(line for line in lines if line.startswith(what)).split()[1])


if __name__ == "__main__":
    main()
