"""``scenes``: drawn pictures with captions, for which it is known what is true of what.

Splits are made from a seed and are the same on every machine (pictures up to the rounding of the
installed Pillow). See ``world`` for what a scene is, ``captions`` for who writes
and what is meant, ``truth`` for what is true, ``backbone`` for the frozen features.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from gaussmatch.core.metrics.ranking import Relevance
from gaussmatch.data.pairs import DataSet, Pairs, Region
from gaussmatch.data.scenes.backbone import backbone_hash, load_backbone
from gaussmatch.data.scenes.captions import SceneCaption, annotate, describe
from gaussmatch.data.scenes.truth import Balanced, balanced, true_of
from gaussmatch.data.scenes.world import SHAPES, WIDTH, Dice, Scene, draw, sample_scene
from gaussmatch.files import cache_root, made_once

VERSION = 2  #: of the generator; a change in what it makes must raise it

Size = Literal["mini", "tiny", "small", "full"]
Features = Literal["pooled", "regions", "pixels"]

#: Images in each split.
SIZES: dict[str, dict[str, int]] = {
    "mini": {"train": 60, "dev": 30, "test": 30},
    "tiny": {"train": 300, "dev": 100, "test": 100},
    "small": {"train": 1200, "dev": 300, "test": 300},
    "full": {"train": 5000, "dev": 1000, "test": 1000},
}
CLASSES = SHAPES  #: the object classes of ``Pairs.classes``


def load(
    size: Size = "full",
    seed: int = 0,
    features: Features = "pooled",
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> DataSet:
    """The data set, made on first use and then read from the cache.

    Every image has five captions, by five different annotators. ``classes`` are the eight shapes,
    ``regions`` each thing's box with a caption of its own. ``relevance`` of dev and test holds
    every image that a caption is true of; train has none, as 25,000 × 5,000 is large and nothing
    should learn from it (``make_split`` and ``true_of`` give it to whoever wants it).

    Args:
        size: ``mini`` (60/30/30 images), ``tiny`` (300/100/100), ``small`` (1200/300/300) or
            ``full`` (5000/1000/1000).
        seed: of the scenes; another seed is another data set.
        features: what an image is: ``pooled`` (256), ``regions`` (36, 256) or ``pixels``
            (3, 64, 64) in [0, 1].
        cache: a folder; if not given ``$GAUSSMATCH_CACHE/scenes``, else
            ``~/.cache/gaussmatch/scenes``.
    """
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}; choose from {', '.join(SIZES)}")
    if features not in ("pooled", "regions", "pixels"):
        raise ValueError(f"unknown features {features!r}; choose pooled, regions or pixels")
    root = cache_root() / "scenes" if cache is None else Path(cache)
    key = f"v{VERSION}-{size}-{seed}"
    base = made_once(root / key, lambda folder: _write_world(folder, size, seed, progress))
    held = base
    if features != "pixels":
        held = made_once(
            root / f"{key}-{features}-{backbone_hash()}",
            lambda folder: _write_features(folder, base, features, progress),
        )
    return DataSet("scenes", *(_read(name, base, held, features) for name in SIZES[size]))


@dataclass(frozen=True)
class Split:
    """Scenes and their captions with all that the maker knows."""

    scenes: list[Scene]
    captions: list[tuple[SceneCaption, ...]]  #: five for each scene
    regions: list[tuple[str, ...]]  #: one caption for each thing of a scene


def make_split(name: str, images: int, seed: int = 0, progress: bool = False) -> Split:
    """The scenes of one split, from the lot.

    >>> split = make_split("test", images=2)
    >>> [len(captions) for captions in split.captions]
    [5, 5]
    """
    dice = Dice(f"scenes-{VERSION}-{seed}-{name}")
    split = Split([], [], [])
    for _ in tqdm(range(images), f"scenes/{name}", disable=not progress):
        scene = sample_scene(dice)
        split.scenes.append(scene)
        split.captions.append(annotate(dice, scene))
        split.regions.append(tuple(describe(dice, thing) for thing in scene.things))
    return split


def featurize(
    images: Sequence[Image.Image], features: Features = "pooled", batch: int = 256
) -> np.ndarray:
    """Pictures of any size and mode → what the image encoder of a scenes model takes.

    Each is made RGB and 64×64 (squeezed if it is not square), then goes through the frozen net.

    Returns:
        (n, 256), (n, 36, 256) or (n, 3, 64, 64), float32.

    >>> featurize([Image.new("L", (40, 30))], "regions").shape
    (1, 36, 256)
    """
    if not images:
        raise ValueError("no images to featurize")
    return np.concatenate(
        [
            _features(np.stack([_square(image) for image in images[i : i + batch]]), features)
            for i in range(0, len(images), batch)
        ]
    )


class SceneImages:
    """An ``ImageSource``: stored features beside the pictures they were made of."""

    def __init__(self, pictures: np.ndarray, features: np.ndarray | None) -> None:
        self._pictures, self._features = pictures, features

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> np.ndarray:
        if self._features is None:
            return _unit(self._pictures[index])
        return np.array(self._features[index], dtype=np.float32)

    def picture(self, index: int) -> Image.Image:
        return Image.fromarray(np.array(self._pictures[index]))


# ---- pictures and features ----


def _square(image: Image.Image) -> np.ndarray:
    image = image.convert("RGB")
    if image.size != (WIDTH, WIDTH):
        image = image.resize((WIDTH, WIDTH), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _unit(pictures: np.ndarray) -> np.ndarray:
    """Bytes (..., 64, 64, 3) → float32 (..., 3, 64, 64) in [0, 1]."""
    return np.ascontiguousarray(np.moveaxis(pictures, -1, -3), dtype=np.float32) / 255


@torch.inference_mode()
def _features(pictures: np.ndarray, features: Features) -> np.ndarray:
    units = _unit(pictures)
    if features == "pixels":
        return units
    net = load_backbone()
    encode = net if features == "pooled" else net.forward_grid
    return np.asarray(encode(torch.from_numpy(units)).numpy())


# ---- the cache ----


def _write_world(folder: Path, size: str, seed: int, progress: bool) -> None:
    for name, images in SIZES[size].items():
        split = make_split(name, images, seed, progress)
        drawn = tqdm(split.scenes, f"scenes/{name} pictures", disable=not progress)
        np.save(folder / f"{name}-pictures.npy", np.stack([np.asarray(draw(s)) for s in drawn]))
        words = {
            "captions": [c.text for captions in split.captions for c in captions],
            "shapes": [[t.shape for t in scene.things] for scene in split.scenes],
            "boxes": [[t.box for t in scene.things] for scene in split.scenes],
            "regions": split.regions,
        }
        (folder / f"{name}.json").write_text(json.dumps(words), encoding="utf-8")
        if name != "train":
            truth = true_of([c.form for captions in split.captions for c in captions], split.scenes)
            np.save(folder / f"{name}-truth-starts.npy", truth.indptr.numpy())
            np.save(folder / f"{name}-truth-items.npy", truth.items.numpy().astype(np.int32))


def _write_features(folder: Path, base: Path, features: Features, progress: bool) -> None:
    for path in sorted(base.glob("*-pictures.npy")):
        name, pictures = path.name.removesuffix("-pictures.npy"), np.load(path, mmap_mode="r")
        blocks = tqdm(
            range(0, len(pictures), 250), f"scenes/{name} {features}", disable=not progress
        )
        rows = np.concatenate([_features(pictures[i : i + 250], features) for i in blocks])
        np.save(folder / f"{name}.npy", rows.astype(np.float16) if features == "regions" else rows)


def _read(name: str, base: Path, held: Path, features: Features) -> Pairs:
    words = json.loads((base / f"{name}.json").read_text(encoding="utf-8"))
    pictures = np.load(base / f"{name}-pictures.npy", mmap_mode="r")
    stored = None
    if features != "pixels":
        stored = np.load(held / f"{name}.npy", mmap_mode=None if features == "pooled" else "r")
    n, truth = len(pictures), None
    if name != "train":
        starts, items = (np.load(base / f"{name}-truth-{part}.npy") for part in ("starts", "items"))
        truth = Relevance(torch.from_numpy(starts), torch.from_numpy(items).long(), n)
    return Pairs(
        name=f"scenes/{name}",
        images=SceneImages(pictures, stored),
        captions=words["captions"],
        image_of=torch.arange(n).repeat_interleave(len(words["captions"]) // n),
        classes=torch.tensor([[shape in shown for shape in CLASSES] for shown in words["shapes"]]),
        regions=[
            [Region(tuple(box), text) for box, text in zip(boxes, texts, strict=True)]
            for boxes, texts in zip(words["boxes"], words["regions"], strict=True)
        ],
        relevance=truth,
        exhaustive=True,
    )
