"""``timm:NAME``: any image network of timm, without its classifier. ``NAME+whole`` looks at the
whole picture, squeezed into a square, instead of its center."""

from __future__ import annotations

from pathlib import Path

from gaussmatch.encoders.backbone import Backbone


def image(name: str, place: Path | None) -> Backbone:
    """The pooled features of a network, from a local file or those that timm has."""
    return Backbone.pretrained(name.removesuffix("+whole"), place, name.endswith("+whole"))
