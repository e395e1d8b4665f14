"""``prolip:REPO``: both towers of ProLIP, whose embeddings are a mean and a variance.

A folder in the layout of the hub: ``config.json``, ``model.safetensors``, and the tokenizer, which
its authors keep in a repository of its own (``text_cfg.hf_tokenizer_name``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gaussmatch.data import hub
from gaussmatch.models.encoders.pretrained.base import filled
from gaussmatch.models.encoders.pretrained.gaussians import (
    AttentionBlocks,
    GaussianFolder,
    GaussianImages,
    GaussianTexts,
    PatchTokens,
    tokenizer_of,
)

TOKENIZER = "timm/ViT-B-16-SigLIP"
"""Whose tokenizer ProLIP has, if its configuration names none."""
HEADS = {
    "visual.": ("unc_embedding", "uncertainty_proj.weight"),
    "text.": ("unc_emb", "text_uncertainty_projection.weight"),
}
"""What a CLIP without uncertainty lacks, on each side."""


class ProLIPFolder(GaussianFolder):
    library, kind = "prolip", "ProLIP"
    text_sizes: ClassVar = {
        "width": 768,
        "layers": 12,
        "heads": 12,
        "context_length": 64,
        "vocab_size": 32100,
    }
    foreign = ("timm_model_name", "hf_model_name", "attentional_pool", "act_kwargs")

    def check(self, side: str, found: Mapping[str, Any] | None) -> None:
        if found is None:
            raise ValueError(
                f"{self.path}: no {side}, found {', '.join(list(self.config)[:10]) or 'nothing'}; "
                "the configuration of ProLIP has embed_dim, vision_cfg and text_cfg"
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

    def check_weights(self, prefix: str, found: Mapping[str, Tensor]) -> None:
        if lacking := [name for name in HEADS[prefix] if name not in found]:
            raise ValueError(
                f"{self.weights}: no uncertainty heads, {prefix}{lacking[0]} is missing; found "
                f"{len(found)} other weights of this side, as of a CLIP without uncertainty"
            )


class ProLIPImage(PatchTokens):
    """Patches and two learned tokens through a transformer: the mean of one, ln σ² of the other.

    As published, the first token goes through the last layer norm twice, the second one once.
    """

    def __init__(self, of: ProLIPFolder) -> None:
        shape, held = of.shape(of.image), of.image
        size, patch, norm = held["image_size"], held["patch_size"], not held.get("no_ln_pre", False)
        super().__init__(shape, size, patch, uncertain=True, norm=norm)
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
        shape, places = of.shape(of.text), of.text["context_length"] + 2
        self.token_embedding = nn.Embedding(of.text["vocab_size"], shape.width)
        self.unc_emb, self.cls_emb = (nn.Parameter(torch.empty(shape.width)) for _ in "12")
        self.positional_embedding = nn.Parameter(torch.empty(places, shape.width))
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


def image(name: str, place: Path | None) -> GaussianImages:
    """The image tower."""
    of = ProLIPFolder(name, place)
    return GaussianImages(of, of.network(ProLIPImage, "visual."))


def text(name: str, place: Path | None) -> GaussianTexts:
    """The text tower."""
    of = ProLIPFolder(name, place)
    home = of.folder
    if not (home / "tokenizer.json").is_file():
        home = hub.snapshot(of.text.get("hf_tokenizer_name") or TOKENIZER, hub.TOKENIZERS)
    longest, words = of.text["context_length"], of.text["vocab_size"]
    cleaning = (of.text.get("tokenizer_kwargs") or {}).get("clean", "canonicalize")
    cut, padding, left = tokenizer_of(home, longest, cleaning)
    if len(cut) > words:
        raise ValueError(
            f"{home / 'tokenizer.json'}: {len(cut):,} tokens, but {of.path} has {words:,}: the "
            "tokenizer of another model"
        )
    given = lambda tokens: (filled(tokens, longest, padding, left),)  # noqa: E731
    return GaussianTexts(of, of.network(ProLIPText, "text."), cut, given)
