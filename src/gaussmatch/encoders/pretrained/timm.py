"""``timm:NAME``: any image network of timm, without its classifier."""

from __future__ import annotations

from pathlib import Path

from gaussmatch.encoders.backbone import Backbone


def image(name: str, place: Path | None) -> Backbone:
    return Backbone.pretrained(name, place)
