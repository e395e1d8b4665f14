"""Precomputed features in the layout of VSE++, SCAN and VSRN.

``{split}_ims.npy``   (N, F) or (N, regions, F); images once, or once for each caption
``{split}_caps.txt``  one caption a line, those of one image together
``{split}_rows.txt``  optional, ours: the image row of each caption, where their number differs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gaussmatch.data.check import Report, spread
from gaussmatch.data.listing import Photo
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.data.recipe import DataRecipe, Source, data_root
from gaussmatch.data.stored import StoredFeatures, open_features, read_lines

PER_IMAGE = 5
"""Captions of an image in the published files, where images come once for each caption."""
ALIASES = {"train": ("train",), "dev": ("dev", "val"), "test": ("test", "testall")}


def load(root: Path, dev_images: int | None = None) -> DataSet:
    """The three splits of a folder of precomputed features.

    Args:
        dev_images: validate on this many images, the first ones (the published codes use 1,000).
    """
    parts = {split: read_split(root, split) for split in ALIASES}
    if dev_images is not None:
        parts["dev"] = parts["dev"].first(dev_images)
    widths = {split: pairs.images[0].shape for split, pairs in parts.items()}
    if len(set(widths.values())) > 1:
        raise ValueError(f"{root}: the splits have features of different shapes, {widths}")
    return DataSet(root.resolve().name, *parts.values())


def with_names(recipe: DataRecipe) -> DataRecipe:
    """With ``data.coco`` the images get their names back from COCO's annotations, and with them
    object classes for PMRP and, with ``data.cxc``, the judgments of CxC."""
    if recipe.coco is None and recipe.cxc is not None:
        raise ValueError(
            "data.cxc: also give COCO's folder as data.coco, which identifies the images"
        )
    if recipe.coco is None:
        return recipe
    folder = str(data_root(recipe))
    return replace(recipe, name="coco", root=recipe.coco, coco=None, extracted=folder)


def read_split(root: Path, split: str) -> Pairs:
    """One split; a wrong number of rows is refused with both numbers."""
    stem = next((s for s in ALIASES[split] if (root / f"{s}_ims.npy").is_file()), None)
    if stem is None:
        wanted = " or ".join(f"{s}_ims.npy" for s in ALIASES[split])
        raise FileNotFoundError(f"{root}: no {wanted}; see 'gaussmatch data where precomputed'")
    array, lines = open_features(root / f"{stem}_ims.npy"), root / f"{stem}_caps.txt"
    if not lines.is_file():
        raise FileNotFoundError(f"{lines}: missing; one caption a line for {stem}_ims.npy")
    captions = read_lines(lines)
    for number, caption in enumerate(captions, start=1):
        if not caption.strip():
            raise ValueError(f"{lines}, line {number}: an empty caption; write one or remove both")
    if (root / f"{stem}_rows.txt").is_file():
        image_of, rows = _listed(root / f"{stem}_rows.txt", len(captions), len(array))
    else:
        image_of, rows = _inferred(root / f"{stem}_ims.npy", array, len(captions))
    return Pairs(f"{root.resolve().name}/{split}", StoredFeatures(array, rows), captions, image_of)


def _inferred(path: Path, array: np.ndarray, captions: int) -> tuple[Tensor, range]:
    """(image of each caption, row of each image) from the numbers of rows and captions.

    As many rows as captions are images five times where the first five rows are one image, and
    else images with one caption each.
    """
    images = len(array)
    repeated = captions % PER_IMAGE == 0 and bool((array[:PER_IMAGE] == array[0]).all())
    if images == captions and images and repeated:
        rows = range(0, images, PER_IMAGE)
    elif images and captions % images == 0:
        rows = range(images)
    else:
        raise ValueError(
            f"{path}: {images} rows of features do not match {captions} captions; there must be "
            "a row for each image, or one for each caption, with five captions an image"
        )
    return torch.arange(captions) // (captions // len(rows)), rows


def _listed(path: Path, captions: int, images: int) -> tuple[Tensor, range]:
    lines = read_lines(path)
    if len(lines) != captions:
        raise ValueError(f"{path}: {len(lines)} lines for {captions} captions; one each is needed")
    for number, line in enumerate(lines, start=1):
        if not line.isascii() or not line.isdigit() or int(line) >= images:
            raise ValueError(f"{path}, line {number}: {line!r} is not a row from 0 to {images - 1}")
    return torch.tensor([int(line) for line in lines]), range(images)


def of_photos(root: Path, split: str, photos: Sequence[Photo]) -> StoredFeatures:
    """The rows of photos that another source lists.

    The published files name no images but hold the captions: a photo gets the row that most of its
    captions belong to.
    """
    pairs = read_split(root, split)
    assert isinstance(pairs.images, StoredFeatures)
    beside: dict[str, set[int]] = {}
    for caption, image in zip(pairs.captions, pairs.image_of.tolist(), strict=True):
        beside.setdefault(_letters(caption), set()).add(image)
    rows = []
    for photo in photos:
        votes = Counter(
            row for caption in photo.captions for row in beside.get(_letters(caption.text), ())
        )
        (row, most), *others = [*votes.most_common(2), (None, 0)]
        if row is None or others[0][1] == most:
            raise ValueError(
                f"{root}: the captions of {photo.path.name} ({split}) belong to "
                f"{'two rows' if most else 'no row'} of features; are these the features of this "
                "data set and split?"
            )
        rows.append(row)
    return pairs.images.take(rows, [photo.path for photo in photos])


def _letters(text: str) -> str:
    """What is left of a caption whatever tokenizer it went through."""
    return "".join(c for c in text.lower() if c.isalnum())


def check(root: Path) -> Report:
    """Numbers and shapes, and every value looked at for NaN and infinity."""
    report, data = Report(), load(root)
    for pairs in (data.train, data.dev, data.test):
        shape = " × ".join(str(side) for side in pairs.images[0].shape)
        report.lines += [
            f"{pairs.name}: features {shape}",
            f"  {len(pairs.images):,} images, {len(pairs.captions):,} captions",
            *spread(list(Counter(pairs.image_of.tolist()).values()), pairs.captions),
        ]
        bad = [i for i in range(len(pairs.images)) if not np.isfinite(pairs.images[i]).all()]
        report.problem(f"rows of {pairs.name} hold a NaN or infinity", [str(i) for i in bad])
    return report


SOURCE = Source(
    "precomputed",
    where="""\
Precomputed features, as VSE++, SCAN and VSRN use them. In one folder, for train, dev and test:
  {split}_ims.npy     (n, F) or (n, regions, F); images once, or once for each of five captions
  {split}_caps.txt    one caption a line, those of one image together
From: the links in the README of those projects; or make them with 'gaussmatch extract'.""",
    signs=("*_ims.npy",),
    fields=("coco", "cxc"),
    load=lambda recipe: load(data_root(recipe), recipe.dev_images),
    check=check,
)
