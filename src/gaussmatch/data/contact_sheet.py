"""A page of photos with their first captions: whether the words fit the pictures, at a glance."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps

from gaussmatch.data.listing import Listing, Photo
from gaussmatch.data.pictures import open_picture
from gaussmatch.files import atomic

COLUMNS, ROWS, SIDE, TEXT = 6, 4, 200, 56


def contact_sheet(listing: Listing, path: Path) -> int:
    """Write a PNG of up to 24 readable photos, evenly from all splits; returns how many."""
    sheet = Image.new("RGB", (COLUMNS * SIDE, ROWS * (SIDE + TEXT)), "white")
    draw, font, shown = ImageDraw.Draw(sheet), ImageFont.load_default(11), 0
    for photo in _spread_out(listing.photos):
        if shown == COLUMNS * ROWS:
            break
        try:
            picture = ImageOps.fit(open_picture(photo.path), (SIDE - 8, SIDE - 8))
        except (ValueError, OSError):
            continue  # reported by the check itself
        x, y = (shown % COLUMNS) * SIDE + 4, (shown // COLUMNS) * (SIDE + TEXT) + 4
        sheet.paste(picture, (x, y))
        words = textwrap.wrap(photo.captions[0].text, 34)[:3]
        draw.multiline_text((x, y + SIDE - 6), "\n".join(words), "black", font)
        shown += 1
    if shown:
        with atomic(path) as temporary:
            sheet.save(temporary, "PNG")
    return shown


def _spread_out(photos: list[Photo]) -> Iterable[Photo]:
    step = max(1, len(photos) // (COLUMNS * ROWS))
    return photos[::step]
