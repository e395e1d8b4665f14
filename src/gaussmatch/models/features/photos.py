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
from collections.abc import Callable, Sequence
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

View = Callable[[Image.Image], Image.Image]


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


@cache
def _part(crop: int) -> View:
    """The view for training: 8–100 % of the area, sides 3:4 to 4:3, mirrored half of the time."""
    t = _transforms()
    view: View = t.Compose([t.RandomResizedCrop(crop), t.RandomHorizontalFlip()])
    return view


_DRAWING = threading.Lock()


def drawn_part(picture: Image.Image, crop: int, seed: int) -> Image.Image:
    """A random part of a picture; the same for the same seed, in any thread."""
    with _DRAWING, torch.random.fork_rng(devices=[]):  # torchvision draws from the global generator
        torch.manual_seed(seed)
        return _part(crop)(picture)


def _transforms() -> Any:
    make_importable()
    with extra("vision", "pixels of photos"):
        from torchvision import transforms
    return transforms


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


def featuriser_of(folder: Path) -> ImageTransform:
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
    return featuriser_with(net, manifest.layout)


def featuriser_with(net: ImageTower, layout: Layout) -> ImageTransform:
    if layout == "boxes":
        raise ValueError(
            "the features were made from a detector's boxes, which a new photo does not have; "
            "give ready features (an array)"
        )
    if layout == "pooled":
        accelerate(net)

    def featurise(images: Sequence[Image.Image]) -> np.ndarray:
        if layout == "pooled":
            return net.encode(images).numpy()
        chunks = (images[i : i + net.at_once] for i in range(0, len(images), net.at_once))
        return np.concatenate(
            [encode(net, layout, stacked(map(net.transform, some))) for some in chunks]
        )

    return featurise


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


CROPS = "train_crops"
"""The name under which the crops of the training photos are kept, as a split of its own."""


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
    plan = plan or ExtractionPlan()
    _claim(out, manifest)
    if manifest.layout == "pooled":
        accelerate(net)
    if not plan.skip_unreadable:
        listing.check_files("see 'gaussmatch data check', or leave out with --skip-unreadable")
    splits = {name: photos for name, photos in listing.splits.items() if photos}
    if manifest.crops and "train" in splits:
        splits[CROPS] = splits["train"]
    with tqdm(total=sum(map(len, splits.values())), unit="photo", disable=not progress) as bar:
        for name, photos in splits.items():
            bar.set_description(f"{listing.name}/{name}")
            if (out / f"{name}_ims.npy").is_file():
                check_same(name, photos, out)
                bar.update(len(photos))
                continue
            _shards(name, photos, out, net, manifest, plan, boxes, bar)
    joined = [join(name, photos, out, plan.shard) for name, photos in splits.items()]
    return all(joined)


def _claim(out: Path, manifest: Manifest) -> None:
    """Never mix features of two networks in one folder."""
    if (out / MANIFEST).is_file():
        before = Manifest.load(out)
        if replace(before, weights=manifest.weights) != manifest:
            raise ValueError(
                f"{out} holds {before.layout} features of {before.backbone}; "
                "continue with the same settings, or choose another folder with --out"
            )
        return
    claim_folder(out, MANIFEST)
    manifest.save(out)


def _shards(
    name: str,
    photos: Sequence[Photo],
    out: Path,
    net: ImageTower,
    manifest: Manifest,
    plan: ExtractionPlan,
    boxes: Boxes | None,
    bar: tqdm[NoReturn],
) -> None:
    k, of, at_a_time = *plan.part, plan.batch or net.at_once
    transform = partial(net.transform, whole=None if boxes is None else True)
    if name == CROPS:
        transform = partial(_crops, net, manifest.crops)
    with ThreadPoolExecutor(plan.workers) as pool:
        for i, path in enumerate(shard_files(name, photos, out, plan.shard)):
            chunk = photos[i * plan.shard : (i + 1) * plan.shard]
            if i % of != k or is_of(path, chunk):
                bar.update(len(chunk))
                continue
            rows, kept = [], []
            decoded = pool.map(lambda p: _picture(p, transform, plan), chunk)  # runs ahead
            for start in range(0, len(chunk), at_a_time):
                batch = chunk[start : start + at_a_time]
                read = list(islice(decoded, len(batch)))
                good = [j for j, picture in enumerate(read) if picture is not None]
                if good:
                    pictures = torch.stack([p for p in read if p is not None])
                    rows.append(_features([batch[j] for j in good], pictures, net, manifest, boxes))
                    kept += [start + j for j in good]
                bar.update(len(batch))
            with atomic(path) as temporary, open(temporary, "wb") as file:
                features = np.concatenate(rows) if rows else np.zeros((0, 0), np.float16)
                np.savez(
                    file,
                    features=features,
                    kept=np.array(kept, dtype=np.int64),
                    ids=np.array([photo.id for photo in chunk]),
                )


def _crops(net: ImageTower, crops: int, picture: Image.Image) -> torch.Tensor:
    """Random crops of a photo, perhaps mirrored, as the network takes them; the same every time."""
    side = net.transform(picture).shape[-1]
    seed = zlib.crc32(picture.tobytes())
    return torch.stack(
        [net.transform(drawn_part(picture, side, seed + i), whole=True) for i in range(crops)]
    )


def _picture(
    photo: Photo, transform: Callable[[Image.Image], torch.Tensor], plan: ExtractionPlan
) -> torch.Tensor | None:
    """The photo as the network takes it; ``None`` if it is broken and can be left out."""
    try:
        picture = open_picture(photo.path)
    except (ValueError, OSError) as error:
        if plan.skip_unreadable:
            return None
        raise ValueError(
            f"{error}; repair or remove it, or leave such photos out with --skip-unreadable"
        ) from error
    return transform(picture)


def _features(
    photos: Sequence[Photo],
    pictures: torch.Tensor,
    net: ImageTower,
    manifest: Manifest,
    boxes: Boxes | None,
) -> np.ndarray:
    """float16 features; an error if they overflow half precision."""
    at = None if boxes is None else torch.stack([boxes.of(photo) for photo in photos])
    if pictures.ndim == 5:  # crops of each photo
        flat = encode(net, manifest.layout, pictures.flatten(0, 1), at)
        features = flat.reshape(len(pictures), -1, *flat.shape[1:])
    else:
        features = encode(net, manifest.layout, pictures, at)
    with np.errstate(over="ignore"):
        half = features.astype(np.float16)
    for photo, row in zip(photos, half, strict=True):
        if not np.isfinite(row).all():
            raise ValueError(f"{photo.path}: its features are not finite in float16")
    return half


UNREADABLE = "unreadable.txt"
"""Ids of the photos that were left out."""


def shard_files(name: str, photos: Sequence[Photo], out: Path, size: int) -> list[Path]:
    """The files of a split's shards, ``size`` photos each."""
    count = -(-len(photos) // size)
    return [out / "shards" / f"{name}-{size}-{i:05}.npz" for i in range(count)]


def is_of(path: Path, chunk: Sequence[Photo]) -> bool:
    """Whether a shard exists, is whole and holds these photos (they may have changed since)."""
    if not path.is_file():
        return False
    try:
        with np.load(path, allow_pickle=False) as shard:
            held = dict(shard)  # read, and held against the checksums in the file
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
    return bool(held["ids"].tolist() == [photo.id for photo in chunk])


def check_same(name: str, photos: Sequence[Photo], out: Path) -> None:
    """Refuse a finished split if its photos are not these."""
    lost = set(read_lines(out / UNREADABLE)) if (out / UNREADABLE).is_file() else set()
    if read_lines(out / f"{name}_ims_files.txt") != [p.id for p in photos if p.id not in lost]:
        raise ValueError(
            f"{out / f'{name}_ims_files.txt'}: the photos of {name} have changed; "
            "extract into a new folder with --out"
        )


def join(name: str, photos: Sequence[Photo], out: Path, size: int) -> bool:
    """One array of all shards of a split, row by row through a memory map."""
    target, files = out / f"{name}_ims.npy", shard_files(name, photos, out, size)
    if target.is_file():
        return True
    chunks = (photos[i : i + size] for i in range(0, len(photos), size))
    if not all(is_of(path, chunk) for path, chunk in zip(files, chunks, strict=True)):
        return False
    kept: list[int] = []
    shapes = []
    for i, path in enumerate(files):
        with np.load(path) as shard:
            kept += (i * size + shard["kept"]).tolist()
            shapes.append(shard["features"].shape)
    if not kept:
        raise ValueError(f"{out}: no photo of {name} could be read")
    _write_words(name, [photos[i] for i in kept], out)
    lost = sorted(set(range(len(photos))) - set(kept))
    if lost:
        with open(out / UNREADABLE, "a", encoding="utf-8") as file:
            file.writelines(f"{photos[i].id}\n" for i in lost)
    width = next(shape[1:] for shape in shapes if shape[0])
    rows = (
        np.load(path)["features"] for path, shape in zip(files, shapes, strict=True) if shape[0]
    )
    write_rows(target, (len(kept), *width), rows, np.float16)
    for path in files:
        path.unlink()
    if not os.listdir(out / "shards"):
        (out / "shards").rmdir()
    return True


def _write_words(name: str, photos: Sequence[Photo], out: Path) -> None:
    def lines(words: Sequence[object]) -> str:
        return "".join(f"{word}\n" for word in words)

    counts = [len(photo.captions) for photo in photos]
    write_text(out / f"{name}_ims_files.txt", lines([photo.id for photo in photos]))
    write_text(out / f"{name}_caps.txt", lines([c.text for p in photos for c in p.captions]))
    rows = [i for i, count in enumerate(counts) for _ in range(count)]
    write_text(out / f"{name}_rows.txt", lines(rows))


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
