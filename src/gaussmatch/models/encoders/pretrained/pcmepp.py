"""``pcmepp:REPO``: both towers of PCME++, whose embeddings are a mean and a variance.

CLIP towers with blocks of their own for the variance, beside the last ones. Two layouts are read:
that of the hub (``config.json`` with ``vision_cfg`` and ``text_cfg``), and folders that
``gaussmatch import`` makes of checkpoints of the official training code, which pools by GPO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gaussmatch.models.encoders.pretrained.base import Transform
from gaussmatch.models.encoders.pretrained.gaussians import (
    AttentionBlocks,
    GaussianFolder,
    GaussianImages,
    GaussianTexts,
    PatchTokens,
    Shape,
    causal,
)
from gaussmatch.models.encoders.pretrained.open_clip import clip_words
from gaussmatch.models.encoders.pvse import GPO, Pooled
from gaussmatch.models.encoders.vsepp import at_places, padding_of

TRAINED = Transform(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), None, "bilinear")
"""How the official training code sees a picture: squeezed into a square."""


class PCMEPPFolder(GaussianFolder):
    library, kind = "pcmepp", "PCME++"
    text_sizes: ClassVar = {
        "width": 512,
        "layers": 12,
        "heads": 8,
        "context_length": 77,
        "vocab_size": 49408,
    }
    foreign: ClassVar[tuple[str, ...]] = (
        "global_average_pool",
        "attentional_pool",
        "input_patchnorm",
        "timm_model_name",
    )
    foreign += ("hf_model_name", "embed_cls")

    def check(self, side: str, found: Mapping[str, Any] | None) -> None:
        if found is None or "unc_layers" not in found:
            what = ", ".join(list(self.config if found is None else found)[:10]) or "nothing"
            raise ValueError(
                f"{self.path}: no {side}.unc_layers, found {what}: not a PCME++, whose towers have "
                "blocks of their own for the variance"
            )

    @property
    def pooled(self) -> bool:
        """Whether it is of the official training code, which pools by GPO."""
        return bool(self.config.get("pooling") == "gpo")

    def std_norm(self) -> nn.Module:
        """Of the pooled variances."""
        return nn.LayerNorm(self.dim) if self.config.get("normed") else nn.Identity()

    def shapes(self, held: Mapping[str, Any]) -> tuple[Shape, Shape]:
        """The blocks of a side, and those of its variance."""
        shape = self.shape(held)
        return shape, replace(shape, layers=held["unc_layers"])


class ImageBlocks(PatchTokens):
    """A picture's tokens after the last block of the mean, and after the last one of ln σ²."""

    def __init__(self, of: PCMEPPFolder) -> None:
        shape, own = of.shapes(of.image)
        super().__init__(shape, of.image["image_size"], of.image["patch_size"])
        self.transformer, self.uncertainty_transformer = map(AttentionBlocks, (shape, own))
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
        self.transformer, self.uncertainty_transformer = map(AttentionBlocks, (shape, own))

    def _spread(self, shared: Tensor, mask: Tensor) -> Tensor:
        return self.uncertainty_transformer(shared, mask)

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
        self.image_std_ln = of.std_norm()

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
        self.text_std_ln = of.std_norm()

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.backbone.both(ids)
        padding = padding_of(lengths, ids.shape[1])
        spread = self.std_gpool(self.std_linear(spread), padding)
        return self.gpool(self.linear(mean), padding), self.text_std_ln(spread)


def image(name: str, place: Path | None) -> GaussianImages:
    """The image tower."""
    of = PCMEPPFolder(name, place)
    if of.pooled:
        return GaussianImages(of, of.network(PooledImage, "img_enc."), TRAINED)
    return GaussianImages(of, of.network(HubImage, "visual."))


def text(name: str, place: Path | None) -> GaussianTexts:
    """The text tower, with the words of CLIP."""
    of = PCMEPPFolder(name, place)
    cut, words = clip_words(of.text["context_length"]), of.text["vocab_size"]
    if len(cut) > words:
        raise ValueError(
            f"{of.path}: text_cfg.vocab_size is {words:,}, but the words of CLIP, which PCME++ "
            f"reads, are {len(cut):,}"
        )
    if of.pooled:
        return GaussianTexts(of, of.network(PooledText, "txt_enc."), cut)
    other = ("visual.", "logit_scale", "shift", "negative_scale")
    return GaussianTexts(of, of.network(HubText, "", other), cut)
