"""Fill an index: from the split of a data set, or from a folder of photos.

Both go on where they were stopped: what is in the index and has not changed is not encoded again.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image
from tqdm import tqdm

from gaussmatch.data import folder as tables
from gaussmatch.data.pairs import Pairs
from gaussmatch.data.pictures import open_picture
from gaussmatch.gaussian import Gaussian
from gaussmatch.index.index import Index
from gaussmatch.index.items import Record
from gaussmatch.index.layout import Gallery

PHOTOS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
THUMBNAIL = 256  # pixels of the longer side
COMMIT = 1024
"""Items after which they count: what a kill can lose."""

T = TypeVar("T")


@dataclass(frozen=True)
class Changes:
    """What an update did."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    skipped: Sequence[str] = ()


def thumbnail(picture: Image.Image) -> bytes:
    """A small JPEG."""
    small = picture.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=85)
    return out.getvalue()


def index_pairs(index: Index, pairs: Pairs, split: str, *, progress: bool = True) -> None:
    """All images of a split, and all its captions.

    Ids are ``NAME/17`` for an image and ``NAME/17#2`` for a caption; an image carries its captions
    as metadata, a caption the id of its image.
    """
    image_of = pairs.image_of.tolist()
    texts: dict[int, list[int]] = {}
    for caption, image in enumerate(image_of):
        texts.setdefault(image, []).append(caption)
    here = {caption: k for captions in texts.values() for k, caption in enumerate(captions)}

    def images(numbers: Sequence[int]) -> tuple[Gaussian, list[Record]]:
        g = index.model.encode_images(np.stack([pairs.images[i] for i in numbers]))
        records = []
        for i in numbers:
            picture = pairs.images.picture(i)
            meta = {"split": split, "captions": [pairs.captions[c] for c in texts.get(i, [])]}
            small = None if picture is None else thumbnail(picture)
            records.append(Record(f"{pairs.name}/{i}", meta, small))
        return g, records

    def captions(numbers: Sequence[int]) -> tuple[Gaussian, list[Record]]:
        said = [pairs.captions[c] for c in numbers]
        records = [
            Record(
                f"{pairs.name}/{image_of[c]}#{here[c]}",
                {"split": split, "caption": text, "image": f"{pairs.name}/{image_of[c]}"},
            )
            for c, text in zip(numbers, said, strict=True)
        ]
        return index.model.encode_texts(said, allow_unknown=True), records

    held = {record.id for record in index.records("images")}
    missing = [i for i in range(len(pairs.images)) if f"{pairs.name}/{i}" not in held]
    _fill(index, "images", missing, images, progress)
    held = {record.id for record in index.records("captions")}
    missing = [
        c for c in range(len(pairs.captions)) if f"{pairs.name}/{image_of[c]}#{here[c]}" not in held
    ]
    _fill(index, "captions", missing, captions, progress)
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

    An id is the path of the file from the folder on. Items that came from elsewhere stay.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of photos")
    rows = _rows(folder)
    files = dict(_photos(folder))
    said = {name: [row.caption for row in some] for name, some in _grouped(folder, rows).items()}
    marks = {name: _mark(path, said.get(name, [])) for name, path in files.items()}
    known = {r.id: r.source for r in index.records("images") if r.source is not None}
    gone = [name for name in known if name not in files]
    todo = [name for name, mark in marks.items() if known.get(name) != mark]
    if not files and not known:
        raise ValueError(f"{folder}: no photos ({', '.join(PHOTOS)})")
    skipped: list[str] = []

    def images(names: Sequence[str]) -> tuple[Gaussian, list[Record]] | None:
        pictures, kept = [], []
        for name in names:
            try:
                pictures.append(open_picture(files[name]))
                kept.append(name)
            except ValueError as error:
                if not skip_unreadable:
                    raise
                warnings.warn(f"left out: {error}", stacklevel=2)
                skipped.append(name)
        if not kept:
            return None
        records = [
            Record(n, _meta(n, said.get(n)), thumbnail(p), marks[n])
            for n, p in zip(kept, pictures, strict=True)
        ]
        return index.model.encode_images(pictures), records

    _fill(index, "images", todo, images, progress, batch=16)
    index.delete([*gone, *(name for name in skipped if name in known)], missing_ok=True)
    _update_captions(index, {n: said[n] for n in files if n in said and n not in skipped}, progress)
    index.note_source({"folder": str(folder.resolve())})
    index.compact()
    changed = sum(name in known for name in todo if name not in skipped)
    return Changes(len(todo) - len(skipped) - changed, changed, len(gone), skipped)


def _update_captions(index: Index, said: dict[str, list[str]], progress: bool) -> None:
    wanted = {f"{name}#{k}": (name, t) for name, texts in said.items() for k, t in enumerate(texts)}
    known = {r.id: r.source for r in index.records("captions") if r.source is not None}
    todo = [id_ for id_, (_, text) in wanted.items() if known.get(id_) != text]

    def captions(ids: Sequence[str]) -> tuple[Gaussian, list[Record]]:
        records = [
            Record(id_, {"caption": wanted[id_][1], "image": wanted[id_][0]}, None, wanted[id_][1])
            for id_ in ids
        ]
        texts = [wanted[id_][1] for id_ in ids]
        return index.model.encode_texts(texts, allow_unknown=True), records

    _fill(index, "captions", todo, captions, progress)
    index.delete([id_ for id_ in known if id_ not in wanted], "captions")


def _fill(
    index: Index,
    gallery: Gallery,
    todo: Sequence[T],
    encode: Callable[[Sequence[T]], tuple[Gaussian, list[Record]] | None],
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


def _photos(folder: Path) -> Iterator[tuple[str, Path]]:
    """(id, path) of every photo below a folder, by name; hidden files and folders are left out."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.suffix.lower() in PHOTOS and not any(part[0] == "." for part in name.parts):
            yield name.as_posix(), path


def _rows(folder: Path) -> list[tables.Row]:
    try:
        table = tables.find_table(folder)
    except ValueError:
        return []
    return list(tables.rows(table))


def _grouped(folder: Path, rows: Sequence[tables.Row]) -> dict[str, list[tables.Row]]:
    """The rows of each photo, under its id."""
    found: dict[str, list[tables.Row]] = {}
    for row in rows:
        path = tables.find_image(folder, row.image)
        found.setdefault(path.relative_to(folder).as_posix(), []).append(row)
    return found


def _meta(name: str, captions: Sequence[str] | None) -> dict[str, object]:
    where: dict[str, object] = {"file": name, "folder": str(Path(name).parent.as_posix())}
    return {**where, "captions": list(captions)} if captions else where


def _mark(path: Path, captions: Sequence[str]) -> str:
    """What changes when the file or what is said of it changes."""
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}:{'|'.join(captions)}"
