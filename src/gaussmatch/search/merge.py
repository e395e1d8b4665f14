"""Several indexes of one model become one, wherever they are kept."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing

from tqdm import tqdm

from gaussmatch.search.backend import BUILDING
from gaussmatch.search.backends import Place, backend_of
from gaussmatch.search.index import Index
from gaussmatch.search.joined import check_one_model
from gaussmatch.search.manifest import GALLERIES, IndexSettings


def merge(
    place: Place,
    sources: Sequence[Place],
    *,
    settings: IndexSettings | None = None,
    replace: bool = False,
    progress: bool = True,
) -> Index:
    """A new index with the items of all. The sources stay as they are; what is damaged in them is
    named, and nothing is made.

    Args:
        settings: those of the first if not given.
        replace: of two items with one id the later takes the place of the earlier; otherwise
            they are refused.
    """
    if not sources:
        raise ValueError("no indexes to merge")
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(Index.open(source))) for source in sources]
        check_one_model(opened)
        for source in opened:
            source.verify()
        with backend_of(place).building(os.fspath(place)) as work:
            merged = stack.enter_context(closing(_create(work, opened, settings)))
            merged.note_source({BUILDING: [source.place for source in opened]})
            _fill(merged, opened, replace, progress)
            _note_source(merged, opened)
    return Index.open(place)


def backup(place: Place, source: Place, *, progress: bool = True) -> Index:
    """A copy of an index at a new place, as it is at one moment, also while others write to it.
    Damage is named, and then nothing is made. To restore is to copy a backup back."""
    with closing(Index.open(source)) as index:
        if backend_of(place) is type(index.backend) and index.backend.copy(os.fspath(place)):
            return Index.open(place)
    return merge(place, [source], progress=progress)


def _create(target: Place, opened: Sequence[Index], settings: IndexSettings | None) -> Index:
    first = opened[0]
    calibrations = [source.calibration for source in opened]
    return Index.with_model(
        target,
        first.run_folder,
        first.similarity,
        settings or first.settings,
        next((c for c in calibrations if c.about), calibrations[0]),
    )


def _fill(merged: Index, opened: Sequence[Index], replace: bool, progress: bool) -> None:
    total = sum(len(source) for source in opened)
    with tqdm(total=total, desc="merge", unit="item", disable=not progress) as bar:
        for source in opened:
            for gallery in GALLERIES:
                for gaussians, records in source.blocks(gallery):
                    merged.add(gaussians, records, gallery, replace=replace)
                    bar.update(len(records))
    merged.compact()


def _note_source(merged: Index, opened: Sequence[Index]) -> None:
    """The folder of photos is that of the parts, if it is one: then it can be updated."""
    first, *others = (source.manifest.source for source in opened)
    merged.note_source(first if first and all(o == first for o in others) else {})
