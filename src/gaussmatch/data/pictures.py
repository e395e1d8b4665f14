"""Pictures from files or bytes: of an allowed format, upright, at a bounded size, or refused.

Only the decoders of ``FORMATS`` are ever called, whatever a file is named: others of Pillow start
programs (PostScript) or are hardly tested. A large picture is decoded at reduced scale, so that its
size costs time but little memory.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from PIL import ExifTags, Image, ImageFile, ImageOps

try:
    import pillow_heif
except ImportError:  # the extra ``heic``
    pass
else:
    pillow_heif.register_heif_opener()

FORMATS = {
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif"),
}
"""The allowed formats and how their files are named; HEIF needs the extra ``heic``."""

HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""How the content of HEIF files begins, after four bytes of length and ``ftyp``."""

SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)

SHOWN = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "AVIF": "image/avif",
}
"""Formats that every browser shows, and what they are called on the web."""

ENOUGH = 2**20
"""Pixels that are enough for any network here: a picture is halved as long as it keeps this many,
and then has fewer than four times as many."""

MAX_MEMORY = 512 * 2**20
"""Bytes that decoding a picture may take; one that needs more is refused before it is decoded."""


class TooLargeError(ValueError):
    """A picture that would take too much memory to decode."""


def open_picture(path: str | os.PathLike[str]) -> Image.Image:
    """An upright RGB picture from a file. An unreadable file is an error that names it."""
    try:
        with open(path, "rb") as file:
            return decode(file)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such image") from error
    except (OSError, ValueError) as error:
        error_type = TooLargeError if isinstance(error, TooLargeError) else ValueError
        raise error_type(f"{path}: {error}") from error


def picture_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Width and height of an upright picture, from the head of its file."""
    try:
        with open(path, "rb") as file, opened(file) as image:
            width, height = image.size
            return (height, width) if _orientation(image) >= 5 else (width, height)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def picture_format(path: str | os.PathLike[str]) -> str:
    """The format of a file, from its head: one of ``FORMATS``."""
    with open(path, "rb") as file, opened(file) as image:
        return str(image.format)


def jpeg(picture: Image.Image, side: int | None = None, quality: int = 85) -> bytes:
    """A picture as JPEG; made smaller if its longer side has more than ``side`` pixels."""
    small, out = picture.convert("RGB"), io.BytesIO()
    if side is not None:
        small.thumbnail((side, side))
    small.save(out, "JPEG", quality=quality)
    return out.getvalue()


def decode(file: IO[bytes]) -> Image.Image:
    """An upright RGB picture of fewer than 4 · ``ENOUGH`` pixels."""
    with opened(file) as image:
        needed = memory(image)
        if needed > MAX_MEMORY:
            raise TooLargeError(
                f"{image.width} × {image.height} pixels need {needed >> 20} MiB to decode and "
                f"{MAX_MEMORY >> 20} MiB are allowed; make the picture smaller, or save it as JPEG"
            )
        factor = reduction(image)
        image.draft("RGB", (image.width // factor, image.height // factor))  # JPEG only
        turned = _orientation(image)
        picture = _reduced(image, reduction(image))
        picture.getexif()[ExifTags.Base.Orientation] = turned
        return ImageOps.exif_transpose(picture)


@contextmanager
def opened(file: IO[bytes]) -> Iterator[ImageFile.ImageFile]:
    """A picture of which no pixel is decoded yet. Whatever is wrong with it, also while it is
    decoded, is a ``ValueError``."""
    try:
        with _open(file) as image:
            yield image
    except TooLargeError:
        raise
    except Exception as error:  # decoders raise whatever they like on damaged files
        raise ValueError(f"cannot be decoded as an image ({error})") from error


def _open(file: IO[bytes]) -> ImageFile.ImageFile:
    """As ``Image.open``, for the allowed formats only and without its limit of pixels: ours is of
    the memory that decoding takes."""
    Image.init()
    start = file.read(16)
    for name in FORMATS:
        make, accept = Image.OPEN.get(name, (None, None))
        if make is None or (accept is not None and accept(start) is not True):
            continue
        file.seek(0)
        return make(file, "")
    if not start:
        raise ValueError("the file is empty")
    if start[4:8] == b"ftyp" and start[8:12] in HEIC and "HEIF" not in Image.OPEN:
        raise ValueError("HEIC needs pip install 'gaussmatch[heic]'")
    raise ValueError(f"its content is not {', '.join(available())}")


def available() -> list[str]:
    """The formats that can be read here.

    >>> available()[:6]
    ['JPEG', 'PNG', 'WebP', 'GIF', 'BMP', 'TIFF']
    """
    Image.init()
    return [name.replace("WEBP", "WebP") for name in FORMATS if name in Image.OPEN]


def reduction(image: Image.Image) -> int:
    """The power of two to divide both sides by."""
    factor, pixels = 1, image.width * image.height
    while pixels >= 4 * factor**2 * ENOUGH:
        factor *= 2
    return factor


def memory(image: Image.Image) -> int:
    """An upper bound of the bytes that decoding takes, known before it is begun.

    Pillow keeps 1 byte a pixel for black and white, grey or palette pictures and 4 for others.
    A JPEG is reduced while it is decoded, but a progressive one is held as coefficients of 2 bytes.
    Decoders of WebP, GIF, AVIF and HEIF have copies of their own.
    """
    pixels = image.width * image.height
    result = 12 * min(pixels, 4 * ENOUGH)  # and two copies on the way
    layers = getattr(image, "layer", None)
    if layers:  # JPEG
        shares = [h * v for _, h, v, _ in layers]
        held = 2 * sum(shares) / max(shares) if "progressive" in image.info else 0
        return int(pixels * (held + 4 / min(reduction(image), 8) ** 2)) + result
    bytes_each = {"WEBP": 16, "GIF": 12, "AVIF": 16, "HEIF": 16}.get(image.format or "")
    return pixels * (bytes_each or (1 if image.mode in ("1", "L", "P") else 4)) + result


def _reduced(image: Image.Image, factor: int) -> Image.Image:
    """RGB at 1/factor of the size, strip by strip: a palette picture is never RGB as a whole."""
    if factor == 1:
        return image.convert("RGB")
    size = -(-image.width // factor), -(-image.height // factor)
    whole = Image.new("RGB", size)
    rows = factor * max(1, ENOUGH // (image.width * factor))
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        whole.paste(strip.convert("RGB").reduce(factor), (0, top // factor))
    return whole


def _orientation(image: Image.Image) -> int:
    """As EXIF says; 1 is upright. Pillow turns TIFF itself."""
    found = image.getexif().get(ExifTags.Base.Orientation, 1)
    return found if isinstance(found, int) and image.format != "TIFF" else 1
