"""Data sets, each as three splits of ``Pairs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from gaussmatch.data import precomputed, scenes
from gaussmatch.data.pairs import DataSet, ImageSource, Pairs, Region
from gaussmatch.data.photos import load_photos, photo_featuriser, pixel_featuriser
from gaussmatch.recipe import DataRecipe

__all__ = ["DataSet", "ImageSource", "Pairs", "Region", "featuriser", "load_data"]


def load_data(recipe: DataRecipe) -> DataSet:
    """The data set of a recipe."""
    if recipe.name == "scenes":
        return scenes.load(recipe.size, recipe.seed, recipe.features)
    if recipe.name == "precomputed":
        return precomputed.load(data_root(recipe), recipe.dev_images)
    return load_photos(recipe, data_root(recipe))


def featuriser(recipe: DataRecipe) -> Callable[[Sequence[Image.Image]], np.ndarray]:
    """How a picture becomes what a model trained on this data takes: (n, …) float32."""
    if recipe.name == "scenes":
        return partial(scenes.featurise, features=recipe.features)
    if recipe.features == "pixels":
        return pixel_featuriser(recipe)
    return photo_featuriser(recipe, data_root(recipe))


def data_root(recipe: DataRecipe) -> Path:
    """The folder that the user named."""
    if recipe.root is None:
        raise ValueError(
            f"data.root is not set: give the folder of {recipe.name} as --data.root FOLDER "
            f"('gaussmatch data where {recipe.name}' tells what it must hold)"
        )
    return Path(recipe.root).expanduser()
