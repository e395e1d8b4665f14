"""``prolip:REPO``: both towers of ProLIP, whose embeddings are a mean and a variance.

A folder in the layout of the hub: ``config.json``, ``model.safetensors``, and the tokenizer, which
its authors keep in a repository of its own (``text_cfg.hf_tokenizer_name``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gaussmatch.data import hub
from gaussmatch.files import read_json
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained.base import filled, weights_file
from gaussmatch.models.encoders.pretrained.gaussians import (
    AttentionBlocks,
    GaussianImages,
    GaussianTexts,
    PatchTokens,
    Shape,
    fitted,
    read_side,
    tokenizer_of,
)

TOKENIZER = "timm/ViT-B-16-SigLIP"
"""Whose tokenizer ProLIP has, if its configuration names none."""
HEADS = {
    "visual.": ("unc_embedding", "uncertainty_proj.weight"),
    "text.": ("unc_emb", "text_uncertainty_projection.weight"),
}
"""What a CLIP without uncertainty lacks, on each side."""


class ProLIPFolder:
    """A folder of ProLIP, checked.

    Args:
        name: its repository; not used if there is a place.
        place: the folder.
    """

    def __init__(self, name: str, place: Path | None) -> None:
        self.folder = place or hub.snapshot(name)
        self.path = self.folder / "config.json"
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: missing; a folder of ProLIP must hold it")
        held: dict[str, Any] = read_json(self.path, dict)
        self.image, self.text = (self._section(held, side) for side in ("vision_cfg", "text_cfg"))
        self.quick = bool(held.get("quick_gelu", False))
        self.dim = self._whole(held, "embed_dim")
        self.weights = weights_file(self.folder, "model.safetensors")

    def _section(self, held: Mapping[str, Any], side: str) -> dict[str, Any]:
        found = held.get(side)
        if not isinstance(found, dict):
            raise ValueError(
                f"{self.path}: no {side}, found {', '.join(list(held)[:10]) or 'nothing'}; the "
                "configuration of ProLIP has embed_dim, vision_cfg and text_cfg"
            )
        if "unc_layers" in found:
            raise ValueError(
                f"{self.path}: {side}.unc_layers is that of PCME++, not of ProLIP; import it as "
                "pcmepp"
            )
        if not found.get("embed_unc", side == "text_cfg"):
            raise ValueError(
                f"{self.path}: {side}.embed_unc is not true, so this model has no uncertainty "
                "heads; a plain CLIP is open_clip:ARCH@FILE or hf:REPO@FOLDER"
            )
        other = ("timm_model_name", "hf_model_name", "attentional_pool", "act_kwargs")
        if strange := [name for name in other if found.get(name)]:
            raise ValueError(f"{self.path}: {side}.{strange[0]} is set; ProLIP has none")
        return found

    def _whole(self, held: Mapping[str, Any], name: str, default: int | None = None) -> int:
        value = held.get(name, default)
        value = value[0] if isinstance(value, list) and len({*value}) == 1 else value
        if type(value) is not int or value < 1:
            raise ValueError(f"{self.path}: {name} is {value!r}, not a whole number above 0")
        return value

    def shape(self, held: Mapping[str, Any]) -> Shape:
        """The blocks of a side."""
        width = self._whole(held, "width", 768)
        heads = held.get("heads", 12)
        if held is self.image:
            heads = width // self._whole(held, "head_width", 64)
        return Shape(
            width=width,
            layers=self._whole(held, "layers", 12),
            heads=int(heads),
            hidden=int(width * float(held.get("mlp_ratio", 4.0))),
            quick=self.quick,
            epsilon=float((held.get("norm_kwargs") or {}).get("eps", 1e-5)),
            scaled=held.get("ls_init_value") is not None,
        )

    def side(self, image: bool) -> nn.Module:
        """The network of a side, with its weights."""
        with torch.device("meta"):
            net = ProLIPImage(self) if image else ProLIPText(self)
        prefix = "visual." if image else "text."
        found = read_side(self.weights, prefix)
        if lacking := [name for name in HEADS[prefix] if name not in found]:
            raise ValueError(
                f"{self.weights}: no uncertainty heads, {prefix}{lacking[0]} is missing; found "
                f"{len(found)} other weights of this side, as of a CLIP without uncertainty"
            )
        return fitted(net, found, f"{self.weights}: {prefix}", self.path)

    @property
    def size(self) -> int:
        return self._whole(self.image, "image_size", 224)

    @property
    def patch(self) -> int:
        return self._whole(self.image, "patch_size", 16)

    @property
    def context(self) -> int:
        return self._whole(self.text, "context_length", 64)

    @property
    def words(self) -> int:
        return self._whole(self.text, "vocab_size", 32100)


class ProLIPImage(PatchTokens):
    """Patches and two learned tokens through a transformer: the mean of one, ln σ² of the other.

    As published, the first token goes through the last layer norm twice, the second one once.
    """

    def __init__(self, of: ProLIPFolder) -> None:
        shape = of.shape(of.image)
        norm = not of.image.get("no_ln_pre", False)
        super().__init__(shape, of.size, of.patch, uncertain=True, norm=norm)
        self.transformer = AttentionBlocks(shape)
        self.ln_post = shape.norm()
        self.proj = nn.Parameter(torch.empty(shape.width, of.dim))
        self.uncertainty_proj = nn.Linear(shape.width, of.dim)

    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> tuple[Tensor, Tensor]:
        first = self.ln_post(self.transformer(self.tokens(pictures))[:, :2])
        return self.ln_post(first[:, 0]) @ self.proj, self.uncertainty_proj(first[:, 1])


class ProLIPText(nn.Module):
    """Token ids, padded to the full length and unmasked, and two learned tokens after them.

    As published, ln σ² is a linear layer over the *projected mean*: the token of the uncertainty
    is read by the others and not itself.
    """

    def __init__(self, of: ProLIPFolder) -> None:
        super().__init__()
        shape = of.shape(of.text)
        self.token_embedding = nn.Embedding(of.words, shape.width)
        self.unc_emb, self.cls_emb = (nn.Parameter(torch.empty(shape.width)) for _ in "12")
        self.positional_embedding = nn.Parameter(torch.empty(of.context + 2, shape.width))
        self.transformer = AttentionBlocks(shape)
        self.ln_final = shape.norm()
        if of.text.get("proj_bias", True):
            self.text_projection: nn.Module | nn.Parameter = nn.Linear(shape.width, of.dim)
        else:
            self.text_projection = nn.Parameter(torch.empty(shape.width, of.dim))
        self.text_uncertainty_projection = nn.Linear(shape.width, of.dim)

    def forward(self, ids: Int[Tensor, "n t"]) -> tuple[Tensor, Tensor]:
        learned = torch.stack([self.unc_emb, self.cls_emb]).expand(ids.shape[0], -1, -1)
        x = torch.cat([self.token_embedding(ids), learned], 1)
        last = self.ln_final(self.transformer(x + self.positional_embedding[: x.shape[1]])[:, -1])
        project = self.text_projection
        mean = project(last) if isinstance(project, nn.Module) else last @ project
        return mean, self.text_uncertainty_projection(mean)


class ProLIPImages(GaussianImages):
    """The image tower."""

    def __init__(self, name: str, place: Path | None) -> None:
        of = ProLIPFolder(name, place)
        super().__init__(f"prolip:{name}", of.weights, of.side(image=True), of.dim, of.size)


class ProLIPTexts(GaussianTexts):
    """The text tower."""

    def __init__(self, name: str, place: Path | None) -> None:
        of = ProLIPFolder(name, place)
        home = of.folder
        if not (home / "tokenizer.json").is_file():
            home = hub.snapshot(of.text.get("hf_tokenizer_name") or TOKENIZER, hub.TOKENIZERS)
        cleaning = (of.text.get("tokenizer_kwargs") or {}).get("clean", "canonicalize")
        cut = tokenizer_of(home, of.context, cleaning)
        cut.check(of.words, of.path)
        super().__init__(f"prolip:{name}", of.weights, of.side(image=False), of.dim, cut.subwords)
        self._length, self._padding, self._left = of.context, cut.padding, cut.left

    def given(self, tokens: Tokens) -> tuple[Tensor, ...]:
        return (filled(tokens, self._length, self._padding, self._left),)


image, text = ProLIPImages, ProLIPTexts
