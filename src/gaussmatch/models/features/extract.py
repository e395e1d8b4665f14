"""Photos → features in the precomputed layout, in shards that survive an interruption.

A shard is written atomically, so a killed extraction continues where it stopped. Several processes
may share the work, each with its own part of the shards; the one that finds all shards of a split
joins them into one array.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from gaussmatch.data.listing import Listing, Photo
from gaussmatch.data.pictures import open_picture, picture_size
from gaussmatch.data.stored import read_lines
from gaussmatch.files import atomic, claim_folder, new_array, write_text
from gaussmatch.models.encoders.onnx import accelerate
from gaussmatch.models.encoders.pretrained import ImageTower
from gaussmatch.models.features.features import MANIFEST, Manifest, encode
from gaussmatch.models.features.pixels import drawn_part

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
    with atomic(target) as temporary:
        array = new_array(temporary, (len(kept), *width), np.float16)
        row = 0
        for path in files:
            with np.load(path) as shard:
                if len(shard["kept"]):
                    array[row : row + len(shard["kept"])] = shard["features"]
                    row += len(shard["kept"])
        array.flush()  # type: ignore[attr-defined]
        del array
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
