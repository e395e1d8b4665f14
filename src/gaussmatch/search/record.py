"""An item of an index without its Gaussian."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Record:
    """What is kept of an item beside its Gaussian.

    Args:
        id: unique in its gallery.
        meta: what the user wants to know of it and to filter by; JSON.
        thumbnail: a small JPEG to show, if there is a picture.
        source: changes when the item's file changes, so that ``update`` encodes it again.
    """

    id: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    thumbnail: bytes | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"an id must be a text that is not empty, got {self.id!r}")
        if not encodable(self.id):
            raise ValueError(f"the id {self.id!r} is not valid UTF-8")

    def meta_json(self) -> str:
        try:
            return json.dumps(dict(self.meta), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the metadata of {self.id!r} is not JSON: {error}") from error


def encodable(text: str) -> bool:
    """Whether it is text; the name of a file need not be.

    >>> encodable("é.jpg"), encodable(b"\\xe9.jpg".decode(errors="surrogateescape"))
    (True, False)
    """
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)
