"""What the files of a data set say, before any picture is read: photos, captions, splits.

Every reader of a file layout returns a ``Listing``; from there on all data sets are alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gaussmatch.core.metrics.ranking import Relevance
from gaussmatch.data.pairs import SPLITS, DataSet, ImageSource, Pairs, Region
from gaussmatch.files import read_json

_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "restval"), "train"),
    **dict.fromkeys(("dev", "val", "valid", "validation"), "dev"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True)
class Caption:
    """A caption with the name that its publisher gave it; ``place`` is the file and the line, or
    the entry, that it stands in."""

    id: str
    text: str
    place: str = ""


@dataclass(frozen=True)
class Photo:
    """An image file with its captions.

    Args:
        id: the publisher's name of the image: a file name, or COCO's number.
        path: where the file should be.
        captions: one or more.
        classes: names of the objects in it, where the data set knows.
        regions: boxes with captions of their own, where the data set knows.
        size: width and height that the boxes are in, if not the file's own.
    """

    id: str
    path: Path
    captions: tuple[Caption, ...]
    classes: frozenset[str] = frozenset()
    regions: tuple[Region, ...] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Listing:
    """A data set as its files describe it.

    Args:
        name: for messages, such as ``"flickr8k"``.
        splits: photos of train, dev and test, in the order of the files.
        notes: what a user should know: orphans, photos in no split.
        also_true: (caption id, photo id): further pairs that people judged to match.
        classes: all object classes, where the data set has them.
    """

    name: str
    splits: dict[str, list[Photo]]
    notes: list[str] = field(default_factory=list)
    also_true: frozenset[tuple[str, str]] = frozenset()
    classes: tuple[str, ...] = ()

    @property
    def photos(self) -> list[Photo]:
        return [photo for photos in self.splits.values() for photo in photos]

    def check_files(self, hint: str = "see 'gaussmatch data check'") -> None:
        """Refuse a listing whose photos are not all there."""
        missing = [p.path for p in self.photos if not p.path.is_file()]
        if missing:
            raise FileNotFoundError(
                f"{missing[0]}: no such image ({len(missing):,} of {len(self.photos):,} are "
                f"missing); {hint}"
            )


def assemble(
    listing: Listing,
    images: Callable[[str, Sequence[Photo]], ImageSource],
    dev_images: int | None = None,
) -> DataSet:
    """The data set of a listing; ``images`` gives the pixels or features of a split's photos.

    Args:
        dev_images: validate on this many images of dev only, the first ones.
    """
    chosen = {name: listing.splits.get(name, []) for name in SPLITS}
    if dev_images is not None:
        chosen["dev"] = chosen["dev"][:dev_images]
    for name, photos in chosen.items():
        if not photos:
            raise ValueError(f"{listing.name}: the split {name!r} has no images")
    train, dev, test = (pairs_of(listing, n, p, images(n, p)) for n, p in chosen.items())
    return DataSet(listing.name, train, dev, test, notes=tuple(listing.notes))


def pairs_of(listing: Listing, split: str, photos: Sequence[Photo], source: ImageSource) -> Pairs:
    """One split of a listing; an empty caption is refused, and its place named."""
    captions = [caption for photo in photos for caption in photo.captions]
    for photo in photos:
        for caption in photo.captions:
            if not caption.text:
                raise ValueError(
                    f"{listing.name}: {caption.place}: the caption of {photo.id} is empty; write "
                    "one or remove it ('gaussmatch data check' lists all of them)"
                )
    image_of = [i for i, photo in enumerate(photos) for _ in photo.captions]
    classes = None
    if listing.classes:
        classes = torch.tensor([[c in p.classes for c in listing.classes] for p in photos])
    regions = [p.regions for p in photos]
    return Pairs(
        name=f"{listing.name}/{split}",
        images=source,
        captions=[caption.text for caption in captions],
        image_of=torch.tensor(image_of),
        classes=classes,
        regions=regions if any(regions) else None,
        relevance=_relevance(listing, photos, captions, image_of) if split != "train" else None,
        ids=([photo.id for photo in photos], [caption.id for caption in captions]),
        class_names=listing.classes,
    )


def _relevance(
    listing: Listing, photos: Sequence[Photo], captions: Sequence[Caption], image_of: list[int]
) -> Relevance | None:
    """Own pairs and those that people judged to match; ``None`` where nobody judged."""
    row = {caption.id: i for i, caption in enumerate(captions)}
    column = {photo.id: i for i, photo in enumerate(photos)}
    more = [(row[c], column[p]) for c, p in listing.also_true if c in row and p in column]
    if not more:
        return None
    return Relevance.from_pairs(
        [*range(len(captions)), *(c for c, _ in more)],
        [*image_of, *(p for _, p in more)],
        queries=len(captions),
        gallery=len(photos),
    )


def split_name(word: str, place: str) -> str:
    """``train``, ``dev`` or ``test`` from a publisher's word for it; ``place`` is for the error."""
    try:
        return _SPLIT_NAMES[word.strip().lower()]
    except KeyError:
        raise ValueError(f"{place}: no split {word!r}; write train, dev or test") from None


def fields_of(record: Any, place: str, *names: str) -> tuple[Any, ...]:
    """Some fields of a JSON record; ``place`` is for the error if one is missing."""
    for name in names:
        if not isinstance(record, dict) or name not in record:
            raise ValueError(f"{place}: no field {name!r}")
    return tuple(record[name] for name in names)


def cut(
    photos: Iterable[Photo], shares: tuple[float, float] = (0.1, 0.1)
) -> dict[str, list[Photo]]:
    """A split for data without one: the same for the same names on every machine.

    Photos are ordered by the hash of their id; the first share is test, the second dev, each at
    least one photo.
    """
    order = sorted(photos, key=lambda p: hashlib.sha256(p.id.encode()).digest())
    test, dev = (max(1, round(share * len(order))) for share in shares)
    if len(order) < test + dev + 1:
        raise ValueError(f"{len(order)} photos are too few for train, dev and test")
    return {"train": order[test + dev :], "dev": order[test : test + dev], "test": order[:test]}


@dataclass(frozen=True)
class KarpathyEntry:
    """One image of the file."""

    place: str
    filename: str
    split: str
    captions: tuple[Caption, ...]
    coco_id: int | None


def karpathy_entries(path: Path, most: int | None = None) -> Iterator[KarpathyEntry]:
    """All images; ``most`` keeps the first captions of each."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        raise ValueError(f"{path}: no list 'images'; this is not one of Karpathy's files")
    for i, image in enumerate(content["images"]):
        place = f"{path}, image {i}"
        name, split, said = fields_of(image, place, "filename", "split", "sentences")
        sentences = (fields_of(sentence, place, "sentid", "raw") for sentence in said[:most])
        captions = tuple(
            Caption(str(id_), " ".join(raw.split()), f"{path.name}, sentence {id_}")
            for id_, raw in sentences
        )
        yield KarpathyEntry(place, name, split_name(split, place), captions, image.get("cocoid"))


def read_karpathy(path: Path, name: str, find: Callable[[str], Path]) -> Listing:
    """The listing of such a file; ``find`` gives the path of an image by its file name."""
    splits: dict[str, list[Photo]] = {split: [] for split in SPLITS}
    for entry in karpathy_entries(path):
        photo = Photo(entry.filename, find(entry.filename), entry.captions)
        splits[entry.split].append(photo)
    return Listing(name, splits)
