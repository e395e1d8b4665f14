"""``pcmepp:REPO``: both towers of PCME++, whose embeddings are a mean and a variance.

CLIP towers with blocks of their own for the variance, beside the last ones. Two layouts are read:
that of the hub (``config.json`` with ``vision_cfg`` and ``text_cfg``), and folders that
``gaussmatch import`` makes of checkpoints of the official training code, which pools by GPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gaussmatch.data import hub
from gaussmatch.files import read_json
from gaussmatch.models.encoders.pretrained.base import Transform, weights_file
from gaussmatch.models.encoders.pretrained.gaussians import (
    OPENAI,
    AttentionBlocks,
    GaussianImages,
    GaussianTexts,
    PatchTokens,
    Shape,
    causal,
    fitted,
    read_side,
)
from gaussmatch.models.encoders.pretrained.open_clip import clip_words
from gaussmatch.models.encoders.pvse import GPO, Pooled
from gaussmatch.models.encoders.vsepp import at_places, padding_of

TRAINED = Transform(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), None, "bilinear")
"""How the official training code sees a picture: squeezed into a square."""


class PCMEPPFolder:
    """A folder of PCME++, checked."""

    def __init__(self, name: str, place: Path | None) -> None:
        folder = place or hub.snapshot(name)
        self.path = folder / "config.json"
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: missing; a folder of PCME++ must hold it")
        held: dict[str, Any] = read_json(self.path, dict)
        self.pooled = held.get("pooling") == "gpo"
        self.normed = bool(held.get("normed", False))
        self.dim = self._whole(held, "embed_dim")
        self.image, self.text = (self._section(held, side) for side in ("vision_cfg", "text_cfg"))
        self.quick = bool(held.get("quick_gelu", False))
        self.weights = weights_file(folder, "model.safetensors")

    def _whole(self, held: Mapping[str, Any], name: str) -> int:
        value = held.get(name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{self.path}: {name} is {value!r}, not a whole number above 0")
        return value

    def _section(self, held: Mapping[str, Any], side: str) -> dict[str, Any]:
        defaults = IMAGE if side == "vision_cfg" else TEXT
        found = held.get(side)
        if not isinstance(found, dict) or "unc_layers" not in found:
            what = ", ".join(list(found if isinstance(found, dict) else held)[:10]) or "nothing"
            raise ValueError(
                f"{self.path}: no {side}.unc_layers, found {what}: not a PCME++, whose towers have "
                "blocks of their own for the variance"
            )
        odd = ("global_average_pool", "attentional_pool", "input_patchnorm", "timm_model_name")
        if strange := [n for n in (*odd, "hf_model_name", "embed_cls") if found.get(n)]:
            raise ValueError(f"{self.path}: {side}.{strange[0]} is set; PCME++ has none")
        filled_in = {**defaults, **found}
        for name in defaults:
            self._whole(filled_in, name)
        return filled_in

    def shapes(self, held: Mapping[str, Any]) -> tuple[Shape, Shape]:
        """The blocks of a side, and those of its variance."""
        width = held["width"]
        shape = Shape(
            width=width,
            layers=held["layers"],
            heads=held["heads"] if held is self.text else width // held["head_width"],
            hidden=int(width * float(held.get("mlp_ratio", 4.0))),
            quick=self.quick,
            scaled=held.get("ls_init_value") is not None,
        )
        return shape, replace(shape, layers=held["unc_layers"])

    def side(self, image: bool) -> nn.Module:
        """The network of a side, with its weights."""
        without: tuple[str, ...] = ()
        with torch.device("meta"):
            if self.pooled:
                net: nn.Module = PooledImage(self) if image else PooledText(self)
                prefix = "img_enc." if image else "txt_enc."
            else:
                net = HubImage(self) if image else HubText(self)
                prefix = "visual." if image else ""
                without = () if image else ("visual.", "logit_scale", "shift", "negative_scale")
        found = read_side(self.weights, prefix, without)
        return fitted(net, found, f"{self.weights}: {prefix}", self.path)


IMAGE = {"width": 768, "layers": 12, "head_width": 64, "patch_size": 16, "image_size": 224}
TEXT = {"width": 512, "layers": 12, "heads": 8, "context_length": 77, "vocab_size": 49408}
"""Sizes that a configuration may leave out."""


class ImageBlocks(PatchTokens):
    """A picture's tokens after the last block of the mean, and after the last one of ln σ²."""

    def __init__(self, of: PCMEPPFolder) -> None:
        shape, own = of.shapes(of.image)
        super().__init__(shape, of.image["image_size"], of.image["patch_size"])
        self.transformer, self.uncertainty_transformer = (
            AttentionBlocks(shape),
            AttentionBlocks(own),
        )
        self._shared = shape.layers - own.layers

    def both(self, pictures: Tensor) -> tuple[Float[Tensor, "n t w"], Float[Tensor, "n t w"]]:
        shared = self.transformer(self.tokens(pictures), stop=self._shared)
        return self.transformer(shared, start=self._shared), self.uncertainty_transformer(shared)


class HubImage(ImageBlocks):
    def __init__(self, of: PCMEPPFolder) -> None:
        super().__init__(of)
        shape, _ = of.shapes(of.image)
        self.ln_post = shape.norm()
        self.proj, self.uncertainty_proj = (
            nn.Parameter(torch.empty(shape.width, of.dim)) for _ in "12"
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.both(pictures)
        return self.ln_post(mean[:, 0]) @ self.proj, spread[:, 0] @ self.uncertainty_proj


class TextBlocks(nn.Module):
    """The same of the tokens of a text, none of which sees a later one."""

    def __init__(self, of: PCMEPPFolder) -> None:
        super().__init__()
        shape, own = of.shapes(of.text)
        self.token_embedding = nn.Embedding(of.text["vocab_size"], shape.width)
        context = of.text["context_length"]
        self.positional_embedding = nn.Parameter(torch.empty(context, shape.width))
        self.ln_final = shape.norm()
        self._shared = shape.layers - own.layers
        self._stack(shape, own)

    def _stack(self, shape: Shape, own: Shape) -> None:
        self.transformer, self.uncertainty_transformer = (
            AttentionBlocks(shape),
            AttentionBlocks(own),
        )

    def _spread(self, shared: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.uncertainty_transformer(shared, mask)
        return out

    def both(self, ids: Int[Tensor, "n t"]) -> tuple[Tensor, Tensor]:
        x = self.token_embedding(ids)
        x, mask = x + self.positional_embedding[: x.shape[1]], causal(x.shape[1], x)
        shared = self.transformer(x, mask, stop=self._shared)
        mean = self.ln_final(self.transformer(shared, mask, start=self._shared))
        return mean, self._spread(shared, mask)


class HubText(TextBlocks):
    """The token of the end is the text's."""

    def __init__(self, of: PCMEPPFolder) -> None:
        super().__init__(of)
        width = of.text["width"]
        self.text_projection, self.uncertainty_text_projection = (
            nn.Parameter(torch.empty(width, of.dim)) for _ in "12"
        )

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = (at_places(states, lengths - 1) for states in self.both(ids))
        return mean @ self.text_projection, spread @ self.uncertainty_text_projection


class ProbBlocks(AttentionBlocks):
    """Blocks that hold those of the variance beside their own."""

    def __init__(self, shape: Shape, own: Shape) -> None:
        super().__init__(shape)
        self.prob_resblocks = AttentionBlocks(own).resblocks


class PooledTextBlocks(TextBlocks):
    def _stack(self, shape: Shape, own: Shape) -> None:
        self.transformer: AttentionBlocks = ProbBlocks(shape, own)

    def _spread(self, shared: Tensor, mask: Tensor) -> Tensor:
        assert isinstance(self.transformer, ProbBlocks)
        for block in self.transformer.prob_resblocks:
            shared = block(shared, mask)
        return shared


class PooledImage(nn.Module):
    """As the official code trains: all tokens of a picture, pooled by GPO."""

    def __init__(self, of: PCMEPPFolder) -> None:
        super().__init__()
        self.backbone = ImageBlocks(of)
        self.image_encoder, self.image_std_encoder = (
            Pooled(of.image["width"], of.dim) for _ in "12"
        )
        self.image_std_ln = nn.LayerNorm(of.dim) if of.normed else nn.Identity()

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.backbone.both(pictures)
        return self.image_encoder(mean), self.image_std_ln(self.image_std_encoder(spread))


class PooledText(nn.Module):
    def __init__(self, of: PCMEPPFolder) -> None:
        super().__init__()
        width = of.text["width"]
        self.backbone = PooledTextBlocks(of)
        self.linear, self.std_linear = (nn.Linear(width, of.dim) for _ in "12")
        self.gpool, self.std_gpool = GPO(), GPO()
        self.text_std_ln = nn.LayerNorm(of.dim) if of.normed else nn.Identity()

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.backbone.both(ids)
        padding = padding_of(lengths, ids.shape[1])
        spread = self.std_gpool(self.std_linear(spread), padding)
        return self.gpool(self.linear(mean), padding), self.text_std_ln(spread)


class PCMEPPImages(GaussianImages):
    """The image tower."""

    def __init__(self, name: str, place: Path | None) -> None:
        of = PCMEPPFolder(name, place)
        view = TRAINED if of.pooled else OPENAI
        size = of.image["image_size"]
        super().__init__(f"pcmepp:{name}", of.weights, of.side(image=True), of.dim, size, view)


class PCMEPPTexts(GaussianTexts):
    """The text tower, with the words of CLIP."""

    def __init__(self, name: str, place: Path | None) -> None:
        of = PCMEPPFolder(name, place)
        cut = clip_words(of.text["context_length"])
        if len(cut) > of.text["vocab_size"]:
            raise ValueError(
                f"{of.path}: text_cfg.vocab_size is {of.text['vocab_size']:,}, but the words of "
                f"CLIP, which PCME++ reads, are {len(cut):,}"
            )
        super().__init__(f"pcmepp:{name}", of.weights, of.side(image=False), of.dim, cut)


image, text = PCMEPPImages, PCMEPPTexts
