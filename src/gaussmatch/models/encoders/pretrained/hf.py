"""``hf:REPO``: both towers of the CLIP, SigLIP and SigLIP 2 models of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer as Cutter
from tokenizers import normalizers
from torch import Tensor, nn

from gaussmatch.checks import extra
from gaussmatch.data import hub
from gaussmatch.files import read_json
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained.base import (
    ImageTower,
    Subwords,
    TextTower,
    Transform,
    files_sha256,
    filled,
    make_importable,
)

TYPES = ("clip", "siglip", "siglip2")
"""``model_type`` of a configuration. SigLIP 2 at a fixed size is a ``siglip``, and with pictures in
their own shape (NaFlex) a ``siglip2``."""


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
        self.type = read_json(config, dict).get("model_type")
        if self.type not in TYPES:
            raise ValueError(
                f"{config}: model_type {self.type!r} is none of {', '.join(TYPES)}; sentence "
                "encoders are st:, ONNX files onnx:"
            )
        self.weights = sorted(self.folder.glob("*.safetensors"))
        if not self.weights:
            raise FileNotFoundError(f"{self.folder}: no .safetensors; only those are loaded")

    def model(self) -> Any:
        return self.library.AutoModel.from_pretrained(
            self.folder, use_safetensors=True, local_files_only=True
        )

    def transform(self) -> Transform | Patches:
        """What the image processor is set to, done by Pillow: the processors of different versions
        of transformers differ in the last bits."""
        made = self.library.AutoImageProcessor.from_pretrained(self.folder, local_files_only=True)
        if self.type == "siglip2":
            square = Transform(1, tuple(made.image_mean), tuple(made.image_std), None, _how(made))
            return Patches(int(made.patch_size), int(made.max_num_patches), square)
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
        mean, std = tuple(made.image_mean), tuple(made.image_std)
        return Transform(int(wide), mean, std, short, _how(made))

    def definition(self, cut: Any, longest: int, lower: bool) -> str | None:
        """The JSON of `tokenizers` of a tokenizer, or the one in the folder beside it."""
        backend, beside = getattr(cut, "backend_tokenizer", None), self.folder / "tokenizer.json"
        if backend is not None:
            made = Cutter.from_str(backend.to_str())
        elif beside.is_file():
            made = Cutter.from_file(str(beside))
        else:
            return None
        if lower:
            then = [] if made.normalizer is None else [made.normalizer]
            made.normalizer = normalizers.Sequence([normalizers.Lowercase(), *then])
        made.enable_truncation(longest)
        made.no_padding()
        return str(made.to_str())


@dataclass(frozen=True)
class Patches:
    """A picture in its own shape → (most + 1, 3·side²) values: as many square patches as fit, row
    by row, then zeros; the last row begins with the numbers of patches down and across.

    Args:
        side: pixels of a patch.
        most: patches of a picture.
        values: interpolation, mean and standard deviation.
    """

    side: int
    most: int
    values: Transform

    def __call__(self, picture: Image.Image) -> Tensor:
        high, wide = self.grid(picture.height, picture.width)
        shape = wide * self.side, high * self.side
        pixels = self.values.of_size(picture, shape)
        cells = pixels.unflatten(2, (wide, self.side)).unflatten(1, (high, self.side))
        out = torch.zeros(self.most + 1, 3 * self.side**2)
        out[: high * wide] = cells.permute(1, 3, 2, 4, 0).flatten(2).flatten(0, 1)
        out[-1, :2] = torch.tensor([high, wide])
        return out

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The numbers of patches down and across: at the largest scale at which they are few
        enough, by the bisection of transformers.

        >>> Patches(16, 256, Transform(1)).grid(480, 640)
        (14, 18)
        """

        def cells(scale: float) -> tuple[int, int]:
            down, across = (max(1, ceil(size * scale / self.side)) for size in (height, width))
            return down, across

        low, high, close = 1e-6, 100.0, 1e-5
        while high - low >= close:
            middle = (low + high) / 2
            down, across = cells(middle)
            low, high = (middle, high) if down * across <= self.most else (low, middle)
        return cells(low)


class HfImages(ImageTower):
    """The image tower, unit length."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        files = _Files(name, place)
        self.name, self._hash = f"hf:{name}", files_sha256(files.weights)
        made = files.transform()
        self.published = made if isinstance(made, Transform) else None
        self._patches = made if isinstance(made, Patches) else None
        self.net = files.model()
        self.net.text_model = nn.Identity()
        with torch.no_grad():
            self.width = int(self(self.transform(Image.new("RGB", (8, 8)))[None]).shape[-1])
        self.freeze()

    def transform(self, picture: Image.Image, whole: bool | None = None) -> Tensor:
        if self._patches is not None:  # of the whole picture always
            return self._patches(picture)
        return super().transform(picture, whole)

    def forward(self, pictures: Tensor) -> Tensor:
        if self._patches is None:
            return _unit(self.net.get_image_features(pixel_values=pictures))
        patches, shapes = pictures[:, :-1], pictures[:, -1, :2].long()
        there = torch.arange(patches.shape[1], device=patches.device)
        made = self.net.get_image_features(
            pixel_values=patches,
            pixel_attention_mask=(there < shapes.prod(-1, keepdim=True)).int(),
            spatial_shapes=shapes,
        )
        return _unit(made)


class HfTexts(TextTower):
    """The text tower, unit length. SigLIP was trained on texts padded to full length, CLIP not;
    SigLIP 2, which is known by the tokenizer of Gemma, on lower case."""

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
        lower = files.type == "siglip2" or type(cut).__name__.startswith("Gemma")

        def rows(texts: list[str]) -> list[list[int]]:
            given = [text.lower() for text in texts] if lower else texts
            made = cut(given, truncation=True, max_length=self._length)
            return [list(ids) for ids in made["input_ids"]]

        self.tokenizer = Subwords(rows, len(cut), files.definition(cut, self._length, lower))
        self.width = int(self(Tokens(torch.tensor(rows(["a"])), torch.tensor([1]))).shape[-1])
        self.freeze()

    def forward(self, tokens: Tokens) -> Tensor:
        if self._masked:
            places = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
            ids, mask = tokens.ids, (places < tokens.lengths[:, None]).long()
        else:
            ids, mask = filled(tokens, self._length, self._padding, self._left), None
        return _unit(self.net.get_text_features(input_ids=ids, attention_mask=mask))


def _how(processor: Any) -> str:
    """The interpolation of an image processor, by its name in Pillow."""
    return Image.Resampling(int(processor.resample)).name.lower()


def _unit(output: Any) -> Tensor:
    """The embedding in what a network of transformers returns, at unit length."""
    found = output if isinstance(output, Tensor) else output.pooler_output
    return nn.functional.normalize(found, dim=-1)


image, text = HfImages, HfTexts
