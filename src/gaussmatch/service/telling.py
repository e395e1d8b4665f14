"""What was found, as the API tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from gaussmatch.index import Gallery, Hit, phrase


@dataclass(frozen=True)
class Known:
    """What is said of an item everywhere."""

    meta: Mapping[str, Any]
    uncertainty: float | None
    percentile: float | None


def item(id: str, of: Known | Hit, gallery: Gallery, thumbnails: bool) -> dict[str, Any]:
    """An item of a gallery."""
    pictured = gallery == "images"
    return {
        "id": id,
        "uncertainty": of.uncertainty,
        "percentile": of.percentile,
        "text": None if pictured else of.meta.get("caption"),
        "thumbnail": address(id) if pictured and thumbnails else None,
        "metadata": of.meta,
    }


def result(hit: Hit, gallery: Gallery, thumbnails: bool) -> dict[str, Any]:
    """An item that was found."""
    told = item(hit.id, hit, gallery, thumbnails)
    told["score"], told["probability"] = hit.score, hit.probability
    return told


@lru_cache(100_000)
def address(id: str) -> str:
    """Of a thumbnail, relative to the root of the service."""
    return f"api/thumbnail?id={quote(id, safe='')}"


def vagueness(
    uncertainty: float | None, percentile: float | None, kind: Gallery
) -> dict[str, float | str | None]:
    """An uncertainty in numbers and words."""
    level = None
    if percentile is not None:
        level = "vague" if percentile >= 75 else "specific" if percentile <= 25 else "ordinary"
    return {
        "uncertainty": uncertainty,
        "percentile": percentile,
        "level": level,
        "phrase": None if percentile is None else phrase(min(max(percentile, 1), 99), kind),
    }
