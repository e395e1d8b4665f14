"""Photos become what an encoder takes: pixels for a network that is trained end to end, or features
of a frozen one.

Pixels: in training a random part of the photo, perhaps mirrored, at every visit; else its center.
This is what the official VSE++ does (torchvision's ``RandomResizedCrop`` and flip; ``Resize``,
``CenterCrop``). Values are in [0, 1]: a backbone normalizes them its own way.

A folder of extracted features holds the precomputed layout (``{split}_ims.npy``,
``{split}_caps.txt``), the image of each row (``{split}_ims_files.txt``) and ``manifest.json``, so
that new photos are encoded alike. It is made in shards, each written atomically, so that an
interrupted extraction resumes. Several processes may share the work, each with its own part of the
shards; the one that finds all shards of a split joins them into one array."""

from __future__ import annotations

import json
import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from gaussmatch.checks import extra
from gaussmatch.data.listing import Listing, Photo
from gaussmatch.data.pictures import open_picture, picture_size
from gaussmatch.data.scenes.world import WIDTH as SCENE
from gaussmatch.data.stored import read_lines
from gaussmatch.device import default_device
from gaussmatch.files import atomic, claim_folder, read_json, write_json, write_rows, write_text
from gaussmatch.models.encoders.backbone import Backbone
from gaussmatch.models.encoders.base import ImageTransform
from gaussmatch.models.encoders.onnx import accelerate
from gaussmatch.models.encoders.pretrained import ImageTower, image_tower
from gaussmatch.models.encoders.pretrained.base import Transform, make_importable, stacked
from gaussmatch.models.recipe import DataRecipe

ROOM = 256 / 224
"""The short side of a photo before its center is cut out, as a multiple of the crop's side."""


def pixel_transform(recipe: DataRecipe) -> Transform | None:
    """How pictures become the pixels of a recipe's model, which owns it once it is built: the short
    side to 256/224 of the crop, then the center; or the whole picture, squeezed into the square.
    ``None`` where a network outside the model makes features of them."""
    if recipe.features != "pixels":
        return None
    if recipe.name == "scenes":
        return Transform(SCENE, interpolation="bilinear")
    resize = None if recipe.view == "whole" else round(ROOM * recipe.crop)
    return Transform(recipe.crop, resize=resize, interpolation="bilinear")


class PhotoPixels:
    """An ``ImageSource`` of photos that are decoded when read: (3, size, size) in [0, 1]."""

    def __init__(self, paths: Sequence[Path], view: Transform) -> None:
        self._paths, self._view = paths, view

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.asarray(self._view(open_picture(self._paths[index])).numpy())

    def random_view(self, index: int, seed: int) -> np.ndarray:
        """A random part of the photo, perhaps mirrored; the same for the same seed."""
        part = drawn_part(open_picture(self._paths[index]), self._view.size, seed)
        return np.asarray(Transform(self._view.size)(part).numpy())

    def picture(self, index: int) -> Image.Image | None:
        return open_picture(self._paths[index]) if self._paths[index].is_file() else None


_DRAWING = threading.Lock()


def drawn_part(picture: Image.Image, crop: int, seed: int) -> Image.Image:
    """A random part of a picture, 8–100 % of its area with sides 3:4 to 4:3, mirrored half of the
    time; the same for the same seed, in any thread."""
    with _DRAWING, torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
        torch.manual_seed(seed)
        return _part(crop)(picture)


@cache
def _part(crop: int) -> Any:
    make_importable()
    with extra("vision", "pixels of photos"):
        from torchvision import transforms
    crops = transforms.RandomResizedCrop(crop)
    return transforms.Compose([crops, transforms.RandomHorizontalFlip()])


# ---- features of a frozen network ----


MANIFEST = "manifest.json"
Layout = Literal["pooled", "regions", "boxes"]


@dataclass(frozen=True)
class Manifest:
    """Which network made the features, and how.

    Args:
        backbone: its name, see ``encoders.pretrained``; a bare one is timm's.
        weights: the local file, or ``None`` for those that timm downloads.
        sha256: of the weights.
        layout: pooled (F), regions (36, F) of a 6 × 6 raster, or boxes (R, F) of a detector.
        width: F.
        view: the center of a photo, or the whole of it.
        crops: random crops of each training photo, beside its view.
    """

    backbone: str
    weights: str | None
    sha256: str
    layout: Layout
    width: int
    view: Literal["center", "whole"] = "center"
    crops: int = 0

    def save(self, folder: Path) -> None:
        write_json(folder / MANIFEST, {"made_by": "gaussmatch extract", **asdict(self)})

    @staticmethod
    def load(folder: Path) -> Manifest:
        path = folder / MANIFEST
        content = read_json(path)
        try:
            fields = {name: content[name] for name in Manifest.__dataclass_fields__}
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: not a manifest of 'gaussmatch extract' ({error})") from error
        return Manifest(**fields)


def describe(
    net: ImageTower, weights: str | Path | None, layout: Layout, crops: int = 0
) -> Manifest:
    file = None if weights is None else str(Path(weights).resolve())
    view: Literal["center", "whole"] = "whole" if net.whole else "center"
    return Manifest(net.name, file, net.sha256(), layout, net.width, view, crops)


def featurizer_of(folder: Path) -> ImageTransform:
    """Photos → features like those of a folder; an error if their origin is unknown."""
    if not (folder / MANIFEST).is_file():
        raise ValueError(
            f"{folder} has no {MANIFEST}: how its features were made is unknown, so new photos "
            "cannot be encoded alike; give ready features (an array), or make the features with "
            "'gaussmatch extract'"
        )
    manifest = Manifest.load(folder)
    whole = manifest.view == "whole"
    net = image_tower(manifest.backbone, manifest.weights, whole).to(default_device())
    if net.sha256() != manifest.sha256:
        raise ValueError(
            f"{folder / MANIFEST}: the features were made with other weights of "
            f"{manifest.backbone} than {manifest.weights or 'those that timm has now'}"
        )
    return featurizer_with(net, manifest.layout)


def featurizer_with(net: ImageTower, layout: Layout) -> ImageTransform:
    if layout == "boxes":
        raise ValueError(
            "the features were made from a detector's boxes, which a new photo does not have; "
            "give ready features (an array)"
        )
    if layout == "pooled":
        accelerate(net)

    def featurize(images: Sequence[Image.Image]) -> np.ndarray:
        if layout == "pooled":
            return net.encode(images).numpy()
        chunks = (images[i : i + net.at_once] for i in range(0, len(images), net.at_once))
        return np.concatenate(
            [encode(net, layout, stacked(map(net.transform, some))) for some in chunks]
        )

    return featurize


@torch.inference_mode()
def encode(
    net: ImageTower, layout: Layout, pictures: torch.Tensor, boxes: torch.Tensor | None = None
) -> np.ndarray:
    """Pictures as the network takes them → float32 features."""
    given = pictures.to(net.device)
    if layout == "pooled":
        out = net.run(given)
    elif not isinstance(net, Backbone):
        raise ValueError(f"{net.name} gives one vector for each picture; use pooled features")
    else:
        out = net.regions(given) if boxes is None else net.boxes(given, boxes.to(net.device))
    return np.asarray(out.float().cpu().numpy())


# ---- extraction, in shards ----


CROPS = "train_crops"
"""The name under which the crops of the training photos are kept, as a split of its own."""
UNREADABLE = "unreadable.txt"
"""Ids of the photos that were left out."""


@dataclass(frozen=True)
class ExtractionPlan:
    """How the work is divided.

    Args:
        shard: photos in a shard.
        batch: photos that go through the network at once; by default as many as suit its device.
        part: (k, of): do every ``of``-th shard, from the k-th (from 0).
        workers: threads that decode photos.
        skip_unreadable: leave out what cannot be decoded; it is listed in ``unreadable.txt``.
    """

    shard: int = 256
    batch: int | None = None
    part: tuple[int, int] = (0, 1)
    workers: int = 2
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        k, of = self.part
        if not 0 <= k < of:
            raise ValueError(f"part {k}/{of}: must be 0/N to N-1/N")
        if min(self.shard, self.batch or 1, self.workers) < 1:
            raise ValueError("shard, batch and workers must be at least 1")


def extract(
    listing: Listing,
    out: Path,
    net: ImageTower,
    manifest: Manifest,
    *,
    plan: ExtractionPlan | None = None,
    boxes: Boxes | None = None,
    progress: bool = True,
) -> bool:
    """Fill ``out``; returns whether it is complete (other parts may still be running)."""
    work = _Extraction(out, net, manifest, plan or ExtractionPlan(), boxes)
    work.claim()
    if manifest.layout == "pooled":
        accelerate(net)
    if not work.plan.skip_unreadable:
        listing.check_files("see 'gaussmatch data check', or leave out with --skip-unreadable")
    splits = {name: photos for name, photos in listing.splits.items() if photos}
    if manifest.crops and "train" in splits:
        splits[CROPS] = splits["train"]
    with tqdm(total=sum(map(len, splits.values())), unit="photo", disable=not progress) as bar:
        for name, photos in splits.items():
            bar.set_description(f"{listing.name}/{name}")
            if (out / f"{name}_ims.npy").is_file():
                work.check_same(name, photos)
                bar.update(len(photos))
            else:
                work.shards(name, photos, bar)
    joined = [work.join(name, photos) for name, photos in splits.items()]
    return all(joined)


@dataclass(frozen=True)
class _Extraction:
    out: Path
    net: ImageTower
    manifest: Manifest
    plan: ExtractionPlan
    boxes: Boxes | None

    def claim(self) -> None:
        """Never mix features of two networks in one folder."""
        if not (self.out / MANIFEST).is_file():
            claim_folder(self.out, MANIFEST)
            self.manifest.save(self.out)
            return
        before = Manifest.load(self.out)
        if replace(before, weights=self.manifest.weights) != self.manifest:
            raise ValueError(
                f"{self.out} holds {before.layout} features of {before.backbone}; "
                "continue with the same settings, or choose another folder with --out"
            )

    def files(self, name: str, photos: Sequence[Photo]) -> Iterator[tuple[Path, Sequence[Photo]]]:
        """The shards of a split, and the photos in each."""
        size = self.plan.shard
        for i, start in enumerate(range(0, len(photos), size)):
            path = self.out / "shards" / f"{name}-{size}-{i:05}.npz"
            yield path, photos[start : start + size]

    def shards(self, name: str, photos: Sequence[Photo], bar: tqdm[NoReturn]) -> None:
        """Make those of this part that are missing."""
        k, of = self.plan.part
        transform: Callable[[Image.Image], Tensor] = self._crops
        if name != CROPS:
            transform = partial(self.net.transform, whole=None if self.boxes is None else True)
        with ThreadPoolExecutor(self.plan.workers) as pool:
            for i, (path, chunk) in enumerate(self.files(name, photos)):
                if i % of != k or _is_of(path, chunk):
                    bar.update(len(chunk))
                    continue
                features, kept = self._shard(chunk, transform, pool, bar)
                ids = np.array([photo.id for photo in chunk])
                with atomic(path) as temporary, open(temporary, "wb") as file:
                    np.savez(file, features=features, kept=np.array(kept, dtype=np.int64), ids=ids)

    def _shard(
        self,
        chunk: Sequence[Photo],
        transform: Callable[[Image.Image], Tensor],
        pool: ThreadPoolExecutor,
        bar: tqdm[NoReturn],
    ) -> tuple[np.ndarray, list[int]]:
        """Features of the photos that could be read, and which those are."""
        rows, kept = [], []
        at_a_time = self.plan.batch or self.net.at_once
        decoded = pool.map(partial(self._read, transform), chunk)  # runs ahead
        for start in range(0, len(chunk), at_a_time):
            batch = chunk[start : start + at_a_time]
            read = list(islice(decoded, len(batch)))
            good = [j for j, picture in enumerate(read) if picture is not None]
            if good:
                pictures = torch.stack([p for p in read if p is not None])
                rows.append(self._features([batch[j] for j in good], pictures))
                kept += [start + j for j in good]
            bar.update(len(batch))
        return np.concatenate(rows) if rows else np.zeros((0, 0), np.float16), kept

    def _crops(self, picture: Image.Image) -> Tensor:
        """Random crops of a photo, perhaps mirrored, as the network takes them; the same every
        time."""
        side, seed = self.net.transform(picture).shape[-1], zlib.crc32(picture.tobytes())
        parts = (drawn_part(picture, side, seed + i) for i in range(self.manifest.crops))
        return torch.stack([self.net.transform(part, whole=True) for part in parts])

    def _read(self, transform: Callable[[Image.Image], Tensor], photo: Photo) -> Tensor | None:
        """The photo as the network takes it; ``None`` if it is broken and can be left out."""
        try:
            picture = open_picture(photo.path)
        except (ValueError, OSError) as error:
            if self.plan.skip_unreadable:
                return None
            raise ValueError(
                f"{error}; repair or remove it, or leave such photos out with --skip-unreadable"
            ) from error
        return transform(picture)

    def _features(self, photos: Sequence[Photo], pictures: Tensor) -> np.ndarray:
        """float16 features; an error if they overflow half precision."""
        at = None if self.boxes is None else torch.stack([self.boxes.of(p) for p in photos])
        flat = pictures.flatten(0, 1) if pictures.ndim == 5 else pictures  # crops of each photo
        features = encode(self.net, self.manifest.layout, flat, at)
        if pictures.ndim == 5:
            features = features.reshape(len(pictures), -1, *features.shape[1:])
        with np.errstate(over="ignore"):
            half = features.astype(np.float16)
        for photo, row in zip(photos, half, strict=True):
            if not np.isfinite(row).all():
                raise ValueError(f"{photo.path}: its features are not finite in float16")
        return half

    def check_same(self, name: str, photos: Sequence[Photo]) -> None:
        """Refuse a finished split if its photos are not these."""
        unreadable, listed = self.out / UNREADABLE, self.out / f"{name}_ims_files.txt"
        lost = set(read_lines(unreadable)) if unreadable.is_file() else set()
        if read_lines(listed) != [photo.id for photo in photos if photo.id not in lost]:
            raise ValueError(
                f"{listed}: the photos of {name} have changed; extract into a new folder with --out"
            )

    def join(self, name: str, photos: Sequence[Photo]) -> bool:
        """One array of all shards of a split, row by row through a memory map, if all are there."""
        target, shards = self.out / f"{name}_ims.npy", list(self.files(name, photos))
        if target.is_file():
            return True
        if not all(_is_of(path, chunk) for path, chunk in shards):
            return False
        kept: list[Photo] = []
        lost: list[Photo] = []
        shapes = {}
        for path, chunk in shards:
            with np.load(path) as shard:
                read, shapes[path] = set(shard["kept"].tolist()), shard["features"].shape
            for i, photo in enumerate(chunk):
                (kept if i in read else lost).append(photo)
        if not kept:
            raise ValueError(f"{self.out}: no photo of {name} could be read")
        self._write_words(name, kept)
        if lost:
            with open(self.out / UNREADABLE, "a", encoding="utf-8") as file:
                file.writelines(f"{photo.id}\n" for photo in lost)
        width = next(shape[1:] for shape in shapes.values() if shape[0])
        rows = (np.load(path)["features"] for path, shape in shapes.items() if shape[0])
        write_rows(target, (len(kept), *width), rows, np.float16)
        for path in shapes:
            path.unlink()
        if not os.listdir(self.out / "shards"):
            (self.out / "shards").rmdir()
        return True

    def _write_words(self, name: str, photos: Sequence[Photo]) -> None:
        """The photo of each row, its captions, and the row of each caption."""
        said = [(row, caption.text) for row, p in enumerate(photos) for caption in p.captions]
        for ending, words in (
            ("ims_files", [photo.id for photo in photos]),
            ("caps", [text for _, text in said]),
            ("rows", [row for row, _ in said]),
        ):
            write_text(self.out / f"{name}_{ending}.txt", "".join(f"{word}\n" for word in words))


def _is_of(path: Path, chunk: Sequence[Photo]) -> bool:
    """Whether a shard exists, is whole and holds these photos (they may have changed since)."""
    if not path.is_file():
        return False
    try:
        with np.load(path, allow_pickle=False) as shard:
            held = dict(shard)  # read, and held against the checksums in the file
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    return bool(held["ids"].tolist() == [photo.id for photo in chunk])


# ---- boxes of a detector ----


WHOLE = (0.0, 0.0, 1.0, 1.0)
REGIONS = 36


class Boxes:
    """The boxes of every photo of a file, ``REGIONS`` of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._of: dict[str, tuple[str, list[list[float]]]] = {}
        for number, line in enumerate(read_lines(path), start=1):
            place = f"{path}, line {number}"
            try:
                record = json.loads(line)
                image, boxes = record["image"], record["boxes"]
                numbers = [[float(side) for side in box] for box in boxes]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f'{place}: not {{"image": …, "boxes": [[left, top, right, bottom], …]}} '
                    f"({type(error).__name__}: {error})"
                ) from error
            for box in numbers:
                if len(box) != 4 or not (0 <= box[0] < box[2] and 0 <= box[1] < box[3]):
                    raise ValueError(f"{place}: {box} is not left < right, top < bottom in pixels")
            self._of[image] = (place, numbers)

    def of(self, photo: Photo) -> Float[Tensor, "regions 4"]:
        """Boxes as shares of the photo's sides."""
        found = self._of.get(photo.id) or self._of.get(photo.path.name)
        if found is None:
            raise ValueError(f"{self.path}: no boxes for {photo.path.name}; detect them too")
        place, boxes = found
        width, height = picture_size(photo.path)
        shares = []
        for left, top, right, bottom in boxes[:REGIONS]:
            if right > width + 1 or bottom > height + 1:
                raise ValueError(f"{place}: a box reaches beyond the {width} × {height} photo")
            shares.append((left / width, top / height, right / width, bottom / height))
        shares += [WHOLE] * (REGIONS - len(shares))
        return torch.tensor(shares)
