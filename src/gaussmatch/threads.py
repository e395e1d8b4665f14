"""How many threads the arithmetic of this process uses."""

from __future__ import annotations

import os
import sys
import time

import torch

ROUNDS, PRODUCTS, WIDTH = 5, 20, 256
"""A trial: rounds of matrix products of this width, about a tenth of a second in all."""


def use_threads(number: int | None = None) -> int:
    """Use ``number`` threads from now on, or as many as help; returns the number in use."""
    if number is not None and number < 1:
        raise ValueError(f"--threads must be at least 1, got {number}")
    torch.set_num_threads(number or helpful_threads())
    return torch.get_num_threads()


def helpful_threads() -> int:
    """Torch's own number, or one where other work keeps the cores busy.

    The threads of an operation wait for the slowest of them. Beside other work that costs more than
    it gains: the demo fell from 5,000 to 50 pairs/s with two threads, and kept 900 with one. So
    both are tried in turn, and one thread is chosen if it is faster. ``OMP_NUM_THREADS``, if
    set, is left as it is.
    """
    most = torch.get_num_threads()
    if most == 1 or "OMP_NUM_THREADS" in os.environ:
        return most
    seconds = {1: 0.0, most: 0.0}
    for threads in (1, most) * ROUNDS:
        seconds[threads] += _trial(threads)
    torch.set_num_threads(most)
    if seconds[most] <= seconds[1]:
        return most
    if sys.stderr.isatty():  # elsewhere it would end up in a log, such as the service's JSON lines
        print("note: the cores are busy; using one thread (--threads N for more)", file=sys.stderr)
    return 1


def _trial(threads: int) -> float:
    torch.set_num_threads(threads)
    x = torch.ones(WIDTH, WIDTH)
    started = time.perf_counter()
    for _ in range(PRODUCTS):
        x @ x
    return time.perf_counter() - started
