"""``onnx:FILE``: an image network in onnxruntime.

The first input is pictures (n, 3, H, W), the first output embeddings (n, width). The transform is
``FILE.json`` beside it: ``{"size": 260, "mean": [r, g, b], "std": [r, g, b]}``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gaussmatch.encoders.pretrained.base import ImageTower, files_sha256, needs
from gaussmatch.files import read_json


class OnnxImages(ImageTower):
    """Short side to ``size``, center crop, (x − mean) / std, then the network."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError as error:
            raise needs("onnxruntime", "onnx", error) from error
        beside = file.with_name(f"{file.name}.json")
        for path in (file, beside):
            if not path.is_file():
                raise FileNotFoundError(f"{path}: missing; an ONNX encoder is these two files")
        settings = read_json(beside)
        try:
            self.size = int(settings["size"])
            self._mean, self._std = (
                np.asarray(settings[k], np.float32).reshape(3, 1, 1) for k in ("mean", "std")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{beside}: needs size, mean and std ({error})") from error
        self.name, self._hash = f"onnx:{file.name}", files_sha256([file])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(
            file, options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name
        self.width = int(self(torch.zeros(1, 3, self.size, self.size)).shape[-1])
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def transform(self, picture: Image.Image, crop: bool = True) -> Tensor:
        scale = self.size / min(picture.size)
        wide, high = (max(self.size, round(side * scale)) for side in picture.size)
        left, top = (wide - self.size) // 2, (high - self.size) // 2
        cut = (
            picture.convert("RGB")
            .resize((wide, high), Image.Resampling.BICUBIC)
            .crop((left, top, left + self.size, top + self.size))
        )
        values = np.asarray(cut, np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy((values - self._mean) / self._std)

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.from_numpy(self._session.run(None, {self._input: pictures.numpy()})[0])


def image(name: str, place: Path | None) -> OnnxImages:
    return OnnxImages(place or Path(name).expanduser())
