"""A detector's boxes: JSON lines ``{"image": "a.jpg", "boxes": [[left, top, right, bottom], …]}``.

Boxes are in pixels of the photo. The first 36 count; a photo with fewer has the whole picture in
the places that are left, so that every photo has as many regions.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.data.listing import Photo
from gaussmatch.data.pictures import picture_size
from gaussmatch.data.stored import read_lines

WHOLE = (0.0, 0.0, 1.0, 1.0)


class Boxes:
    """The boxes of every photo of a file.

    Args:
        path: the file.
        regions: how many boxes each photo is given.
    """

    def __init__(self, path: Path, regions: int = 36) -> None:
        self.path, self.regions = path, regions
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
            raise ValueError(f"{self.path}: no boxes for {photo.path.name}; detect it as well")
        place, boxes = found
        width, height = picture_size(photo.path)
        shares = []
        for left, top, right, bottom in boxes[: self.regions]:
            if right > width + 1 or bottom > height + 1:
                raise ValueError(f"{place}: a box reaches beyond the {width} × {height} photo")
            shares.append((left / width, top / height, right / width, bottom / height))
        shares += [WHOLE] * (self.regions - len(shares))
        return torch.tensor(shares)
