"""The crop experiment: two things of a picture apart and together, and a choice between them.

From the boxes with captions of one picture (the layout of Visual Genome): of those below an area
threshold the ten largest; A is the largest of these, B the one that overlaps A least, C the box
around both, whose caption is "A and B". C shows more, so as a picture it is the more ambiguous;
its caption says more, so as a caption it is the less.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import binary_selection, bootstrap
from gaussmatch.core.similarities import Similarity
from gaussmatch.core.similarities.base import SIDES
from gaussmatch.data import coco, scenes, source
from gaussmatch.data.listing import Photo
from gaussmatch.data.pairs import Box, Pairs, Region
from gaussmatch.data.pictures import picture_size
from gaussmatch.data.scenes.world import draw
from gaussmatch.data.stored import StoredFeatures
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import DataRecipe

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5)
LARGEST = 10  # regions looked at
MOST = 2000  # pictures taken

Cut = Callable[[Image.Image, Box], Image.Image]
Features = dict[tuple[Cut, int, Box], np.ndarray]
"""How a crop was cut, its picture and its box → what an image network made of it."""


@dataclass(frozen=True)
class Triplet:
    """Regions A, B and C of one picture."""

    image: int
    a: Region
    b: Region
    c: Region


def triplet(
    image: int, regions: Sequence[Region], size: tuple[int, int], threshold: float
) -> Triplet | None:
    """The triplet of one picture of ``size`` (width, height), or ``None`` where fewer than two
    regions are below the threshold. If several overlap A equally little, B is the largest.

    >>> left, right = Region((0, 0, 4, 4), "a cat"), Region((6, 0, 9, 4), "a dog")
    >>> found = triplet(0, [right, left], (10, 10), threshold=0.2)
    >>> found.c
    Region(box=(0, 0, 9, 4), caption='a cat and a dog')
    """
    whole = size[0] * size[1]
    small = [r for r in regions if 0 < area(r.box) < threshold * whole]
    ordered = sorted(small, key=lambda r: -area(r.box))[:LARGEST]
    if len(ordered) < 2:
        return None
    a = ordered[0]
    b = min(ordered[1:], key=lambda r: overlap(a.box, r.box))  # the first of equals is the largest
    box = (*map(min, a.box[:2], b.box[:2]), *map(max, a.box[2:], b.box[2:]))
    return Triplet(image, a, b, Region(box, f"{a.caption} and {b.caption}"))  # type: ignore[arg-type]


def triplets(pairs: Pairs, threshold: float, most: int = MOST) -> list[Triplet]:
    """Triplets of up to ``most`` random pictures; one without a triplet is replaced by another."""
    if pairs.regions is None:
        raise ValueError(f"{pairs.name} has no regions, so there are no crops to choose from")
    order = list(range(len(pairs.images)))
    random.Random(0).shuffle(order)
    found: list[Triplet] = []
    for image in order:
        if len(found) == most:
            break
        if len(pairs.regions[image]) < 2:
            continue
        one = triplet(image, pairs.regions[image], _picture(pairs, image).size, threshold)
        if one is not None:
            found.append(one)
    return found


def selection(
    model: Model,
    pairs: Pairs,
    thresholds: Sequence[float] = THRESHOLDS,
    most: int = MOST,
    s: Similarity | None = None,
    crop: Cut | None = None,
    features: Features | None = None,
) -> dict[str, dict[str, float]]:
    """Binary selection for each threshold, the mean uncertainty of crops and captions A and C, and
    the 95 % interval of C less A over the triplets (``…_gap_low``, ``…_gap_high``).

    By the model's own similarity unless another is given. A threshold under which no picture has a
    triplet is left out.

    Args:
        crop: how a box becomes a picture: ``cut`` (the default), or ``cut_at_scale`` for models
            that know things by their size.
        features: of crops seen before, to be filled: models that see with the same frozen network
            share them, and it sees each crop once.
    """
    by_threshold = {f"{t:.0%}": triplets(pairs, t, most) for t in thresholds}
    wanted = [t for found in by_threshold.values() for t in found]
    if not wanted:
        return {}
    crops = list(dict.fromkeys((t.image, r.box) for t in wanted for r in (t.a, t.c)))
    words = list(dict.fromkeys(r.caption for t in wanted for r in (t.a, t.c)))
    images = _encode_crops(model, pairs, crops, crop or cut, features)
    captions = model.encode_texts(words, allow_unknown=True)
    crop_row = {crop: n for n, crop in enumerate(crops)}
    word_row = {word: n for n, word in enumerate(words)}
    score, measures = s or model.matcher.similarity, {}
    for name, found in by_threshold.items():
        if found:
            crop_of = [[crop_row[t.image, r.box] for r in (t.a, t.c)] for t in found]
            word_of = [[word_row[r.caption] for r in (t.a, t.c)] for t in found]
            rows = torch.tensor(crop_of), torch.tensor(word_of)
            measures[name] = _measure(score, images, captions, *rows)
    return measures


def crops_a_and_c(
    model: Model, pairs: Pairs, most: int = MOST, thresholds: Sequence[float] = THRESHOLDS
) -> dict[str, tuple[Gaussian, Gaussian]]:
    """The crops A and C of up to ``most`` pictures at each threshold that any picture has some for;
    each is encoded once."""
    features: Features = {}
    found = {}
    for threshold in thresholds:
        some = triplets(pairs, threshold, most)
        if some:
            sides = ([(t.image, getattr(t, side).box) for t in some] for side in ("a", "c"))
            a, c = (_encode_crops(model, pairs, crops, cut, features) for crops in sides)
            found[f"{threshold:.0%}"] = a, c
    return found


def area(box: Box) -> float:
    """Width times height; zero for a box turned inside out."""
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def overlap(a: Box, b: Box) -> float:
    """IoU, intersection over union.

    >>> overlap((0, 0, 2, 2), (1, 0, 3, 2))
    0.3333333333333333
    """
    both = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))
    union = area(a) + area(b) - both
    return both / union if union > 0 else 0.0


@torch.no_grad()
def _measure(
    s: Similarity, images: Gaussian, captions: Gaussian, crop: torch.Tensor, word: torch.Tensor
) -> dict[str, float]:
    """Of n triplets: ``crop`` and ``word`` (n, 2) are the rows of A and C."""

    def scores(s: Similarity) -> torch.Tensor:
        found = [s.paired(images[crop[:, i]], captions[word[:, c]]) for i in (0, 1) for c in (0, 1)]
        return torch.stack(found, -1).view(-1, 2, 2)

    by_image, by_caption = (scores(s.for_query(side)) for side in SIDES)
    measures = {"triplets": float(len(crop)), **binary_selection(by_image, by_caption)}
    if not images.is_point:
        for side, rows, g in (("crop", crop, images), ("caption", word, captions)):
            a, c = (g[rows[:, n]].uncertainty().double() for n in (0, 1))
            gap = bootstrap(c - a)
            measures |= {
                f"{side}_a_uncertainty": float(a.mean()),
                f"{side}_c_uncertainty": float(c.mean()),
                f"{side}_gap_low": gap.low,
                f"{side}_gap_high": gap.high,
            }
    return measures


def _encode_crops(
    model: Model,
    pairs: Pairs,
    crops: Sequence[tuple[int, Box]],
    crop: Cut,
    features: Features | None,
) -> Gaussian:
    parts = []
    for start in range(0, len(crops), 256):
        chosen = crops[start : start + 256]
        known = {} if features is None else features
        new = [(i, box) for i, box in chosen if (crop, i, box) not in known]
        if new:
            seen = model.featurize([crop(_picture(pairs, i), box) for i, box in new])
            known |= {(crop, i, box): row for (i, box), row in zip(new, seen, strict=True)}
        parts.append(model.encode_images(np.stack([known[crop, i, box] for i, box in chosen])))
    return Gaussian.cat(parts)


def cut(picture: Image.Image, box: Box) -> Image.Image:
    """The part of a picture in a box, widened to whole pixels and kept inside, one at least."""
    left = min(max(0, math.floor(box[0])), picture.width - 1)
    top = min(max(0, math.floor(box[1])), picture.height - 1)
    right = max(left + 1, min(picture.width, math.ceil(box[2])))
    bottom = max(top + 1, min(picture.height, math.ceil(box[3])))
    return picture.crop((left, top, right, bottom))


def cut_at_scale(picture: Image.Image, box: Box) -> Image.Image:
    """The same part in the center of an empty picture of the whole's size and background, so that
    what it shows stays as large as it was. The background is the commonest color of the edge.

    >>> cut_at_scale(Image.new("RGB", (8, 6), "red"), (0, 0, 2, 2)).size
    (8, 6)
    """
    part = cut(picture, box)
    edge = np.asarray(picture.convert("RGB"))
    rim = np.concatenate([edge[0], edge[-1], edge[:, 0], edge[:, -1]])
    colors, times = np.unique(rim, axis=0, return_counts=True)
    whole = Image.new("RGB", picture.size, tuple(int(c) for c in colors[times.argmax()]))
    whole.paste(part, ((picture.width - part.width) // 2, (picture.height - part.height) // 2))
    return whole


def _picture(pairs: Pairs, image: int) -> Image.Image:
    picture = pairs.images.picture(image)
    if picture is None:
        raise ValueError(f"{pairs.name}: image {image} has regions but no picture to crop")
    return picture


SCENES_THRESHOLDS = (0.04, 0.07, 0.1, 0.15, 0.2)
"""The paper's 10–50 % of a photo; a thing of a scene takes 2–17 %."""
SPARE = 2
"""Scenes drawn for each triplet wanted: not every picture has two things below a threshold."""
STAND_IN = (
    "Boxes of COCO's 80 classes on its test photos stand in for Visual Genome: A and B are chosen "
    "by the paper's rule, their captions are made of the class names (“a dog”, “a dog and a "
    "frisbee”), which say far less than a phrase that a person wrote for a region."
)
WANTED = {"mini": 15, "tiny": 60, "small": 500, "full": MOST}
"""Triplets for each size of scenes; the paper's 2,000 for the full one."""


def crop_pairs(data: DataRecipe, visual_genome: Path | None = None) -> Pairs:
    """Scenes of a split of their own; the photos of Visual Genome without COCO's training; or, of
    COCO without Visual Genome, its test photos with the boxes of its 80 classes (``STAND_IN``)."""
    if data.name == "scenes":
        return _scenes(data)
    if visual_genome is not None:
        coco_root = data.root if data.name == "coco" else None
        recipe = DataRecipe(name="visual-genome", root=str(visual_genome), coco=coco_root)
        photos = source(recipe.name).listing(recipe, visual_genome).photos
        return _boxed("visual-genome/all", photos)
    if data.name == "coco" and data.root is not None:
        return _boxed("coco/test", coco.read(Path(data.root), boxes=True).splits["test"])
    raise ValueError(
        f"{data.name} has no boxes with captions: give the folder of Visual Genome as "
        "--visual-genome FOLDER ('gaussmatch data where visual-genome')"
    )


def _boxed(name: str, photos: Sequence[Photo]) -> Pairs:
    """Photos with their boxes, in pixels of the files that are there."""
    shown = [photo for photo in photos if photo.path.is_file()]
    if not shown:
        raise FileNotFoundError(
            f"{photos[0].path}: no such image; crops are cut from photos, and none of the "
            f"{len(photos):,} of {name} is there"
        )
    photos = [_scaled(photo) for photo in shown]
    return Pairs(
        name,
        StoredFeatures(np.empty((len(photos), 0)), range(len(photos)), [p.path for p in photos]),
        [p.captions[0].text for p in photos],
        torch.arange(len(photos)),
        regions=[p.regions for p in photos],
    )


def _scaled(photo: Photo) -> Photo:
    """A photo of another size than its annotations say keeps its boxes in the same places."""
    if photo.size is None:
        return photo
    width, height = picture_size(photo.path)
    across, down = width / photo.size[0], height / photo.size[1]
    if (across, down) == (1, 1):
        return photo
    regions = [
        Region((left * across, top * down, right * across, bottom * down), region.caption)
        for region in photo.regions
        for left, top, right, bottom in [region.box]
    ]
    return replace(photo, regions=tuple(regions))


def choose(
    model: Model, pairs: Pairs, data: DataRecipe, features: Features | None = None
) -> dict[str, Any]:
    """Binary selection and uncertainty at every threshold, as flat measures. ``features`` are those
    of the same crops through the same frozen network, for the next model.

    ``{threshold}_crop_a`` … and their means over the thresholds, ``mean_crop_a`` …. On scenes the
    crops keep their scale, as size is a word of its captions; crops magnified to a whole picture,
    as those of photos are, stand beside them as ``magnified_…``.
    """
    if data.name != "scenes":
        notes = {"notes": [STAND_IN]} if pairs.name == "coco/test" else {}
        return {"data": pairs.name, **_flat(selection(model, pairs, features=features)), **notes}
    limits, most = SCENES_THRESHOLDS, WANTED[data.size]
    at_scale = selection(model, pairs, limits, most, crop=cut_at_scale, features=features)
    magnified = _flat(selection(model, pairs, limits, most, features=features))
    return {
        "data": pairs.name,
        **_flat(at_scale),
        **{f"magnified_{key}": value for key, value in magnified.items()},
    }


def _flat(found: dict[str, dict[str, float]]) -> dict[str, float]:
    flat = {f"{t}_{key}": value for t, one in found.items() for key, value in one.items()}
    for key in next(iter(found.values()), {}):
        flat[f"mean_{key}"] = sum(one[key] for one in found.values()) / len(found)
    return flat


def _scenes(data: DataRecipe) -> Pairs:
    split = scenes.make_split("crops", round(SPARE * WANTED[data.size]), data.seed)
    return Pairs(
        "scenes/crops",
        scenes.SceneImages(np.stack([np.asarray(draw(s)) for s in split.scenes]), None),
        [captions[0].text for captions in split.captions],
        torch.arange(len(split.scenes)),
        regions=[
            [Region(thing.box, text) for thing, text in zip(s.things, texts, strict=True)]
            for s, texts in zip(split.scenes, split.regions, strict=True)
        ],
    )
