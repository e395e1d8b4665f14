"""Pictures as pixels, for networks that are trained end to end.

In training a random part of the photo, perhaps mirrored, at every visit; else its center. This is
what the official VSE++ does (torchvision's ``RandomResizedCrop`` and flip; ``Resize``,
``CenterCrop``). Values are in [0, 1]: a backbone normalizes them its own way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gaussmatch.checks import extra
from gaussmatch.data.pictures import open_picture
from gaussmatch.data.scenes.world import WIDTH as SCENE
from gaussmatch.models.encoders.pretrained.base import Transform, make_importable
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
