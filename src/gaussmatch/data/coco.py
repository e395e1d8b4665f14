"""MS-COCO, and what belongs to it: Crisscrossed Captions and Visual Genome.

COCO is ``captions_*.json``, ``instances_*.json`` and photos by year. The split is Karpathy's, from
``dataset_coco.json`` or from lists of caption ids (``coco_{train,restval,dev,test}_ids.npy``);
restval joins train. Without either, train is COCO's own train, and its val is halved into dev and
test by the hash of the image numbers.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gaussmatch.data.check import Report
from gaussmatch.data.listing import (
    Caption,
    Listing,
    Photo,
    cut,
    fields_of,
    karpathy_entries,
    split_name,
)
from gaussmatch.data.pairs import SPLITS, Box, Region
from gaussmatch.data.recipe import Source
from gaussmatch.files import read_json

PER_IMAGE = 5
"""Karpathy's lists keep the first five captions of an image (some have six or seven)."""


@dataclass(frozen=True)
class CocoImage:
    """What COCO's files say of an image."""

    path: Path
    year: str  #: such as ``val2014``
    size: tuple[int, int] | None  #: width and height that the boxes are in
    things: list[tuple[str, Box | None]] = field(default_factory=list)  #: class; no box of a crowd


@dataclass(frozen=True)
class Annotated:
    """What COCO's files say."""

    images: dict[int, CocoImage]
    captions: dict[int, tuple[int, Caption]]  #: by its number, with that of its image
    class_names: tuple[str, ...] = ()


def read(root: Path, cxc: Path | None = None, boxes: bool = False) -> Listing:
    """COCO, or a part of it, with its object classes.

    Args:
        cxc: the folder of Crisscrossed Captions, whose judgments become true pairs. Those about
            captions or images that are not here are left out, and a note says how many.
        boxes: give the boxes of objects as regions, each with its class for a caption.
    """
    annotated = read_annotations(root)
    places = (root, root / "annotations")
    named = (p / "dataset_coco.json" for p in places)
    karpathys = next((path for path in named if path.is_file()), None)
    ids = next((p for p in places if any(p.glob("coco_*_ids.npy"))), None)
    notes: list[str] = []
    if karpathys is not None:
        chosen = _from_karpathy(karpathys, annotated)
    elif ids is not None:
        chosen = _from_ids(ids, annotated)
    else:
        chosen, notes = _own_split(annotated)
    splits = {
        s: [_photo(annotated, i, captions, boxes) for i, captions in chosen[s].items()]
        for s in SPLITS
    }
    also: set[tuple[str, str]] = set()
    for path in score_files(cxc) if cxc is not None else ():
        judged = {(str(caption), str(image)) for caption, image in read_positives(path).extra}
        inside = _inside(judged, splits)
        if len(inside) < len(judged):
            notes.append(
                f"{path.name}: {len(inside):,} of the {len(judged):,} further pairs that people "
                f"judged to match lie in dev or test; {len(judged) - len(inside):,} are left out"
            )
        also |= inside
    return Listing("coco", splits, notes, frozenset(also), annotated.class_names)


def _inside(pairs: set[tuple[str, str]], splits: dict[str, list[Photo]]) -> set[tuple[str, str]]:
    """The pairs whose caption and image are both in dev, or both in test."""
    found: set[tuple[str, str]] = set()
    for split in ("dev", "test"):
        images = {photo.id for photo in splits[split]}
        captions = {caption.id for photo in splits[split] for caption in photo.captions}
        found |= {(c, i) for c, i in pairs if c in captions and i in images}
    return found


def training_images(root: Path) -> set[int]:
    """Numbers of the images that COCO models are trained on."""
    return {int(photo.id) for photo in read(root).splits["train"]}


def read_annotations(root: Path) -> Annotated:
    folder = root / "annotations" if (root / "annotations").is_dir() else root
    files = sorted(folder.glob("captions_*.json"))
    if not files:
        raise FileNotFoundError(f"{folder}: no captions_*.json; see 'gaussmatch data where coco'")
    annotated = Annotated({}, {})
    for path in files:
        content, year = _content(path), path.stem.removeprefix("captions_")
        photos = next((p for p in (root / year, root / "images" / year) if p.is_dir()), root / year)
        for i, image in enumerate(content["images"]):
            number, name = fields_of(image, f"{path}, image {i}", "id", "file_name")
            size = (image["width"], image["height"]) if {"width", "height"} <= {*image} else None
            annotated.images[number] = CocoImage(photos / name, year, size)
        for i, said in enumerate(content["annotations"]):
            place = f"{path}, annotation {i}"
            caption, number, words = fields_of(said, place, "id", "image_id", "caption")
            if number not in annotated.images:
                raise ValueError(f"{place}: image_id {number} is not among the file's images")
            at = f"{path.name}, annotation {caption}"
            made = Caption(str(caption), " ".join(words.split()), at)
            annotated.captions[caption] = (number, made)
    names: dict[int, str] = {}
    for path in sorted(folder.glob("instances_*.json")):
        content = _content(path)
        if "categories" not in content:
            raise ValueError(f"{path}: no list 'categories'; this is not a file of instances")
        names |= {c["id"]: c["name"] for c in content["categories"]}
        for i, thing in enumerate(content["annotations"]):
            number, category = fields_of(
                thing, f"{path}, annotation {i}", "image_id", "category_id"
            )
            if category not in names:
                raise ValueError(f"{path}, annotation {i}: no category {category} in 'categories'")
            if number in annotated.images:
                box = None if thing.get("iscrowd") else _box(thing.get("bbox"))
                annotated.images[number].things.append((names[category], box))
    return replace(annotated, class_names=tuple(names[key] for key in sorted(names)))


def _box(bbox: list[float] | None) -> Box | None:
    """Left, top, right, bottom from COCO's left, top, width, height."""
    if bbox is None:
        return None
    x, y, width, height = map(float, bbox)
    return (x, y, x + width, y + height)


Chosen = dict[str, dict[int, list[int]]]  # split → image number → caption ids


def _from_karpathy(path: Path, annotated: Annotated) -> Chosen:
    chosen: Chosen = {split: {} for split in SPLITS}
    for entry in karpathy_entries(path, PER_IMAGE):
        if entry.coco_id not in annotated.images:
            raise ValueError(
                f"{entry.place}: {entry.filename} is in no captions_*.json; add those of its year"
            )
        numbers = [int(caption.id) for caption in entry.captions]
        _known(entry.place, numbers, annotated)
        chosen[entry.split].setdefault(entry.coco_id, []).extend(numbers)
    return chosen


def _from_ids(folder: Path, annotated: Annotated) -> Chosen:
    chosen: Chosen = {split: {} for split in SPLITS}
    seen: dict[int, tuple[str, str]] = {}
    for path in sorted(folder.glob("coco_*_ids.npy"), key=lambda p: ("restval" in p.name, p.name)):
        split = split_name(path.name.split("_")[1], str(path))
        numbers = np.load(path, allow_pickle=False)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ValueError(f"{path}: {numbers.dtype} {numbers.shape}; must be a list of integers")
        _known(str(path), numbers.tolist(), annotated)
        for caption in numbers.tolist():
            image = annotated.captions[caption][0]
            before, _ = seen.setdefault(image, (split, path.name))
            if before != split:
                raise ValueError(
                    f"{path}: caption {caption} is of image {image}, which "
                    f"{seen[image][1]} puts in {before}; an image belongs to one split"
                )
            chosen[split].setdefault(image, []).append(caption)
    return chosen


def _known(place: str, captions: Iterable[int], annotated: Annotated) -> None:
    lost = [caption for caption in captions if caption not in annotated.captions]
    if lost:
        raise ValueError(
            f"{place}: {len(lost)} caption ids, such as {lost[0]}, are in no captions_*.json; "
            "put captions_train2014.json and captions_val2014.json into annotations/"
        )


def _own_split(annotated: Annotated) -> tuple[Chosen, list[str]]:
    of: dict[int, list[int]] = {}
    for caption, (image, _) in annotated.captions.items():
        of.setdefault(image, []).append(caption)
    train = [image for image in of if annotated.images[image].year.startswith("train")]
    val = {*of}.difference(train)
    order = sorted(val, key=lambda image: hashlib.sha256(str(image).encode()).digest())
    half = len(order) // 2
    images = {"train": train, "dev": order[:half], "test": order[half:]}
    note = "no Karpathy split found: train is COCO's train, dev and test are halves of its val"
    return {split: {image: of[image] for image in some} for split, some in images.items()}, [note]


def _photo(annotated: Annotated, number: int, captions: list[int], boxes: bool) -> Photo:
    image = annotated.images[number]
    return Photo(
        str(number),
        image.path,
        tuple(annotated.captions[c][1] for c in captions),
        frozenset(name for name, _ in image.things),
        tuple(Region(box, one_of(name)) for name, box in image.things if box) if boxes else (),
        image.size,
    )


PLURAL = ("skis", "scissors", "broccoli")


def one_of(name: str) -> str:
    """A caption for a box that shows one object of a class.

    >>> one_of("dog"), one_of("umbrella"), one_of("skis")
    ('a dog', 'an umbrella', 'skis')
    """
    article = "" if name in PLURAL else "an " if name[0] in "aeiou" else "a "
    return f"{article}{name}"


def _content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    for key in ("images", "annotations"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise ValueError(f"{path}: no list {key!r}; this is not one of COCO's files")
    return dict(content)


SOURCE = Source(
    "coco",
    where="""\
MS-COCO (Lin et al. 2014), or a part of it. In one folder:
  annotations/captions_train2014.json, captions_val2014.json      the captions
  annotations/instances_train2014.json, instances_val2014.json    object classes (for PMRP)
  train2014/, val2014/                                            the photos
  dataset_coco.json      Karpathy's split; or coco_{train,restval,dev,test}_ids.npy
From: cocodataset.org, page "Download" (2014 train/val images and annotations); dataset_coco.json
from Andrej Karpathy's page "Deep Visual-Semantic Alignments" (caption_datasets.zip); the lists of
ids with the code of VSE++ and PVSE. The 2017 files work as well, without Karpathy's split.""",
    signs=("captions_*.json", "annotations/captions_*.json"),
    fields=("cxc",),
    read=lambda recipe, root: read(
        root, None if recipe.cxc is None else Path(recipe.cxc).expanduser()
    ),
)


AGREED = 3.0
_CXC_COLUMNS = ("caption", "image", "agg_score", "sampling_method")


@dataclass(frozen=True)
class Positives:
    """(caption id, image number) pairs of one file: COCO's own, and those that people added."""

    original: list[tuple[int, int]]
    extra: list[tuple[int, int]]

    @property
    def total(self) -> int:
        return len(self.original) + len(self.extra)


def score_files(root: Path) -> list[Path]:
    """The score files of a folder."""
    files = sorted(root.glob("sits_*.csv"))
    if not files:
        raise FileNotFoundError(f"{root}: no sits_*.csv; see 'gaussmatch data where cxc'")
    return files


def read_positives(path: Path) -> Positives:
    """The pairs of one file that match: ``sits_{val,test}.csv``, with caption, image, agg_score
    (0–5) and sampling_method. Rows of the method ``c2i_intrasim`` with a score of at least 3 are
    the extra positives: 10,614 in test, which with the 25,000 original pairs make 35,614."""
    positives = Positives([], [])
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = tuple(next(rows, ()))
        if header != _CXC_COLUMNS:
            raise ValueError(f"{path}, line 1: the columns must be {', '.join(_CXC_COLUMNS)}")
        for row in rows:
            place = f"{path}, line {rows.line_num}"
            try:
                said, shown, score, method = row
                caption = int(said.rsplit(":", 1)[1])
                image = int(Path(shown).stem.rsplit("_", 1)[1])
                value = float(score)
            except (ValueError, IndexError):
                raise ValueError(
                    f"{place}: not 'COCO_val2014:sentid:1,COCO_val2014_1.jpg,score,method'"
                ) from None
            if method == "c2i_original":
                positives.original.append((caption, image))
            elif method == "c2i_intrasim":
                if value >= AGREED:
                    positives.extra.append((caption, image))
            else:
                raise ValueError(f"{place}: unknown sampling_method {method!r}")
    return positives


def check_cxc(root: Path) -> Report:
    """How many pairs each file of scores holds."""
    report = Report()
    for path in score_files(root):
        found = read_positives(path)
        report.lines.append(
            f"{path.name}: {len(found.original):,} original pairs and {len(found.extra):,} extra "
            f"positives, {found.total:,} in all"
        )
    return report


CXC = Source(
    "cxc",
    where="""\
Crisscrossed Captions (Parekh et al. 2021), beside COCO:
  sits_val.csv, sits_test.csv
From: github.com/google-research-datasets/Crisscrossed-Captions, folder data.
Use: --data.name coco --data.cxc FOLDER.""",
    signs=("sits_*.csv",),
    check=check_cxc,
)


def read_visual_genome(root: Path, exclude: Collection[int] | None = None) -> Listing:
    """Boxes with a phrase each, which are the captions, for the experiment on crops.

    ``region_descriptions.json`` and ``image_data.json`` (sizes, COCO numbers), photos in
    ``VG_100K`` and ``VG_100K_2``. There is no split: one is drawn from the image numbers.

    Args:
        exclude: numbers of COCO images to leave out.
    """
    sizes, path = {}, root / "image_data.json"
    for i, record in enumerate(_list(path)):
        names = ("image_id", "width", "height")
        number, width, height = fields_of(record, f"{path}, image {i}", *names)
        sizes[number] = (width, height, record.get("coco_id"))
    path = root / "region_descriptions.json"
    photos, left_out, empty = [], 0, 0
    for i, record in enumerate(_list(path)):
        place = f"{path}, image {i}"
        number, described = fields_of(record, place, "id", "regions")
        if number not in sizes:
            raise ValueError(f"{place}: {number} is not in image_data.json")
        width, height, of_coco = sizes[number]
        if exclude is not None and of_coco in exclude:
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


VISUAL_GENOME = Source(
    "visual-genome",
    where="""\
Visual Genome (Krishna et al. 2017), version 1.2 or later. In one folder:
  region_descriptions.json, image_data.json
  VG_100K/, VG_100K_2/               the photos
From: the project's page "Visual Genome", Download. --data.coco FOLDER leaves out the images that
COCO models are trained on.""",
    signs=("region_descriptions.json",),
    fields=("coco",),
    read=lambda recipe, root: read_visual_genome(
        root, None if recipe.coco is None else training_images(Path(recipe.coco))
    ),
)
