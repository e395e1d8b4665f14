"""The shards of an extraction, and how they become one array for each split."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gaussmatch.data.listing import Photo
from gaussmatch.data.stored import read_lines
from gaussmatch.files import atomic, write_text

UNREADABLE = "unreadable.txt"
"""Ids of the photos that were left out."""


def shard_files(name: str, photos: Sequence[Photo], out: Path, size: int) -> list[Path]:
    """Where the shards of a split are, ``size`` photos in each."""
    count = -(-len(photos) // size)
    return [out / "shards" / f"{name}-{size}-{i:05}.npz" for i in range(count)]


def is_of(path: Path, chunk: Sequence[Photo]) -> bool:
    """Whether a shard is there and of these photos (they may have changed since)."""
    if not path.is_file():
        return False
    with np.load(path) as shard:
        return bool(shard["ids"].tolist() == [photo.id for photo in chunk])


def check_same(name: str, photos: Sequence[Photo], out: Path) -> None:
    """Refuse a finished split whose photos are others than these."""
    lost = set(read_lines(out / UNREADABLE)) if (out / UNREADABLE).is_file() else set()
    if read_lines(out / f"{name}_ims_files.txt") != [p.id for p in photos if p.id not in lost]:
        raise ValueError(
            f"{out / f'{name}_ims_files.txt'}: the photos of {name} are others now; "
            "extract into a new folder with --out"
        )


def join(name: str, photos: Sequence[Photo], out: Path, size: int) -> bool:
    """One array of all shards of a split, row by row through a memory map."""
    target, files = out / f"{name}_ims.npy", shard_files(name, photos, out, size)
    if target.is_file():
        return True
    chunks = (photos[i : i + size] for i in range(0, len(photos), size))
    if not all(is_of(path, chunk) for path, chunk in zip(files, chunks, strict=True)):
        return False
    kept: list[int] = []
    shapes = []
    for i, path in enumerate(files):
        with np.load(path) as shard:
            kept += (i * size + shard["kept"]).tolist()
            shapes.append(shard["features"].shape)
    if not kept:
        raise ValueError(f"{out}: no photo of {name} could be read")
    _write_words(name, [photos[i] for i in kept], out)
    lost = sorted(set(range(len(photos))) - set(kept))
    if lost:
        with open(out / UNREADABLE, "a", encoding="utf-8") as file:
            file.writelines(f"{photos[i].id}\n" for i in lost)
    width = next(shape[1:] for shape in shapes if shape[0])
    with atomic(target) as temporary:
        array = np.lib.format.open_memmap(
            temporary, mode="w+", dtype=np.float16, shape=(len(kept), *width)
        )
        row = 0
        for path in files:
            with np.load(path) as shard:
                if len(shard["kept"]):
                    array[row : row + len(shard["kept"])] = shard["features"]
                    row += len(shard["kept"])
        array.flush()
        del array
    for path in files:
        path.unlink()
    if not os.listdir(out / "shards"):
        (out / "shards").rmdir()
    return True


def _write_words(name: str, photos: Sequence[Photo], out: Path) -> None:
    def lines(words: Sequence[object]) -> str:
        return "".join(f"{word}\n" for word in words)

    counts = [len(photo.captions) for photo in photos]
    write_text(out / f"{name}_ims_files.txt", lines([photo.id for photo in photos]))
    write_text(out / f"{name}_caps.txt", lines([c.text for p in photos for c in p.captions]))
    rows = [i for i, count in enumerate(counts) for _ in range(count)]
    write_text(out / f"{name}_rows.txt", lines(rows))
