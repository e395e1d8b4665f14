"""Pictures from strangers."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image

from gaussmatch.service.requests import FORMATS, decode
from gaussmatch.service.responses import ApiError


def encoded(format: str, size: tuple[int, int] = (6, 4), **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 10, 10)).save(file, format, **options)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds hardly a byte: a decompression bomb in small."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0"))


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_read_as_rgb(format: str) -> None:
    image = decode(encoded(format), 1000)
    assert (image.mode, image.size) == ("RGB", (6, 4))


def test_a_picture_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encoded("JPEG", exif=exif), 1000).size == (4, 6)


@pytest.mark.parametrize(
    ("data", "most"),
    [
        (encoded("PNG", (50, 21)), 1000),
        (png_header(10_000, 10_000), 50_000_000),  # Pillow would warn
        (png_header(60_000, 60_000), 50_000_000),  # Pillow would refuse
    ],
)
def test_too_many_pixels_are_refused_before_decoding(
    data: bytes, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ApiError, match="at most") as refused:
        decode(data, most)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        encoded("PNG")[:40],
        encoded("JPEG")[:200],
        png_header(10, 10),
        encoded("TIFF"),
        encoded("PPM"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ],
)
def test_what_is_no_whole_picture_of_a_known_format_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError, match="cannot be read as a picture") as refused:
        decode(data, 1000)
    assert refused.value.status == 415
