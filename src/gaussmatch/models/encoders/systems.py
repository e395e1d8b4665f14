"""The systems that a recipe can train, ``model.system``: their encoders, and what these allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gaussmatch.models.encoders.adapter import (
    ImageAdapter,
    PublishedImages,
    PublishedTexts,
    TextAdapter,
)
from gaussmatch.models.encoders.base import TextEncoder, Tokenizer
from gaussmatch.models.encoders.pvse import (
    PCMEImage,
    PCMEPPImage,
    PCMEPPText,
    PCMEText,
    PVSEImage,
    PVSEText,
)
from gaussmatch.models.encoders.vsepp import Projection, WordGRU
from gaussmatch.models.encoders.vsrn import CaptionGenerator, RegionReasoning


@dataclass(frozen=True)
class TrainedSystem:
    """Two encoders, made with what a recipe says.

    An argument of their constructors is the field of its name in ``model``, or in the section of
    the system if it has one (``model.pvse``). Besides there are ``tokenizer``, the words of the
    training captions, ``feature_dim``, the width of the image features, and ``backbone``, the
    network that makes these of pixels, or ``None``.

    Args:
        image: → points (n, D) or Gaussians.
        text: the same of texts.
        heads: modules that only terms of the loss use, by name; one that is ``None`` is left out.
        adaptable: ``model.probabilistic`` may make Gaussians of its points; each encoder names the
            submodule that is doubled for the variance in ``part``.
        gaussian: its encoders give Gaussians themselves.
        pixels: its image encoder takes a backbone.
        vocabulary: it reads words that it learns from the training captions.
        trained: something of it learns.
    """

    image: Callable[..., nn.Module]
    text: Callable[..., TextEncoder]
    heads: Mapping[str, Callable[..., nn.Module | None]] = field(default_factory=dict)
    adaptable: bool = True
    gaussian: bool = False
    pixels: bool = True
    vocabulary: bool = True
    trained: bool = True


def _generator(tokenizer: Tokenizer, dim: int, generator: Any) -> CaptionGenerator | None:
    """What generates captions from the regions of VSRN; published checkpoints have none."""
    sizes = dict(vars(generator))
    return CaptionGenerator(len(tokenizer), dim, **sizes) if sizes.pop("used") else None


SYSTEMS: dict[str, TrainedSystem] = {
    "vse++": TrainedSystem(Projection, WordGRU),
    "vsrn": TrainedSystem(RegionReasoning, WordGRU, {"generator": _generator}, pixels=False),
    "pvse": TrainedSystem(PVSEImage, PVSEText, adaptable=False),
    "pcme": TrainedSystem(PCMEImage, PCMEText, adaptable=False, gaussian=True),
    "pcmepp": TrainedSystem(PCMEPPImage, PCMEPPText, adaptable=False, gaussian=True),
    "adapter": TrainedSystem(ImageAdapter, TextAdapter, pixels=False, vocabulary=False),
    "published": TrainedSystem(
        PublishedImages,
        PublishedTexts,
        adaptable=False,
        gaussian=True,
        pixels=False,
        vocabulary=False,
        trained=False,
    ),
}
"""Every system by the name that recipes give it. A new one is its encoders and an entry here."""
