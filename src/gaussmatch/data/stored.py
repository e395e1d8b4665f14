"""Stored features of images, read row by row without loading the whole file."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gaussmatch.data.pictures import open_picture


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
    features: Path, ids: Sequence[str], paths: Sequence[Path], dims: Sequence[int] = (2, 3)
) -> StoredFeatures:
    """Features of the named images: packed (``.npz``, which names its rows), or an array whose rows
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
    for name, path in zip(ids, paths, strict=True):
        found = row.get(name, row.get(path.name))
        if found is None:
            raise ValueError(f"{listed}: does not name {path.name}; extract its features too")
        rows.append(found)
    return StoredFeatures(array, rows, paths)
