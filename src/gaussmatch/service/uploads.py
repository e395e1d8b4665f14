"""Pictures from strangers: bounded in bytes and pixels, of a known format, or refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, ImageOps
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from gaussmatch.service.errors import RefusalError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Raster formats whose size stands in the header; nothing that runs a program (EPS) or reads
another file."""


async def uploaded(request: Request) -> bytes:
    """The picture of a request: its body, or the field ``image`` of a form."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "multipart/form-data":
        data = await request.body()
    else:
        try:
            async with request.form(max_files=1, max_fields=4) as form:
                field = form.get("image")
                if field is None or isinstance(field, str):
                    raise RefusalError(422, "no_image", "the form has no file in the field 'image'")
                data = await field.read()
        except (MultiPartException, HTTPException) as error:
            detail = getattr(error, "message", None) or getattr(error, "detail", "")
            raise RefusalError(400, "bad_form", f"the form cannot be read: {detail}") from error
    if not data:
        raise RefusalError(422, "no_image", "the request holds no picture; send one as its body")
    return data


def measure(data: bytes, max_pixels: int) -> int:
    """The pixels of a picture, by its header."""
    with _opened(data, max_pixels) as image:
        return image.width * image.height


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """An upright RGB picture. The number of pixels is checked before any is decoded."""
    with _opened(data, max_pixels) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


@contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """A picture of which no pixel is decoded yet; whatever goes wrong with it is a refusal."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise RefusalError(
                    413,
                    "too_many_pixels",
                    f"the picture has {image.width} × {image.height} pixels and at most "
                    f"{max_pixels:,} are taken; send a smaller one",
                )
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RefusalError(
            413, "too_many_pixels", f"at most {max_pixels:,} pixels are taken; send a smaller one"
        ) from error
    except RefusalError:
        raise
    except Exception as error:  # decoders raise whatever they like on damaged files
        raise RefusalError(
            415,
            "not_an_image",
            f"this cannot be read as a picture; send {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
        ) from error
