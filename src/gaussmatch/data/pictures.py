"""Pictures from files, read whole or refused with their name."""

from __future__ import annotations

import os

from PIL import Image, ImageOps

MAX_PIXELS = 100_000_000
"""A picture with more pixels is refused before it is decoded."""


def open_picture(path: str | os.PathLike[str]) -> Image.Image:
    """An RGB picture, turned upright. An unreadable file is an error that names it."""
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(
                    f"{path}: {image.width} × {image.height} pixels are more than {MAX_PIXELS:,}"
                )
            return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such image") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: cannot be decoded as an image ({error})") from error
