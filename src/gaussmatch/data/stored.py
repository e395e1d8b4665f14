"""Stored features of images, read row by row without loading the whole file: arrays, packed ones,
and the layout of VSE++, SCAN and VSRN.

``{split}_ims.npy``   (N, F) or (N, regions, F); images once, or once for each caption
``{split}_caps.txt``  one caption a line, those of one image together
``{split}_rows.txt``  optional, ours: the image row of each caption, where their number differs
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gaussmatch.data.check import Report, spread
from gaussmatch.data.listing import Photo
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.data.pictures import open_picture
from gaussmatch.data.recipe import DataRecipe, Source, data_root


class PackedFeatures:
    """Features as bytes, decoded row by row: value = low + code · step, by column.

    A ``.npz`` with ``codes`` (N, F) or (N, R, F) uint8, ``low`` and ``step`` (F), and the image of
    each row in ``files`` (names) or ``ids`` (numbers). A quarter of the size of float32.
    """

    def __init__(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as packed:
                self._codes, self._low, self._step = (packed[k] for k in ("codes", "low", "step"))
                names = packed["files"] if "files" in packed else packed["ids"]
        except FileNotFoundError:
            raise FileNotFoundError(f"{path}: no such file of features") from None
        except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path}: not packed features, an .npz of codes, low, step and files or ids "
                f"({error})"
            ) from error
        self.names = [str(name) for name in names]
        width = self._codes.shape[-1:]
        if self._codes.dtype != np.uint8 or self._low.shape != width or self._step.shape != width:
            raise ValueError(
                f"{path}: codes are {self._codes.dtype} {self._codes.shape}, low "
                f"{self._low.shape}, step {self._step.shape}; codes must be uint8 (n, …, F), low "
                "and step (F)"
            )
        self.ndim = self._codes.ndim

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, row: int) -> np.ndarray:
        return np.asarray(self._low + self._codes[row] * self._step, dtype=np.float32)


Array = np.ndarray | PackedFeatures


class StoredFeatures(Sequence[np.ndarray]):
    """An ``ImageSource``: rows of a memory-mapped array, beside the photos they were made of.

    Args:
        array: (N, F) or (N, R, F).
        rows: the row of each image.
        paths: the photo of each image, where there are photos.
    """

    def __init__(
        self, array: Array, rows: Sequence[int], paths: Sequence[Path] | None = None
    ) -> None:
        self._array, self._rows, self._paths = array, rows, paths

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]
        return np.array(self._array[self._rows[index]], dtype=np.float32)

    def take(self, images: Sequence[int], paths: Sequence[Path] | None = None) -> StoredFeatures:
        """Some of the images, in the order given, perhaps with the photos they were made of."""
        return StoredFeatures(self._array, [self._rows[i] for i in images], paths)

    def picture(self, index: int) -> Image.Image | None:
        if self._paths is None or not self._paths[index].is_file():
            return None
        return open_picture(self._paths[index])


class CachedCrops:
    """An ``ImageSource`` that gives one of the cached crops of an image at each training step.

    Args:
        images: the features of the images themselves.
        crops: (crops, …) features of each image.
    """

    def __init__(self, images: StoredFeatures, crops: StoredFeatures) -> None:
        self._images, self._crops = images, crops

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._images[index]

    def random_view(self, index: int, seed: int) -> np.ndarray:
        crops = self._crops[index]
        return np.asarray(crops[seed % len(crops)])

    def picture(self, index: int) -> Image.Image | None:
        return self._images.picture(index)


def open_features(path: Path, dims: Sequence[int] = (2, 3)) -> np.ndarray:
    """A ``.npy`` of floats, (N, F) or (N, R, F), memory-mapped; anything else is refused."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file of features") from None
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"{path}: not a complete .npy array of numbers ({error}); copy or extract it again"
        ) from error
    if array.dtype.kind != "f":
        raise ValueError(
            f"{path}: features are {array.dtype}, but must be float16, float32 or float64"
        )
    if array.ndim not in dims:
        raise ValueError(f"{path}: shape {array.shape}; features are (n, F) or (n, regions, F)")
    return array


def read_lines(path: Path) -> list[str]:
    """The lines of a text file in UTF-8, with or without BOM and CRLF; a last empty one dropped."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason}); convert it") from error
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def features_by_name(
    features: Path, photos: Sequence[Photo], dims: Sequence[int] = (2, 3)
) -> StoredFeatures:
    """Features of photos: packed (``.npz``, which names its rows), or an array whose rows
    ``{stem}_files.txt`` names."""
    array: Array
    if features.suffix == ".npz":
        array = PackedFeatures(features)
        listed, names = features, array.names
    else:
        array = open_features(features, dims)
        listed = features.with_name(f"{features.stem}_files.txt")
        if not listed.is_file():
            raise FileNotFoundError(
                f"{listed}: missing; it must name the image of each row of {features.name}"
            )
        names = [line.strip() for line in read_lines(listed)]
    if len(names) != len(array):
        raise ValueError(f"{listed}: {len(names)} names, but {features.name} has {len(array)} rows")
    row = {name: i for i, name in enumerate(names)}
    rows = []
    for photo in photos:
        found = row.get(photo.id, row.get(photo.path.name))
        if found is None:
            raise ValueError(f"{listed}: does not name {photo.path.name}; extract its features too")
        rows.append(found)
    return StoredFeatures(array, rows, [photo.path for photo in photos])


PER_IMAGE = 5
"""Captions of an image in the published files, where images come once for each caption."""
ALIASES = {"train": ("train",), "dev": ("dev", "val"), "test": ("test", "testall")}


def load_precomputed(root: Path, dev_images: int | None = None) -> DataSet:
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


def check_precomputed(root: Path) -> Report:
    """Numbers and shapes, and every value looked at for NaN and infinity."""
    report, data = Report(), load_precomputed(root)
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


PRECOMPUTED = Source(
    "precomputed",
    where="""\
Precomputed features, as VSE++, SCAN and VSRN use them. In one folder, for train, dev and test:
  {split}_ims.npy     (n, F) or (n, regions, F); images once, or once for each of five captions
  {split}_caps.txt    one caption a line, those of one image together
From: the links in the README of those projects; or make them with 'gaussmatch extract'.""",
    signs=("*_ims.npy",),
    fields=("coco", "cxc"),
    load=lambda recipe: load_precomputed(data_root(recipe), recipe.dev_images),
    check=check_precomputed,
)
