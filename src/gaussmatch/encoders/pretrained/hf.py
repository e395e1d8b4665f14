"""``hf:REPO``: both towers of the CLIP and SigLIP models of transformers (SigLIP 2 included)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from gaussmatch.encoders.base import Tokens
from gaussmatch.encoders.pretrained import hub
from gaussmatch.encoders.pretrained.base import (
    ImageTower,
    Subwords,
    TextTower,
    as_tensor,
    files_sha256,
    needs,
)
from gaussmatch.encoders.torchvision_compat import make_importable

TYPES = ("clip", "siglip")
"""``model_type`` of a configuration; SigLIP 2 at a fixed size is a ``siglip``."""


class _Files:
    """The folder of a model, and the library that reads it."""

    def __init__(self, name: str, place: Path | None) -> None:
        make_importable()
        try:
            import transformers
        except ImportError as error:
            raise needs("transformers", "hf", error) from error
        self.library, self.folder = transformers, place or hub.snapshot(name)
        config = self.folder / "config.json"
        if not config.is_file():
            raise FileNotFoundError(f"{config}: missing; the folder of hf:{name} must hold it")
        self.type = json.loads(config.read_text(encoding="utf-8")).get("model_type")
        if self.type not in TYPES:
            raise ValueError(f"{config}: model_type {self.type!r} is none of {', '.join(TYPES)}")
        self.weights = sorted(self.folder.glob("*.safetensors"))
        if not self.weights:
            raise FileNotFoundError(f"{self.folder}: no .safetensors; only those are loaded")

    def model(self) -> Any:
        return self.library.AutoModel.from_pretrained(
            self.folder, use_safetensors=True, local_files_only=True
        )


class HfImages(ImageTower):
    """The image tower, unit length."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        files = _Files(name, place)
        self.name, self._hash = f"hf:{name}", files_sha256(files.weights)
        self._process = files.library.AutoImageProcessor.from_pretrained(
            files.folder, local_files_only=True
        )
        self.net = files.model()
        self.net.text_model = nn.Identity()
        size = self._process(images=Image.new("RGB", (8, 8)), return_tensors="pt")["pixel_values"]
        self.width = int(self(size).shape[-1])
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def transform(self, picture: Image.Image, crop: bool = True) -> Tensor:
        made = self._process(images=picture.convert("RGB"), return_tensors="pt")
        out: Tensor = made["pixel_values"][0]
        return out

    def forward(self, pictures: Tensor) -> Tensor:
        found = as_tensor(self.net.get_image_features(pixel_values=pictures))
        return nn.functional.normalize(found, dim=-1)


class HfTexts(TextTower):
    """The text tower, unit length. SigLIP was trained on texts padded to full length, CLIP not."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        files = _Files(name, place)
        self.name, self._hash = f"hf:{name}", files_sha256(files.weights)
        cut = files.library.AutoTokenizer.from_pretrained(files.folder, local_files_only=True)
        self.net = files.model()
        self.net.vision_model = nn.Identity()
        longest = int(self.net.config.text_config.max_position_embeddings)
        self._masked = files.type == "clip"
        padding = "do_not_pad" if self._masked else "max_length"

        def rows(texts: list[str]) -> list[list[int]]:
            made = cut(texts, truncation=True, max_length=longest, padding=padding)
            return [list(ids) for ids in made["input_ids"]]

        self.tokenizer = Subwords(rows, len(cut))
        self.width = int(self(Tokens(torch.tensor(rows(["a"])), torch.tensor([1]))).shape[-1])
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def forward(self, tokens: Tokens) -> Tensor:
        mask = None
        if self._masked:
            places = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
            mask = (places < tokens.lengths[:, None]).long()
        found = as_tensor(self.net.get_text_features(input_ids=tokens.ids, attention_mask=mask))
        return nn.functional.normalize(found, dim=-1)


def image(name: str, place: Path | None) -> HfImages:
    return HfImages(name, place)


def text(name: str, place: Path | None) -> HfTexts:
    return HfTexts(name, place)
