"""How long a score matrix takes, as a ratio to the bare matrix products that it contains.

Both are measured in this one run, interleaved, best of several, so that a noisy machine does not
decide. Also the largest extra memory, by torch's own bookkeeping of what was allocated.

    python benchmarks/similarity_speed.py [--images 1000 --captions 5000 --dim 256]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gaussmatch as gm
from gaussmatch.core.similarities import SIMILARITIES


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.size = max(self.size, out.numel() * out.element_size())
        return out


def best(f: Callable[[], object], g: Callable[[], object], repeats: int = 5) -> tuple[float, float]:
    """Shortest time of each, taken in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for kept, call in zip(times, (f, g), strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--captions", type=int, default=5000)
    parser.add_argument("--dim", type=int, default=256)
    options = parser.parse_args()
    n, m, dim = options.images, options.captions, options.dim
    torch.manual_seed(0)
    images, captions = (
        gm.Gaussian(torch.randn(k, dim) / dim**0.5, 4.6 * torch.rand(k, dim) - 2.3) for k in (n, m)
    )
    print(f"{n} × {m}, D = {dim}, {torch.get_num_threads()} threads")
    print(f"{'similarity':22}{'width':>8}{'ratio':>8}{'largest tensor':>18}")
    for name, kind in SIMILARITIES.items():
        if kind.no_lift is not None:
            continue
        s = gm.similarity(name)
        lifted = list(
            zip(
                (a.double() for a in s.lift_images(images)),
                (b.double() for b in s.lift_captions(captions)),
                strict=True,
            )
        )
        ours, bare = best(
            lambda s=s: s.matrix(images, captions),
            lambda lifted=lifted: [a @ b.T for a, b in lifted],
        )
        with Largest() as seen:
            s.matrix(images, captions)
        width = sum(a.shape[1] for a, _ in lifted)
        print(f"{name:22}{width:>8}{ours / bare:>8.2f}{seen.size / 2**20:>14.0f} MiB")


if __name__ == "__main__":
    main()
