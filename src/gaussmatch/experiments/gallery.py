"""Captions and images that a model is least and most sure of, ready to be shown on a page."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from gaussmatch.data.pairs import Pairs

SHOWN = 6
"""Items at each end of a gallery."""
SIDE = 128
"""A picture's shorter side on a page, at most."""


@dataclass(frozen=True)
class Item:
    """A caption or an image in a gallery."""

    text: list[str]
    pictures: list[str]
    uncertainty: float
    matches: int | None


def ends(
    uncertainty: Tensor, make: Callable[[int], Item], shown: int = SHOWN
) -> dict[str, list[Item]]:
    """The vaguest and the sharpest items; a caption that was written twice is shown once."""
    order = uncertainty.argsort(descending=True).tolist()
    return {"vaguest": first(order, make, shown), "sharpest": first(order[::-1], make, shown)}


def drawn_ends(
    uncertainty: Tensor, make: Callable[[int], Item], shown: int = 5, share: float = 0.05
) -> dict[str, list[Item]]:
    """As the paper's galleries: drawn by lot from the least and the most sure twentieth."""
    order = uncertainty.argsort(descending=True).tolist()
    enough = max(3 * shown, round(share * len(order)))
    parts = {"vaguest": order[:enough], "sharpest": order[::-1][:enough]}
    for part in parts.values():
        random.Random(0).shuffle(part)
    return {name: first(part, make, shown) for name, part in parts.items()}


def first(order: Sequence[int], make: Callable[[int], Item], shown: int) -> list[Item]:
    items: dict[str, Item] = {}
    for index in order:
        if len(items) == shown:
            break
        item = make(index)
        items.setdefault(item.text[0], item)
    return list(items.values())


def caption(pairs: Pairs, index: int, uncertainty: Tensor) -> Item:
    """A caption with its own picture, then others that it is true of."""
    own = int(pairs.image_of[index])
    true = pairs.relevance.of(index).tolist() if pairs.relevance is not None else [own]
    shown = [own, *(i for i in true if i != own)][:4]
    return Item(
        [pairs.captions[index]],
        [p for i in shown if (p := picture_of(pairs, i))],
        float(uncertainty[index]),
        len(true) if pairs.relevance is not None else None,
    )


def image(pairs: Pairs, index: int, uncertainty: Tensor, plausible: int = 0) -> Item:
    """An image with the captions written for it, and some others that are true of it."""
    own = (pairs.image_of == index).nonzero().flatten().tolist()
    picture, more, true = picture_of(pairs, index), list[int](), None
    if pairs.relevance is not None:
        captions = pairs.relevance.query_of[pairs.relevance.items == index].tolist()
        true, more = len(captions), [i for i in captions if i not in own][:plausible]
    return Item(
        [pairs.captions[i] for i in [*own, *more]],
        [picture] if picture else [],
        float(uncertainty[index]),
        true,
    )


def picture_of(pairs: Pairs, index: int) -> str | None:
    """A small picture as a data address, so that a page needs no other file."""
    picture = pairs.images.picture(index)
    return None if picture is None else address(picture)


def address(picture: Image.Image, side: int = SIDE) -> str:
    """A picture as a data address; small ones as they are, large ones made small."""
    buffer = io.BytesIO()
    if min(picture.size) > side:
        scale = side / min(picture.size)
        size = (round(picture.width * scale), round(picture.height * scale))
        picture.resize(size, Image.Resampling.LANCZOS).save(buffer, "WEBP", quality=85)
    else:
        picture.save(buffer, "WEBP", lossless=True)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
