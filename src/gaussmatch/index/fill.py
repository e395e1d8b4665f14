"""Fill an index: from the split of a data set, or from a folder of photos.

Both go on where they were stopped: what is in the index and has not changed is not encoded again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tqdm import tqdm

from gaussmatch.data.pairs import Pairs
from gaussmatch.gaussian import Gaussian
from gaussmatch.index.index import Index
from gaussmatch.index.manifest import GALLERIES, Gallery
from gaussmatch.index.record import Record
from gaussmatch.index.sources import SUFFIXES, Encoded, FolderSource, SplitSource, thumbnail

__all__ = ["Changes", "index_pairs", "thumbnail", "update"]

COMMIT = 256
"""Items after which they count: what a kill can lose."""

T = TypeVar("T")


@dataclass(frozen=True)
class Changes:
    """What an update did."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    skipped: Sequence[str] = ()


def index_pairs(index: Index, pairs: Pairs, split: str, *, progress: bool = True) -> None:
    """All images of a split, and all its captions; see ``SplitSource``."""
    source = SplitSource(pairs, split)
    for gallery in GALLERIES:
        held = {record.id for record in index.records(gallery)}
        missing = [n for n, id_ in enumerate(source.ids(gallery)) if id_ not in held]
        _fill(index, gallery, missing, partial(source.encode, index.model, gallery), progress)
    index.compact()


def update(
    index: Index,
    root: str | os.PathLike[str],
    *,
    skip_unreadable: bool = False,
    progress: bool = True,
) -> Changes:
    """Make an index hold the photos of a folder as they are now: new and changed files are
    encoded, those that are gone are deleted. Captions of a table (captions.csv, …) come along.

    Items that came from elsewhere stay.
    """
    source = FolderSource(root, skip_unreadable=skip_unreadable)
    known = {r.id: r.source for r in index.records("images") if r.source is not None}
    gone = [name for name in known if name not in source.files]
    todo = [name for name, mark in source.marks.items() if known.get(name) != mark]
    if not source.files:  # perhaps a disk that is not there: nothing is deleted for that
        raise ValueError(f"{source.root}: no photos ({', '.join(SUFFIXES)})")
    _fill(index, "images", todo, partial(source.images, index.model), progress, source.batch)
    skipped = source.skipped
    index.delete([*gone, *(name for name in skipped if name in known)], missing_ok=True)
    _update_captions(index, source, progress)
    index.note_source({"folder": str(source.root.resolve())})
    index.compact()
    changed = sum(name in known for name in todo if name not in skipped)
    return Changes(len(todo) - len(skipped) - changed, changed, len(gone), skipped)


def _update_captions(index: Index, source: FolderSource, progress: bool) -> None:
    lost = set(source.skipped)
    wanted = {i: text for i, (name, text) in source.captions.items() if name not in lost}
    known = {r.id: r.source for r in index.records("captions") if r.source is not None}
    todo = [id_ for id_, text in wanted.items() if known.get(id_) != text]
    _fill(index, "captions", todo, partial(source.texts, index.model), progress)
    index.delete([id_ for id_ in known if id_ not in wanted], "captions")


def _fill(
    index: Index,
    gallery: Gallery,
    todo: Sequence[T],
    encode: Callable[[Sequence[T]], Encoded],
    progress: bool,
    batch: int = 256,
) -> None:
    """Encode in batches; commit every ``COMMIT`` items and at the end."""
    waiting: list[tuple[Gaussian, list[Record]]] = []

    def commit() -> None:
        if waiting:
            records = [record for _, some in waiting for record in some]
            index.add(Gaussian.cat([g for g, _ in waiting]), records, gallery, replace=True)
            waiting.clear()

    with tqdm(total=len(todo), desc=f"index {gallery}", disable=not progress) as bar:
        try:
            for start in range(0, len(todo), batch):
                some = todo[start : start + batch]
                found = encode(some)
                if found is not None:
                    waiting.append(found)
                bar.update(len(some))
                if sum(len(records) for _, records in waiting) >= COMMIT:
                    commit()
        finally:  # also what was encoded before an error or an interrupt counts
            commit()
