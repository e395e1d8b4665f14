"""``onnx:FILE``: an image network in onnxruntime.

The first input is pictures (n, 3, H, W), the first output embeddings (n, width). The transform is
``FILE.json`` beside it: ``{"size": 260, "mean": [r, g, b], "std": [r, g, b]}``.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gaussmatch.files import read_json
from gaussmatch.models.encoders.onnx import Network
from gaussmatch.models.encoders.pretrained.base import ImageTower, Transform, files_sha256


class OnnxTower(ImageTower):
    """Short side to ``size``, center crop, (x − mean) / std, then the network."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        beside = file.with_name(f"{file.name}.json")
        for path in (file, beside):
            if not path.is_file():
                raise FileNotFoundError(f"{path}: missing; an ONNX encoder is these two files")
        settings = read_json(beside)
        try:
            size, mean, std = (settings[name] for name in ("size", "mean", "std"))
            self._transform = Transform(int(size), mean, std, resize=int(size))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{beside}: needs size, mean and std ({error})") from error
        self.name, self._hash = f"onnx:{file.name}", files_sha256([file])
        self._network = Network(file)
        self.width = int(self(torch.zeros(1, 3, int(size), int(size))).shape[-1])
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def described(self) -> Transform:
        return self._transform

    def forward(self, pictures: Tensor) -> Tensor:
        if torch.onnx.is_in_onnx_export():
            raise ValueError(f"{self.name} cannot be exported: it is an ONNX file already")
        return self._network(pictures)[0]


def image(name: str, place: Path | None) -> OnnxTower:
    """``onnx:FILE``, or ``onnx:NAME@FOLDER`` with both files in the folder."""
    if place is None:
        place = Path(name).expanduser()
    return OnnxTower(place / name if place.is_dir() else place)
