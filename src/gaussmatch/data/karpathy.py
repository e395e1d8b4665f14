"""Karpathy's ``dataset_*.json``: the split of COCO, Flickr30K and Flickr8k that everybody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaussmatch.data.listing import SPLITS, Caption, Listing, Photo, split_name
from gaussmatch.files import read_json


@dataclass(frozen=True)
class Entry:
    """One image of the file."""

    place: str
    filename: str
    folder: str
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
        sentences = _need(image, "sentences", place)[:most]
        yield Entry(
            place,
            _need(image, "filename", place),
            image.get("filepath", ""),
            split_name(_need(image, "split", place), place),
            tuple(
                Caption(str(_need(s, "sentid", place)), " ".join(_need(s, "raw", place).split()))
                for s in sentences
            ),
            image.get("cocoid"),
        )


def read(path: Path, name: str, find: Callable[[str], Path]) -> Listing:
    """The listing of such a file; ``find`` gives the path of an image by its file name."""
    splits: dict[str, list[Photo]] = {split: [] for split in SPLITS}
    for entry in entries(path):
        photo = Photo(entry.filename, find(entry.filename), entry.captions)
        splits[entry.split].append(photo)
    return Listing(name, splits)


def _need(record: dict[str, Any], key: str, place: str) -> Any:
    if key not in record:
        raise ValueError(f"{place}: no field {key!r}")
    return record[key]
