"""Several indexes of one model become one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.index import Index
from gaussmatch.index.items import Record
from gaussmatch.index.layout import CALIBRATION, GALLERIES, RUN
from gaussmatch.index.segment import Segment
from gaussmatch.index.settings import Settings

BLOCK = 20_000  # items copied at a time


def merge(
    path: str | os.PathLike[str],
    sources: Sequence[str | os.PathLike[str]],
    *,
    settings: Settings | None = None,
    replace: bool = False,
) -> Index:
    """A new index with the items of all. The sources stay as they are.

    Args:
        settings: those of the first if not given.
        replace: of two items with one id the later takes the place of the earlier; otherwise
            they are refused.
    """
    opened = [Index.open(source) for source in sources]
    if not opened:
        raise ValueError("no indexes to merge")
    first = opened[0]
    for other in opened[1:]:
        a, b = ((i.manifest.run, i.manifest.similarity, i.manifest.form) for i in (first, other))
        if a[:2] != b[:2] or (a[2] and b[2] and a[2] != b[2]):
            raise ValueError(
                f"{other.path} was made with another model than {first.path}: their Gaussians "
                "cannot be compared; index its items again with one of the models"
            )
    target = Path(path)
    if target.exists():
        raise FileExistsError(f"{target} exists; choose another folder for the merged index")
    work = target.with_name(f".{target.name}.merging")  # takes its name when it is whole
    shutil.rmtree(work, ignore_errors=True)
    merged = Index.create(
        work,
        first.path / RUN if first.manifest.run else None,
        similarity=None if first.manifest.run else first.manifest.similarity,
        settings=settings or first.settings,
    )
    shutil.copyfile(first.path / CALIBRATION, work / CALIBRATION)
    for source in opened:
        for gallery in GALLERIES:
            for segment in source.segments(gallery):
                _copy(segment, merged, replace)
    merged.compact()
    os.rename(work, target)
    return Index.open(target)


def _copy(segment: Segment, merged: Index, replace: bool) -> None:
    waiting: list[tuple[int, Record]] = []

    def flush() -> None:
        if waiting:
            rows = [row for row, _ in waiting]
            g: Gaussian = segment.gaussians(np.array(rows))
            merged.add(g, [r for _, r in waiting], segment.gallery, replace=replace)
            waiting.clear()

    for row, record in segment.items.all(thumbnails=True):
        if segment.dead is None or not segment.dead[row]:
            waiting.append((row, record))
        if len(waiting) >= BLOCK:
            flush()
    flush()
