"""``hf:REPO``: both towers of the CLIP and SigLIP models of transformers (SigLIP 2 included)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer as Cutter
from torch import Tensor, nn

from gaussmatch.checks import extra
from gaussmatch.encoders.base import Tokens
from gaussmatch.encoders.pretrained import hub
from gaussmatch.encoders.pretrained.base import (
    ImageTower,
    Subwords,
    TextTower,
    Transform,
    files_sha256,
    filled,
)
from gaussmatch.encoders.torchvision_compat import make_importable

TYPES = ("clip", "siglip")
"""``model_type`` of a configuration; SigLIP 2 at a fixed size is a ``siglip``."""


class _Files:
    """The folder of a model, and the library that reads it."""

    def __init__(self, name: str, place: Path | None) -> None:
        make_importable()
        with extra("hf", "this encoder"):
            import transformers
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

    def transform(self) -> Transform:
        """What the image processor is set to, done by Pillow: the processors of different versions
        of transformers differ in the last bits."""
        made = self.library.AutoImageProcessor.from_pretrained(self.folder, local_files_only=True)
        size, crop = dict(made.size), dict(getattr(made, "crop_size", None) or {})
        crops = bool(getattr(made, "do_center_crop", False))
        short = size.get("shortest_edge")
        high, wide = (
            (crop.get("height"), crop.get("width"))
            if crops
            else (size.get("height"), size.get("width"))
        )
        steps = made.do_resize, made.do_rescale, made.do_normalize
        known = all(steps) and abs(made.rescale_factor * 255 - 1) < 1e-6
        if not known or high is None or high != wide or crops != (short is not None):
            raise ValueError(
                f"{self.folder / 'preprocessor_config.json'}: a transform other than a resize to a "
                "square, or of the short side with a center crop, is not known here"
            )
        how = Image.Resampling(int(made.resample)).name.lower()
        return Transform(int(wide), tuple(made.image_mean), tuple(made.image_std), short, how)

    def definition(self, cut: Any, longest: int) -> str | None:
        """The JSON of `tokenizers` of a tokenizer, or the one in the folder beside it."""
        backend, beside = getattr(cut, "backend_tokenizer", None), self.folder / "tokenizer.json"
        if backend is not None:
            made = Cutter.from_str(backend.to_str())
        elif beside.is_file():
            made = Cutter.from_file(str(beside))
        else:
            return None
        made.enable_truncation(longest)
        made.no_padding()
        return str(made.to_str())


class HfImages(ImageTower):
    """The image tower, unit length."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        files = _Files(name, place)
        self.name, self._hash = f"hf:{name}", files_sha256(files.weights)
        self._transform = files.transform()
        self.net = files.model()
        self.net.text_model = nn.Identity()
        side = self._transform.size
        self.width = int(self(torch.zeros(1, 3, side, side)).shape[-1])
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def described(self) -> Transform:
        return self._transform

    def forward(self, pictures: Tensor) -> Tensor:
        return _unit(self.net.get_image_features(pixel_values=pictures))


class HfTexts(TextTower):
    """The text tower, unit length. SigLIP was trained on texts padded to full length, CLIP not."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        files = _Files(name, place)
        self.name, self._hash = f"hf:{name}", files_sha256(files.weights)
        self.net = files.model()
        self.net.vision_model = nn.Identity()
        self._length = int(self.net.config.text_config.max_position_embeddings)
        self._masked = files.type == "clip"
        cut = files.library.AutoTokenizer.from_pretrained(files.folder, local_files_only=True)
        self._padding = int(cut.pad_token_id)
        self._left = cut.padding_side == "left"

        def rows(texts: list[str]) -> list[list[int]]:
            made = cut(texts, truncation=True, max_length=self._length)
            return [list(ids) for ids in made["input_ids"]]

        self.tokenizer = Subwords(rows, len(cut), files.definition(cut, self._length))
        self.width = int(self(Tokens(torch.tensor(rows(["a"])), torch.tensor([1]))).shape[-1])
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def forward(self, tokens: Tokens) -> Tensor:
        if self._masked:
            places = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
            ids, mask = tokens.ids, (places < tokens.lengths[:, None]).long()
        else:
            ids, mask = filled(tokens, self._length, self._padding, self._left), None
        return _unit(self.net.get_text_features(input_ids=ids, attention_mask=mask))


def _unit(output: Any) -> Tensor:
    """The embedding in what a network of transformers returns, at unit length."""
    found = output if isinstance(output, Tensor) else output.pooler_output
    return nn.functional.normalize(found, dim=-1)


def image(name: str, place: Path | None) -> HfImages:
    return HfImages(name, place)


def text(name: str, place: Path | None) -> HfTexts:
    return HfTexts(name, place)
