"""Data sets, each as three splits of ``Pairs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from PIL import Image

from gaussmatch.data import scenes
from gaussmatch.data.pairs import DataSet, ImageSource, Pairs, Region
from gaussmatch.recipe import DataRecipe

__all__ = ["DataSet", "ImageSource", "Pairs", "Region", "featuriser", "load_data"]


def load_data(recipe: DataRecipe) -> DataSet:
    """The data set of a recipe."""
    return scenes.load(recipe.size, recipe.seed, recipe.features)


def featuriser(recipe: DataRecipe) -> Callable[[Sequence[Image.Image]], np.ndarray]:
    """How a picture becomes what a model trained on this data takes: (n, …) float32."""
    return partial(scenes.featurise, features=recipe.features)
