"""Several indexes of one model become one, wherever they are: in folders or in Milvus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from tqdm import tqdm

from gaussmatch.index.index import Index
from gaussmatch.index.layout import GALLERIES, alone, discard
from gaussmatch.index.opening import Place, create_index, existing_index, in_milvus, open_index
from gaussmatch.index.settings import Settings

MERGING = "merging"
"""Note in the manifest of an index in Milvus that is not whole yet."""


def merge(
    path: Place,
    sources: Sequence[Place],
    *,
    settings: Settings | None = None,
    replace: bool = False,
    progress: bool = True,
) -> Index:
    """A new index with the items of all. The sources stay as they are.

    A merged folder takes its name when it is whole. In Milvus it is there under its name from the
    start; what a killed merge left is removed by the next one of that name.

    Args:
        settings: those of the first if not given.
        replace: of two items with one id the later takes the place of the earlier; otherwise
            they are refused.
    """
    if not sources:
        raise ValueError("no indexes to merge")
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(open_index(source))) for source in sources]
        _check_one_model(opened)
        if in_milvus(path):
            return _into_milvus(path, opened, settings, replace, progress)
        return _into_folder(Path(path), opened, settings, replace, progress)


def _into_folder(
    target: Path, opened: Sequence[Index], settings: Settings | None, replace: bool, progress: bool
) -> Index:
    work = target.with_name(f".{target.name}.merging")
    with alone(target.with_name(f".{target.name}.merging.lock")):
        if target.exists():
            raise FileExistsError(f"{target} exists; choose another folder for the merged index")
        discard(work)  # of a merge that was killed
        try:
            merged = _create(work, opened, settings)
            _fill(merged, opened, replace, progress)
            _note_source(merged, opened)
            os.rename(work, target)
        except BaseException:
            discard(work)
            raise
    return Index.open(target)


def _into_milvus(
    target: Place, opened: Sequence[Index], settings: Settings | None, replace: bool, progress: bool
) -> Index:
    from gaussmatch.index.milvus import MilvusIndex

    there = existing_index(target)
    if there is not None:
        if len(there) and MERGING not in (there.manifest.source or {}):
            there.close()
            raise FileExistsError(f"{there.place} is an index already; choose another name")
        assert isinstance(there, MilvusIndex)
        there.drop()
    merged = _create(target, opened, settings)
    assert isinstance(merged, MilvusIndex)
    try:
        merged.note_source({MERGING: [source.place for source in opened]})
        _fill(merged, opened, replace, progress)
        _note_source(merged, opened)
    except ValueError:  # refused: nothing of it stays
        merged.drop()
        raise
    except BaseException:
        merged.close()
        raise
    return merged


def _create(target: Place, opened: Sequence[Index], settings: Settings | None) -> Index:
    first = opened[0]
    calibrations = [source.calibration for source in opened]
    merged = create_index(
        target,
        first.run_folder,
        similarity=None if first.manifest.run else first.manifest.similarity,
        settings=settings or first.settings,
        calibration=next((c for c in calibrations if c.about), calibrations[0]),
    )
    if merged.manifest.run != first.manifest.run:
        raise ValueError(
            f"{first.place}: its model is not the one that it was made with; restore it or make "
            "the index again"
        )
    return merged


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


def _check_one_model(opened: Sequence[Index]) -> None:
    first = opened[0]
    for other in opened[1:]:
        a, b = ((i.manifest.run, i.manifest.similarity, i.manifest.form) for i in (first, other))
        if a[:2] != b[:2] or (a[2] and b[2] and a[2] != b[2]):
            raise ValueError(
                f"{other.place} was made with another model than {first.place}: their Gaussians "
                "cannot be compared; index its items again with one of the models"
            )
