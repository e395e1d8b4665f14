"""Where the networks of this process compute, and with how many threads; those that it starts run
on the same device."""

from __future__ import annotations

import os
import sys
import time

from gaussmatch.lazy import torch

VARIABLE = "GAUSSMATCH_DEVICE"
"""Set by ``--device`` and inherited by workers. If it names one, ``auto`` means this device."""
AUTO = "auto"
ROUNDS, PRODUCTS, WIDTH = 5, 20, 256
"""A trial: rounds of matrix products of this width, about a tenth of a second in all."""


def choose_device(name: str = "auto") -> torch.device:
    """The device by name; ``auto`` is the best available.

    >>> choose_device("cpu")
    device(type='cpu')
    >>> choose_device("gpu")
    Traceback (most recent call last):
    ValueError: unknown device 'gpu': choose cpu, cuda, cuda:1, mps, or auto for the best
    """
    there = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == AUTO:
        best = next(name for name, number in there.items() if number)
        name = os.environ.get(VARIABLE, AUTO).replace(AUTO, "") or best
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in there:
        raise ValueError(
            f"unknown device {name!r}: choose cpu, cuda, cuda:1, mps, or auto for the best"
        )
    if (device.index or 0) >= there[device.type]:
        raise ValueError(
            f"device {name!r}: torch finds {there[device.type] or 'no'} {device.type} device here; "
            "choose auto for the best available, or cpu"
        )
    return device


def use_device(name: str) -> None:
    """From now on models are loaded onto this device, unless another one is named. What ``auto``
    is only torch knows, so it is chosen when a model is loaded."""
    if name != AUTO:
        os.environ[VARIABLE] = str(choose_device(name))
    elif not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = AUTO


def default_device() -> torch.device:
    """What ``use_device`` chose; the CPU in a program that has not called it."""
    name = os.environ.get(VARIABLE) or "cpu"
    return choose_device() if name == AUTO else torch.device(name)


def on_cpu() -> bool:
    """Whether nobody has asked for another device than the CPU."""
    return os.environ.get(VARIABLE) in (None, "", AUTO, "cpu")


def use_threads(number: int | None = None) -> int:
    """Use ``number`` threads from now on, or as many as help; returns the number in use."""
    if number is not None and number < 1:
        raise ValueError(f"--threads must be at least 1, got {number}")
    if number is not None and "torch" not in sys.modules:  # which reads this when it is imported
        os.environ["OMP_NUM_THREADS"] = str(number)
        return number
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
