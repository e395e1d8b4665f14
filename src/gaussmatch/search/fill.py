"""Fill an index: from the split of a data set, or from a folder of photos.

Both go on where they were stopped: what is in the index and has not changed is not encoded again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.pairs import Pairs
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import GALLERIES, Gallery
from gaussmatch.search.record import Record
from gaussmatch.search.sources import (
    Encoded,
    FolderSource,
    PhotoSource,
    SplitSource,
    captions_of,
    check_photos,
    describe_source,
    thumbnail,
)

__all__ = ["Changes", "add_photos", "index_pairs", "thumbnail", "update"]

COMMIT = 256
"""Items per commit: the most that an interruption can lose."""

T = TypeVar("T")


@dataclass(frozen=True)
class Changes:
    """What an update did."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Photos that could not be read, and why."""
    ignored: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Files beside the photos, see ``FolderSource``."""


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
    strict: bool = False,
    delete_most: bool = False,
    progress: bool = True,
) -> Changes:
    """Make an index hold the photos of a folder as they are now: new and changed files are
    encoded, those that are gone are deleted. Captions of a table (captions.csv, …) come along.

    Items that came from elsewhere stay.

    Args:
        strict: stop at a photo that cannot be read, instead of skipping it with the reason.
        delete_most: go on where more than half of the photos are gone. Otherwise that is refused:
            a disk may be missing, or the folder be another one.
    """
    source = FolderSource(root, strict=strict)
    known = {r.id: r.source for r in index.records("images") if r.source is not None}
    gone = [name for name in known if name not in source.files]
    todo = [name for name, mark in source.marks.items() if known.get(name) != mark]
    check_photos(source)
    if 2 * len(gone) > len(known) and not delete_most:
        raise ValueError(
            f"{source.root}: {len(gone):,} of the {len(known):,} photos in {index.place} are not "
            "there; nothing is changed. If they are really gone, delete them with 'gaussmatch "
            f"index update {index.place} {source.root} --yes'"
        )
    if gone and "folder" not in (index.manifest.source or {}) and not delete_most:
        raise ValueError(
            f"{index.place} holds {len(gone):,} photos that are not in {source.root}, such as "
            f"{gone[0]}, and does not say where they came from (it was merged from several "
            "folders); nothing is changed. Update the index of each folder and merge again, or "
            f"delete them with 'gaussmatch index update {index.place} {source.root} --yes'"
        )
    index.note_source(describe_source(source), here=True)  # first: it must survive
    _fill(index, "images", todo, partial(source.images, index.model), progress, source.batch)
    lost = [name for name in todo if name in source.skipped]
    gone += [name for name in lost if name in known]
    index.delete(gone, missing_ok=True)
    _update_captions(index, source, progress)
    index.compact()
    changed = sum(name in known for name in todo if name not in source.skipped)
    added = len(todo) - len(lost) - changed
    return Changes(added, changed, len(gone), source.skipped, source.ignored)


def add_photos(
    index: Index, paths: Iterable[Path], *, replace: bool = False, progress: bool = True
) -> Changes:
    """Add single photos. One that lies in the folder of the index gets the id that ``update`` gives
    it, and its captions; any other one has its path for an id, as given unless a photo of the
    folder is called so, and stays when the folder is updated.

    Args:
        replace: encode those that are in the index again; otherwise they are refused.
    """
    home = (index.manifest.source or {}).get("folder")
    folder = None if home is None else Path(str(home))
    inside: dict[str, Path] = {}
    outside: dict[str, Path] = {}
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such photo")
        place = path.parent.resolve() / path.name  # a link has an id of its own
        if folder is not None and place.is_relative_to(folder):
            inside[place.relative_to(folder).as_posix()] = path
        else:
            outside[(place if _of_folder(index, path.as_posix()) else path).as_posix()] = path
    there = [id_ for id_ in (*inside, *outside) if id_ in index]
    if there and not replace:
        raise ValueError(f"{there[0]!r} is in the index already; encode it again with --replace")
    skipped: dict[str, str] = {}
    of_folder = PhotoSource("photos", inside, captions_of(folder))
    for source in (of_folder, PhotoSource("photos", outside, marked=False)):
        todo = source.ids("images")
        _fill(index, "images", todo, partial(source.images, index.model), progress, source.batch)
        texts = [id_ for id_, (name, _) in source.captions.items() if name not in source.skipped]
        _fill(index, "captions", texts, partial(source.texts, index.model), progress)
        skipped |= source.skipped
    good = [id_ for id_ in (*inside, *outside) if id_ not in skipped]
    changed = sum(id_ in there for id_ in good)
    return Changes(len(good) - changed, changed, 0, skipped)


def _of_folder(index: Index, id_: str) -> bool:
    """Whether the item that has this id came from the folder of the index."""
    return id_ in index and index.get(id_).source is not None


def _update_captions(index: Index, source: FolderSource, progress: bool) -> None:
    wanted = {i: text for i, (name, text) in source.captions.items() if name not in source.skipped}
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

    with tqdm(total=len(todo), desc=f"index {gallery}", disable=not (progress and todo)) as bar:
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
