"""Which device the networks of this process, and of those that it starts, run on."""

from __future__ import annotations

import os

import torch

VARIABLE = "GAUSSMATCH_DEVICE"
"""Set by ``--device`` and inherited by workers. If it is set, ``auto`` means this device."""


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
    if name == "auto":
        name = os.environ.get(VARIABLE) or next(name for name, number in there.items() if number)
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


def use_device(name: str) -> torch.device:
    """From now on models are loaded onto this device, unless another one is named."""
    device = choose_device(name)
    os.environ[VARIABLE] = str(device)
    return device


def default_device() -> torch.device:
    """What ``use_device`` chose; the CPU in a program that has not called it."""
    return torch.device(os.environ.get(VARIABLE) or "cpu")
