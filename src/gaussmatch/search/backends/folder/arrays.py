"""Arrays on disk: opened by memory mapping, gone through in blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

WHOLE = 32 * 2**20
"""Bytes of a file up to which it is read, so that whoever cuts it while it is open does no harm: to
read beyond the end of a map ends the process."""


def is_large(path: Path) -> bool:
    """Whether a file is mapped, not read."""
    return path.stat().st_size > WHOLE


def mapped(path: Path, rows: int | None = None) -> np.ndarray:
    """An array that is read on access, unless it is small; a wrong number of rows is refused."""
    mode: Literal["r"] | None = "r" if is_large(path) else None
    try:
        array: np.ndarray = np.load(path, mmap_mode=mode, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy parses a damaged header as Python
        raise ValueError(
            f"{path}: not a whole array ({error}); restore the index or make it again"
        ) from error
    if rows is not None and len(array) != rows:
        raise ValueError(f"{path}: {len(array)} rows, but {rows} were written")
    return array.view(np.ndarray)  # indexing a memmap is slow


def as_tensor(array: np.ndarray) -> Tensor:
    """A float32 array as a tensor in the same memory. It may be mapped for reading, of which torch
    would warn: nothing may be written to it."""
    memory = (ctypes.c_float * array.size).from_address(array.ctypes.data)
    return torch.frombuffer(memory, dtype=torch.float32).view(array.shape)


def blocks(total: int, size: int = 4096) -> Iterator[slice]:
    """Slices of at most ``size`` that make up ``total``.

    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
