"""Pictures with boxes and captions, unseen in training, for the experiments on crops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaussmatch.data import coco, scenes, source
from gaussmatch.data.listing import Photo
from gaussmatch.data.pairs import Pairs, Region
from gaussmatch.data.pictures import picture_size
from gaussmatch.data.scenes.world import draw
from gaussmatch.data.stored import StoredFeatures
from gaussmatch.learn.evaluation.triplets import MOST, Features, cut_at_scale, selection
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import DataRecipe

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
        return _boxed(
            "visual-genome/all", source(recipe.name).listing(recipe, visual_genome).photos
        )
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
