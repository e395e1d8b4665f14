"""Visual Genome: boxes of an image with a phrase each, for the experiment on crops.

``region_descriptions.json`` and ``image_data.json`` (sizes, COCO numbers), photos in ``VG_100K``
and ``VG_100K_2``. Images that a COCO model was trained on can be left out. The data set has no
split of its own: one is drawn from the image numbers.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from gaussmatch.data import coco
from gaussmatch.data.listing import Caption, Listing, Photo, cut, fields_of
from gaussmatch.data.pairs import Region
from gaussmatch.data.source import Source
from gaussmatch.files import read_json


def read(root: Path, exclude: Collection[int] | None = None) -> Listing:
    """Images with their regions; captions are the regions' phrases.

    Args:
        exclude: numbers of COCO images to leave out.
    """
    sizes = _sizes(root / "image_data.json")
    path = root / "region_descriptions.json"
    photos, left_out, empty = [], 0, 0
    for i, record in enumerate(_list(path)):
        place = f"{path}, image {i}"
        number, described = fields_of(record, place, "id", "regions")
        if number not in sizes:
            raise ValueError(f"{place}: {number} is not in image_data.json")
        width, height, coco = sizes[number]
        if exclude is not None and coco in exclude:
            left_out += 1
            continue
        regions = [_region(r, width, height, place) for r in described]
        kept = [region for region in regions if region is not None]
        if not kept:
            empty += 1
            continue
        captions = tuple(Caption(f"{number}#{k}", r.caption) for k, r in enumerate(kept))
        photos.append(Photo(str(number), _find(root, number), captions, regions=tuple(kept)))
    if not photos:
        raise ValueError(f"{path}: no image is left")
    notes = [f"{left_out} images left out: COCO models are trained on them"]
    if exclude is None:
        notes = ["COCO's training images are not left out; name its folder as data.coco"]
    if empty:
        notes.append(f"{empty} images have no region with words inside the image; not used")
    return Listing("visual-genome", cut(photos), notes)


def _sizes(path: Path) -> dict[int, tuple[int, int, int | None]]:
    sizes = {}
    for i, record in enumerate(_list(path)):
        place = f"{path}, image {i}"
        number, width, height = fields_of(record, place, "image_id", "width", "height")
        sizes[number] = (width, height, record.get("coco_id"))
    return sizes


def _region(record: Any, width: int, height: int, place: str) -> Region | None:
    """The box cut to the image; ``None`` if nothing of it or no word is left."""
    x, y, w, h, said = fields_of(record, place, "x", "y", "width", "height", "phrase")
    phrase = " ".join(str(said).split())
    left, top, right, bottom = max(0, x), max(0, y), min(width, x + w), min(height, y + h)
    if left >= right or top >= bottom or not phrase:
        return None
    return Region((float(left), float(top), float(right), float(bottom)), phrase)


def _find(root: Path, number: int) -> Path:
    second = root / "VG_100K_2" / f"{number}.jpg"
    return second if second.is_file() else root / "VG_100K" / f"{number}.jpg"


def _list(path: Path) -> list[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing; see 'gaussmatch data where visual-genome'")
    content = read_json(path)
    if not isinstance(content, list):
        raise ValueError(f"{path}: must be a list of images")
    return content


SOURCE = Source(
    "visual-genome",
    where="""\
Visual Genome (Krishna et al. 2017), version 1.2 or later. In one folder:
  region_descriptions.json, image_data.json
  VG_100K/, VG_100K_2/               the photos
From: the project's page "Visual Genome", Download. --data.coco FOLDER leaves out the images that
COCO models are trained on.""",
    signs=("region_descriptions.json",),
    fields=("coco",),
    read=lambda recipe, root: read(
        root, None if recipe.coco is None else coco.training_images(Path(recipe.coco))
    ),
)
