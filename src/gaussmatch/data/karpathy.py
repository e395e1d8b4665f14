"""Karpathy's ``dataset_*.json``: the split of COCO, Flickr30K and Flickr8k that everybody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gaussmatch.data.listing import Caption, Listing, Photo, fields_of, split_name
from gaussmatch.data.pairs import SPLITS
from gaussmatch.files import read_json


@dataclass(frozen=True)
class Entry:
    """One image of the file."""

    place: str
    filename: str
    split: str
    captions: tuple[Caption, ...]
    coco_id: int | None


def entries(path: Path, most: int | None = None) -> Iterator[Entry]:
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
        yield Entry(place, name, split_name(split, place), captions, image.get("cocoid"))


def read(path: Path, name: str, find: Callable[[str], Path]) -> Listing:
    """The listing of such a file; ``find`` gives the path of an image by its file name."""
    splits: dict[str, list[Photo]] = {split: [] for split in SPLITS}
    for entry in entries(path):
        photo = Photo(entry.filename, find(entry.filename), entry.captions)
        splits[entry.split].append(photo)
    return Listing(name, splits)
