"""How features were made from photos, stored beside them so that new photos are encoded alike.

A folder of extracted features holds the precomputed layout (``{split}_ims.npy``,
``{split}_caps.txt``), the image of each row (``{split}_ims_files.txt``) and ``manifest.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from gaussmatch.device import default_device
from gaussmatch.files import read_json, write_json
from gaussmatch.models.encoders.backbone import Backbone
from gaussmatch.models.encoders.base import ImageTransform
from gaussmatch.models.encoders.onnx import accelerate
from gaussmatch.models.encoders.pretrained import ImageTower, image_tower
from gaussmatch.models.encoders.pretrained.base import stacked

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
            older = {"view": "center", "crops": 0, "layout": content.get("kind")}
            content = {**older, **content}
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
