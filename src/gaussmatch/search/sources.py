"""Where the items of an index come from: the split of a data set, or a folder of photos; and how
they get into it.

Both go on where they were stopped: what is in the index and has not changed is not encoded again.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol

from PIL import Image
from tqdm import tqdm

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data import folder as tables
from gaussmatch.data.pairs import SPLITS, Pairs, read_images, read_texts
from gaussmatch.data.pictures import SUFFIXES, jpeg, named, read_picture
from gaussmatch.models.features import load_data
from gaussmatch.models.model import Model
from gaussmatch.search.backend import Block, batched
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import GALLERIES, Gallery, Record, encodable
from gaussmatch.search.near import sketch

THUMBNAIL = 256  # pixels of the longer side
DECODERS, AT_ONCE = 2, 4
"""Threads that decode photos, and photos that go through the network together."""
READ = "exif"
"""What is read of a photo; an index that has read less is brought up to date by ``update``."""
IGNORED = {
    "RAW": (
        "raw data of the sensor; export it as JPEG",
        ".3fr .arw .cr2 .cr3 .crw .dng .erf .iiq .kdc .mef .mrw .nef .nrw .orf .pef .raf .raw "
        ".rw2 .rwl .sr2 .srf .srw .x3f",
    ),
    "videos": (
        "only photos are indexed",
        ".3gp .avi .flv .m2ts .m4v .mkv .mov .mp4 .mpeg .mpg .mts .ogv .webm .wmv",
    ),
    "other pictures": (
        "the format is not read; export as JPEG",
        ".ai .cdr .eps .jp2 .jxl .pdf .psb .psd .svg .xcf",
    ),
}
"""Files beside photos that are counted and not indexed: why, and how they end."""

Encoded = Block | None
"""Items, or ``None`` if none of those requested could be read."""


class ItemSource(Protocol):
    """Items in a fixed order, by id. ``batch`` images are in memory at once; ``skipped`` has the
    ids of those that could not be read, each with the reason."""

    name: str
    batch: int
    skipped: dict[str, str]

    def ids(self, gallery: Gallery) -> Sequence[str]: ...
    def content(self, gallery: Gallery) -> Sequence[str]:
        """What differs between an item and a new one with the same id."""

    def encode(self, model: Model, gallery: Gallery, ids: Sequence[str]) -> Encoded: ...


class SplitSource:
    """All images of a split, and all its captions.

    Ids are ``NAME/17`` for an image and ``NAME/17#2`` for a caption; an image carries its captions
    as metadata, a caption the id of its image.
    """

    batch = 256

    def __init__(self, pairs: Pairs, split: str) -> None:
        self.pairs, self.split, self.name = pairs, split, pairs.name
        self.skipped: dict[str, str] = {}
        self._said: dict[str, list[int]] = {
            f"{self.name}/{i}": [] for i in range(len(pairs.images))
        }
        self._captions: dict[str, tuple[int, str]] = {}
        for caption, number in enumerate(pairs.image_of.tolist()):
            image = f"{self.name}/{number}"
            self._captions[f"{image}#{len(self._said[image])}"] = caption, image
            self._said[image].append(caption)
        self._ids = {"images": [*self._said], "captions": [*self._captions]}

    def ids(self, gallery: Gallery) -> Sequence[str]:
        return self._ids[gallery]

    def content(self, gallery: Gallery) -> Sequence[str]:
        return [] if gallery == "images" else self.pairs.captions

    def encode(self, model: Model, gallery: Gallery, ids: Sequence[str]) -> Encoded:
        about, texts = {"split": self.split}, self.pairs.captions
        if gallery == "images":
            numbers = [int(id_.rpartition("/")[2]) for id_ in ids]
            pictures = map(self.pairs.images.picture, numbers)
            small = [None if picture is None else thumbnail(picture) for picture in pictures]
            said = [[texts[c] for c in self._said[id_]] for id_ in ids]
            both = zip(ids, said, small, strict=True)
            images = [Record(id_, {**about, "captions": own}, jpeg) for id_, own, jpeg in both]
            return model.encode_images(read_images(self.pairs, numbers)), images
        found = {id_: self._captions[id_] for id_ in ids}
        captions = [
            Record(id_, {**about, "caption": texts[c], "image": image})
            for id_, (c, image) in found.items()
        ]
        read = read_texts(self.pairs, [c for c, _ in found.values()])
        return model.encode_texts(read, allow_unknown=True), captions


class PhotoSource:
    """Photos by id, each with what its file and its captions say of it (``pictures.Read``).

    A photo that cannot be read is skipped with the reason.

    Args:
        said: captions of some of them.
        marked: whether they have ``marks``, which change when a file, or what is said of it, does:
            ``update`` keeps photos without one, wherever they are.
        strict: stop at a photo that cannot be read.
    """

    batch = 16

    def __init__(
        self,
        name: str,
        files: Mapping[str, Path],
        said: Mapping[str, Sequence[str]] | None = None,
        *,
        marked: bool = True,
        strict: bool = False,
    ) -> None:
        self.name, self.strict = name, strict
        self.skipped: dict[str, str] = {}
        self.files = dict(files)
        for id_ in [id_ for id_ in self.files if not encodable(id_)]:
            self._skip(id_, f"{self.files.pop(id_)!r}", "its name is not UTF-8; rename the file")
        self.said = {id_: said[id_] for id_ in self.files if said and id_ in said}
        self.marks: dict[str, str] = {}
        if marked:
            self.marks = {i: _mark(path, self.said.get(i, [])) for i, path in self.files.items()}
        self.captions = {
            f"{id_}#{k}": (id_, text)
            for id_, texts in self.said.items()
            for k, text in enumerate(texts)
        }
        self._ids = {"images": [*self.files], "captions": [*self.captions]}

    def ids(self, gallery: Gallery) -> Sequence[str]:
        return self._ids[gallery]

    def content(self, gallery: Gallery) -> Sequence[str]:
        if gallery == "images":
            return [str(path.stat().st_size) for path in self.files.values()]
        return [text for _, text in self.captions.values()]

    def encode(self, model: Model, gallery: Gallery, ids: Sequence[str]) -> Encoded:
        """Photos are decoded by threads that run ahead of the network."""
        if gallery == "captions":
            said = [(id_, *self.captions[id_]) for id_ in ids]
            texts = [Record(i, {"caption": t, "image": name}, None, t) for i, name, t in said]
            return model.encode_texts([t for _, _, t in said], allow_unknown=True), texts
        gaussians: list[Gaussian] = []
        records: list[Record] = []
        with ThreadPoolExecutor(DECODERS) as pool:
            read = zip(ids, pool.map(self._read, ids), strict=True)
            while some := list(islice(read, AT_ONCE)):
                good = [found for _, found in some if not isinstance(found, str)]
                for id_, reason in some:
                    if isinstance(reason, str):
                        self._skip(id_, str(self.files[id_]), reason)
                if good:
                    gaussians.append(model.encode_images([picture for picture, _ in good]))
                    records += [record for _, record in good]
        return (Gaussian.cat(gaussians), records) if records else None

    def _read(self, id_: str) -> tuple[Image.Image, Record] | str:
        """A photo, or why it cannot be indexed."""
        path = self.files[id_]
        try:
            picture, _, said = read_picture(path)
            small = thumbnail(picture)
        except (ValueError, OSError) as error:
            return str(error).removeprefix(f"{path}: ")
        meta = {"file": id_, "folder": Path(id_).parent.as_posix(), **named(path, said)}
        if id_ in self.said:
            meta.pop("caption", None)
            meta["captions"] = list(self.said[id_])
        return picture, Record(id_, meta, small, self.marks.get(id_))

    def _skip(self, id_: str, path: str, reason: str) -> None:
        if self.strict:
            raise ValueError(f"{path}: {reason}")
        self.skipped[id_] = reason


class FolderSource(PhotoSource):
    """All photos below a folder, and the captions of its table (captions.csv, …) if there is one.

    An id is the path of the file from the folder on. ``ignored`` counts files that are not
    photos to index, by what they are and how they end: ``{("RAW", ".nef"): 12}``.
    """

    def __init__(self, root: str | os.PathLike[str], *, strict: bool = False) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise FileNotFoundError(f"{self.root}: no such folder of photos")
        files = dict(_visible(self.root))
        self.ignored = Counter(
            (what, ending)
            for ending in (path.suffix.lower() for path in files.values())
            for what, (_, endings) in IGNORED.items()
            if ending in endings.split()
        )
        photos = {id_: path for id_, path in files.items() if path.suffix.lower() in SUFFIXES}
        super().__init__(self.root.resolve().name, photos, captions_of(self.root), strict=strict)


def find_source(model: Model, text: str, *, strict: bool = False) -> ItemSource:
    """What a user names: ``train``, ``dev`` or ``test`` of the model's own data, or a folder."""
    if text in SPLITS:
        return SplitSource(load_data(model.recipe.data).split(text), text)
    if not Path(text).is_dir():
        raise FileNotFoundError(
            f"{text}: neither a folder of photos nor a split of the model's data "
            f"({', '.join(SPLITS)})"
        )
    source = FolderSource(text, strict=strict)
    check_photos(source)
    return source


def describe_source(source: ItemSource) -> dict[str, object]:
    """For ``Index.note_source``."""
    if isinstance(source, FolderSource):
        return {"folder": str(source.root.resolve())}
    return {"data": source.name}


def thumbnail(picture: Image.Image) -> bytes:
    """A small JPEG, which also says how the picture looks, see ``sketch_in``."""
    return jpeg(picture, THUMBNAIL, comment=sketch(picture))


def check_photos(source: FolderSource) -> None:
    """A clear error if a folder holds no photo: perhaps a disk that is not there."""
    if not source.files:
        beside = "".join(f"; {line}" for line in describe_ignored(source.ignored))
        raise ValueError(f"{source.root}: no photos ({', '.join(SUFFIXES)}){beside}")


def describe_ignored(ignored: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """What was not indexed, how much of it, and why.

    >>> next(describe_ignored({("RAW", ".nef"): 1200, ("RAW", ".dng"): 3}))
    '1,203 RAW (.dng, .nef): raw data of the sensor; export it as JPEG'
    >>> next(describe_ignored({("videos", ".mov"): 1}))
    '1 video (.mov): only photos are indexed'
    """
    for what, (reason, _) in IGNORED.items():
        endings = {ending: count for (of, ending), count in ignored.items() if of == what}
        if endings:
            count = sum(endings.values())
            name = what.removesuffix("s") if count == 1 else what
            yield f"{count:,} {name} ({', '.join(sorted(endings))}): {reason}"


def _visible(folder: Path) -> Iterator[tuple[str, Path]]:
    """(id, path) of every file below a folder, by name; hidden files and folders are left out."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not any(part[0] == "." for part in name.parts) and path.is_file():
            yield name.as_posix(), path


def captions_of(folder: Path | None) -> dict[str, list[str]]:
    """The captions of each photo of a folder, under its id. A table that is not called captions may
    be anything, and is left out if it holds none."""
    if folder is None:
        return {}
    try:
        table = tables.find_table(folder)
    except (ValueError, FileNotFoundError):
        return {}
    found: dict[str, list[str]] = {}
    try:
        for row in tables.rows(table):
            if not row.caption.strip():
                raise ValueError(f"{row.place}: the caption of {row.image} is empty; write one")
            path = tables.find_image(folder, row.image)
            if path.is_relative_to(folder):
                found.setdefault(path.relative_to(folder).as_posix(), []).append(row.caption)
    except ValueError as error:
        if table.stem.lower() == "captions":
            raise
        warnings.warn(f"not read as captions: {error}", stacklevel=2)
        return {}
    lost = [id_ for id_ in found if not (folder / id_).is_file()]
    if lost:
        warnings.warn(
            f"{table}: {len(lost):,} of its images are missing, such as {lost[0]}", stacklevel=2
        )
    return found


def _mark(path: Path, captions: Sequence[str]) -> str:
    """What changes when the file, or what is said of it, or what is read of it, changes."""
    stat = path.stat()
    return f"{READ}:{stat.st_size}:{stat.st_mtime_ns}:{json.dumps(list(captions))}"


COMMIT = 256
"""Items per commit: the most that an interruption can lose."""


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
        missing = [id_ for id_ in source.ids(gallery) if id_ not in held]
        _fill(index, source, gallery, missing, progress)
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
    _fill(index, source, "images", todo, progress)
    lost = [name for name in todo if name in source.skipped]
    gone += [name for name in lost if name in known]
    index.delete(gone, missing_ok=True)
    wanted = {i: text for i, (name, text) in source.captions.items() if name not in source.skipped}
    held = {r.id: r.source for r in index.records("captions") if r.source is not None}
    said = [id_ for id_, text in wanted.items() if held.get(id_) != text]
    _fill(index, source, "captions", said, progress)
    index.delete([id_ for id_ in held if id_ not in wanted], "captions")
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
            id_ = path.as_posix()
            taken = id_ in index and index.get(id_).source is not None  # by one of the folder
            outside[place.as_posix() if taken else id_] = path
    there = [id_ for id_ in (*inside, *outside) if id_ in index]
    if there and not replace:
        raise ValueError(f"{there[0]!r} is in the index already; encode it again with --replace")
    skipped: dict[str, str] = {}
    of_folder = PhotoSource("photos", inside, captions_of(folder))
    for source in (of_folder, PhotoSource("photos", outside, marked=False)):
        _fill(index, source, "images", source.ids("images"), progress)
        texts = [id_ for id_, (name, _) in source.captions.items() if name not in source.skipped]
        _fill(index, source, "captions", texts, progress)
        skipped |= source.skipped
    good = [id_ for id_ in (*inside, *outside) if id_ not in skipped]
    changed = sum(id_ in there for id_ in good)
    return Changes(len(good) - changed, changed, 0, skipped)


def _fill(
    index: Index, source: ItemSource, gallery: Gallery, todo: Sequence[str], progress: bool
) -> None:
    """Encode in batches; commit every ``COMMIT`` items and at the end."""
    waiting: list[Block] = []

    def commit() -> None:
        if waiting:
            records = [record for _, some in waiting for record in some]
            index.add(Gaussian.cat([g for g, _ in waiting]), records, gallery, replace=True)
            waiting.clear()

    size = source.batch if gallery == "images" else COMMIT
    with tqdm(total=len(todo), desc=f"index {gallery}", disable=not (progress and todo)) as bar:
        try:
            for some in batched(todo, size):
                found = source.encode(index.model, gallery, some)
                if found is not None:
                    waiting.append(found)
                bar.update(len(some))
                if sum(len(records) for _, records in waiting) >= COMMIT:
                    commit()
        finally:  # also what was encoded before an error or an interrupt counts
            commit()
