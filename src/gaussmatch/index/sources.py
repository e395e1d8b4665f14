"""Where the items of an index come from: the split of a data set, or a folder of photos.

A source names its items in a fixed order and encodes any of them on demand, so that one process
can fill an index from it, or many can share the work.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from PIL import Image

from gaussmatch.data import folder as tables
from gaussmatch.data import load_data
from gaussmatch.data.batches import read_images, read_texts
from gaussmatch.data.pairs import Pairs
from gaussmatch.data.pictures import SUFFIXES, open_picture
from gaussmatch.gaussian import Gaussian
from gaussmatch.index.manifest import Gallery
from gaussmatch.index.record import Record, encodable
from gaussmatch.model import Model

SPLITS = ("train", "dev", "test")
THUMBNAIL = 256  # pixels of the longer side

Encoded = tuple[Gaussian, list[Record]] | None
"""Items, or ``None`` where none of those requested could be read."""


class ItemSource(Protocol):
    """Items in a fixed order.

    ``batch`` images go through the model at once; ``skipped`` are the ids of those that could not
    be read.
    """

    name: str
    batch: int
    skipped: list[str]

    def ids(self, gallery: Gallery) -> Sequence[str]: ...
    def encode(self, model: Model, gallery: Gallery, numbers: Sequence[int]) -> Encoded: ...


class SplitSource:
    """All images of a split, and all its captions.

    Ids are ``NAME/17`` for an image and ``NAME/17#2`` for a caption; an image carries its captions
    as metadata, a caption the id of its image.
    """

    batch = 256

    def __init__(self, pairs: Pairs, split: str) -> None:
        self.pairs, self.split, self.name = pairs, split, pairs.name
        self.skipped: list[str] = []
        self._image_of = pairs.image_of.tolist()
        self._texts: dict[int, list[int]] = {}
        for caption, image in enumerate(self._image_of):
            self._texts.setdefault(image, []).append(caption)
        self._here = {c: k for captions in self._texts.values() for k, c in enumerate(captions)}

    def ids(self, gallery: Gallery) -> Sequence[str]:
        if gallery == "images":
            return [self._image(i) for i in range(len(self.pairs.images))]
        return [f"{self._image(i)}#{self._here[c]}" for c, i in enumerate(self._image_of)]

    def encode(self, model: Model, gallery: Gallery, numbers: Sequence[int]) -> Encoded:
        if gallery == "images":
            g = model.encode_images(read_images(self.pairs, numbers))
            return g, [self._image_record(i) for i in numbers]
        said = [self.pairs.captions[c] for c in numbers]
        records = []
        for c, text in zip(numbers, said, strict=True):
            image = self._image(self._image_of[c])
            meta = {"split": self.split, "caption": text, "image": image}
            records.append(Record(f"{image}#{self._here[c]}", meta))
        return model.encode_texts(read_texts(self.pairs, numbers), allow_unknown=True), records

    def _image(self, number: int) -> str:
        return f"{self.pairs.name}/{number}"

    def _image_record(self, number: int) -> Record:
        picture = self.pairs.images.picture(number)
        said = [self.pairs.captions[c] for c in self._texts.get(number, [])]
        small = None if picture is None else thumbnail(picture)
        return Record(self._image(number), {"split": self.split, "captions": said}, small)


class FolderSource:
    """All photos below a folder, and the captions of its table (captions.csv, …) if there is one.

    An id is the path of the file from the folder on; ``marks`` show whether a file, or what is
    said of it, has changed.
    """

    batch = 16

    def __init__(self, root: str | os.PathLike[str], *, skip_unreadable: bool = False) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.root}: no such folder of photos")
        self.name, self.skip_unreadable = self.root.resolve().name, skip_unreadable
        self.skipped: list[str] = []
        self.files = dict(_photos(self.root))
        for name in [name for name in self.files if not encodable(name)]:
            if not skip_unreadable:
                raise ValueError(f"{self.root}: the name of {name!r} is not UTF-8; rename the file")
            warnings.warn(f"left out: {name!r}, as its name is not UTF-8", stacklevel=2)
            del self.files[name]
        said = _captions(self.root)
        self.said = {name: said[name] for name in self.files if name in said}
        self.marks = {n: _mark(path, self.said.get(n, [])) for n, path in self.files.items()}
        self.captions = {
            f"{name}#{k}": (name, t)
            for name, texts in self.said.items()
            for k, t in enumerate(texts)
        }
        self._names, self._caption_ids = list(self.files), list(self.captions)

    def ids(self, gallery: Gallery) -> Sequence[str]:
        return self._names if gallery == "images" else self._caption_ids

    def encode(self, model: Model, gallery: Gallery, numbers: Sequence[int]) -> Encoded:
        if gallery == "images":
            return self.images(model, [self._names[n] for n in numbers])
        return self.texts(model, [self._caption_ids[n] for n in numbers])

    def images(self, model: Model, names: Sequence[str]) -> Encoded:
        pictures, kept = [], []
        for name in names:
            try:
                pictures.append(open_picture(self.files[name]))
                kept.append(name)
            except ValueError as error:
                if not self.skip_unreadable:
                    raise
                warnings.warn(f"left out: {error}", stacklevel=2)
                self.skipped.append(name)
        if not kept:
            return None
        records = [
            Record(n, self._meta(n), thumbnail(p), self.marks[n])
            for n, p in zip(kept, pictures, strict=True)
        ]
        return model.encode_images(pictures), records

    def texts(self, model: Model, ids: Sequence[str]) -> Encoded:
        rows = [(id_, *self.captions[id_]) for id_ in ids]
        records = [Record(i, {"caption": t, "image": name}, None, t) for i, name, t in rows]
        return model.encode_texts([t for _, _, t in rows], allow_unknown=True), records

    def _meta(self, name: str) -> dict[str, object]:
        where: dict[str, object] = {"file": name, "folder": str(Path(name).parent.as_posix())}
        said = self.said.get(name)
        return {**where, "captions": list(said)} if said else where


def find_source(model: Model, text: str, *, skip_unreadable: bool = False) -> ItemSource:
    """What a user names: ``train``, ``dev`` or ``test`` of the model's own data, or a folder."""
    if text in SPLITS:
        return SplitSource(load_data(model.recipe.data).split(text), text)
    if not Path(text).is_dir():
        raise FileNotFoundError(
            f"{text}: neither a folder of photos nor a split of the model's data "
            f"({', '.join(SPLITS)})"
        )
    source = FolderSource(text, skip_unreadable=skip_unreadable)
    if not source.files:
        raise ValueError(f"{source.root}: no photos ({', '.join(SUFFIXES)})")
    return source


def describe_source(source: ItemSource) -> dict[str, object]:
    """For ``Index.note_source``."""
    if isinstance(source, FolderSource):
        return {"folder": str(source.root.resolve())}
    return {"data": source.name}


def thumbnail(picture: Image.Image) -> bytes:
    """A small JPEG."""
    small = picture.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=85)
    return out.getvalue()


def _photos(folder: Path) -> Iterator[tuple[str, Path]]:
    """(id, path) of every photo below a folder, by name; hidden files and folders are left out."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part[0] == "." for part in name.parts)
        if path.suffix.lower() in SUFFIXES and not hidden and path.is_file():
            yield name.as_posix(), path


def _captions(folder: Path) -> dict[str, list[str]]:
    """The captions of each photo, under its id."""
    try:
        table = tables.find_table(folder)
    except ValueError:
        return {}
    found: dict[str, list[str]] = {}
    for row in tables.rows(table):
        path = tables.find_image(folder, row.image)
        found.setdefault(path.relative_to(folder).as_posix(), []).append(row.caption)
    return found


def _mark(path: Path, captions: Sequence[str]) -> str:
    """What changes when the file or what is said of it changes."""
    stat = path.stat()
    return f"{stat.st_size}:{stat.st_mtime_ns}:{'|'.join(captions)}"
