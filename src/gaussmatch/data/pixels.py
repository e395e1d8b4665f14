"""Photos as pixels, for networks that are trained end to end.

In training a random part of the photo, perhaps mirrored, at every visit; else its center. This is
what the official VSE++ does (torchvision's ``RandomResizedCrop`` and flip; ``Resize``,
``CenterCrop``). Values are in [0, 1]: a backbone normalises them its own way.
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
from gaussmatch.encoders.torchvision_compat import make_importable

ROOM = 256 / 224
"""The short side of a photo before its center is cut out, as a multiple of the crop's side."""

View = Callable[[Image.Image], Image.Image]


class PhotoPixels:
    """An ``ImageSource`` of photos that are decoded when read: (3, crop, crop) in [0, 1]."""

    def __init__(self, paths: Sequence[Path], crop: int, view: str = "center") -> None:
        self._paths = paths
        self._still, self._crop = still(crop, view), crop

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> np.ndarray:
        return unit(self._still(open_picture(self._paths[index])))

    def random_view(self, index: int, seed: int) -> np.ndarray:
        """A random part of the photo, perhaps mirrored; the same for the same seed."""
        return unit(drawn_part(open_picture(self._paths[index]), self._crop, seed))

    def picture(self, index: int) -> Image.Image | None:
        return open_picture(self._paths[index]) if self._paths[index].is_file() else None


def still(crop: int, view: str = "center") -> View:
    """The view for evaluation: short side to 256/224 of the crop, then the center; or the whole
    photo, squeezed into the square."""
    t = _transforms()
    if view == "whole":
        squeeze: View = t.Resize((crop, crop))
        return squeeze
    center: View = t.Compose([t.Resize(round(ROOM * crop)), t.CenterCrop(crop)])
    return center


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


def unit(picture: Image.Image) -> np.ndarray:
    """A picture as float32 (3, h, w) in [0, 1]."""
    array = np.asarray(picture.convert("RGB"), dtype=np.float32)
    return np.ascontiguousarray(array.transpose(2, 0, 1)) / np.float32(255)


def _transforms() -> Any:
    make_importable()
    with extra("vision", "pixels of photos"):
        from torchvision import transforms
    return transforms
