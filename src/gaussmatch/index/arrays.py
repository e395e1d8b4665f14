"""Arrays on disk: opened by memory mapping, gone through in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np


def mapped(path: Path, rows: int | None = None) -> np.ndarray:
    """An array that is read when it is looked at; of so many rows, or it is refused."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(
            f"{path}: not a whole array ({error}); restore the index or make it again"
        ) from error
    if rows is not None and len(array) != rows:
        raise ValueError(f"{path}: {len(array)} rows, but {rows} were written")
    return array.view(np.ndarray)  # indexing a memmap is slow


def blocks(total: int, size: int = 4096) -> Iterator[slice]:
    """Slices of at most ``size`` that make up ``total``.

    >>> list(blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
