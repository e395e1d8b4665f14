"""The process that opens pictures, and nothing else does.

A file from a stranger can make a decoder take any memory and any time, whatever its head says: a
tile larger than its picture, a million empty markers, 250,000 scans. So each picture is opened in a
child of ours (``pictures`` starts it with this file as its program) that the kernel ends when it
exceeds its memory (``RLIMIT_AS``; Linux only) or its time (``SIGALRM``), for every format and for
those not yet thought of. It imports Pillow and the standard library only, so it starts fast.

A request is ``REQUEST`` with the file's descriptor; an answer is ``ANSWER``, JSON, and the pixels.
Nothing that comes back is ever executed or unpickled.
"""

from __future__ import annotations

import html
import json
import math
import os
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import import_module
from typing import IO, Any

from PIL import AvifImagePlugin, ExifTags, Image, ImageFile, ImageOps, IptcImagePlugin

for _plugin in ("Bmp", "Gif", "Jpeg", "Mpo", "Png", "Tiff", "WebP"):
    import_module(f"PIL.{_plugin}ImagePlugin")  # makes its format known, and no other is imported
try:
    import pillow_heif
except ImportError:  # the extra ``heic``
    pass
else:
    pillow_heif.options.DECODE_THREADS = 1  # each would take memory of its own
    pillow_heif.register_heif_opener(thumbnails=False)
AvifImagePlugin.DEFAULT_MAX_THREADS = 1

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

ENOUGH = 2**20
"""Pixels that are enough for any network here: a picture is halved as long as it keeps this many,
and then has fewer than four times as many."""

MIB = 2**20
SLACK = 8 * MIB
"""Bytes beside those of a picture: stacks, codecs, and what the allocator keeps."""

OUT_OF_MEMORY = "error -9"
"""How Pillow ends the message if one of its codecs gets no memory."""

REQUEST = struct.Struct("!?QQd")
"""Whether pixels are wanted, and the most of bytes, pixels and seconds."""
ANSWER = struct.Struct("!III")
"""The length of the JSON, and width and height of the RGB pixels after it."""


class TooLargeError(ValueError):
    """A picture that would take too much memory or time to decode."""


# ---- the picture ----


def check(image: ImageFile.ImageFile, most: int, most_pixels: int = 0) -> None:
    """An error if its head says that it needs more memory or has more pixels (0: any number)."""
    if most_pixels and image.width * image.height > most_pixels:
        raise TooLargeError(
            f"it has {image.width} × {image.height} pixels and {most_pixels:,} are allowed"
        )
    needed = memory(image)
    if needed > most:
        raise TooLargeError(
            f"{image.width} × {image.height} pixels as {image.format} need {needed // MIB} MiB to "
            f"decode and {most // MIB} MiB are allowed; make the picture smaller, or save it as "
            "JPEG"
        )


def decode(image: ImageFile.ImageFile) -> Image.Image:
    """An upright RGB picture of fewer than 4 · ``ENOUGH`` pixels."""
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
    except (TooLargeError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever they like on damaged files
        if str(error).endswith(OUT_OF_MEMORY) or _is_large_webp(file):
            raise MemoryError from error
        raise ValueError(f"cannot be decoded as an image ({error})") from error


def _is_large_webp(file: IO[bytes]) -> bool:
    """Whether a WebP that cannot be opened claims 4 megapixels or more. Its decoder takes eight
    bytes a pixel when it opens a file, and does not tell a lack of memory from damage."""
    head = os.pread(file.fileno(), 30, 0)
    if head[:4] + head[8:12] != b"RIFFWEBP":
        return False
    if head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    elif head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width * height >= 2**22


def _open(file: IO[bytes]) -> ImageFile.ImageFile:
    """As ``Image.open``, for the allowed formats only and without its limit of pixels: ours is of
    the memory that decoding takes."""
    name = sniffed(file.read(16))
    file.seek(0)
    return Image.OPEN[name][0](file, "")


def sniffed(start: bytes) -> str:
    """The format of a file, from its first 16 bytes: one of ``FORMATS``, or a ``ValueError``."""
    for name in FORMATS:
        _, accept = Image.OPEN.get(name, (None, None))
        if accept is not None and accept(start) is True:
            return name
    why = f"its content is not {', '.join(available())}"
    if not start:
        why = "the file is empty"
    elif start[4:8] == b"ftyp" and start[8:12] in HEIC and "HEIF" not in Image.OPEN:
        why = "HEIC needs pip install 'gaussmatch[heic]'"
    raise ValueError(f"cannot be decoded as an image ({why})")


def available() -> list[str]:
    """The formats that can be read here.

    >>> available()[:6]
    ['JPEG', 'PNG', 'WebP', 'GIF', 'BMP', 'TIFF']
    """
    return [name.replace("WEBP", "WebP") for name in FORMATS if name in Image.OPEN]


def reduction(image: Image.Image) -> int:
    """The power of two to divide both sides by."""
    factor = 1
    while -(-image.width // factor) * -(-image.height // factor) >= 4 * ENOUGH:
        factor *= 2
    return factor


def memory(image: Image.Image) -> int:
    """The bytes that decoding takes if the head of the file tells the truth, known before it is
    begun; what it takes in fact is limited by the kernel.

    Pillow keeps 1 byte a pixel for black and white, gray or palette pictures and 4 for others.
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


# ---- what it says of itself ----

LONGEST = 500  # letters of a caption
_DATES = (
    (ExifTags.IFD.Exif, ExifTags.Base.DateTimeOriginal),
    (ExifTags.IFD.Exif, ExifTags.Base.DateTimeDigitized),
    (None, ExifTags.Base.DateTime),
)
_IPTC_CAPTION = (2, 120)
_XMP_CAPTIONS = (b"dc:description", b"dc:title")
_NOT_SAID = re.compile(
    r"(?:\w+ )?digital camera|\w* ?camera pictures|dcim.*|default|untitled", re.I
)
"""Captions that cameras write."""


def said(image: ImageFile.ImageFile) -> dict[str, Any]:
    """The fields of ``pictures.Read.said`` that are in the file."""
    found: dict[str, Any] = {}
    for read in (_taken, _position, _caption):
        try:
            found |= read(image)
        except MemoryError:
            raise
        except Exception:  # Pillow raises whatever it likes on damaged tags
            continue
    return found


def _taken(image: ImageFile.ImageFile) -> dict[str, str]:
    exif = image.getexif()
    for part, tag in _DATES:
        found = (exif if part is None else exif.get_ifd(part)).get(tag)
        try:
            taken = datetime.strptime(str(found)[:19], "%Y:%m:%d %H:%M:%S")
        except ValueError:
            continue
        return {"taken": taken.isoformat()}
    return {}


def _position(image: ImageFile.ImageFile) -> dict[str, Any]:
    gps = image.getexif().get_ifd(ExifTags.IFD.GPSInfo)
    names = ExifTags.GPS
    latitude = _degrees(gps, names.GPSLatitude, names.GPSLatitudeRef, "S", 90)
    longitude = _degrees(gps, names.GPSLongitude, names.GPSLongitudeRef, "W", 180)
    if latitude is None or longitude is None or latitude == longitude == 0:  # no fix
        return {}
    place = f"{latitude:.5f}, {longitude:.5f}"
    return {"latitude": latitude, "longitude": longitude, "place": place}


def _degrees(
    gps: Mapping[int, Any], tag: int, side: int, negative: str, most: float
) -> float | None:
    """Degrees, minutes and seconds as a number, to a metre."""
    try:
        parts = [float(part) for part in gps[tag]]
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    degrees = sum(part / 60**power for power, part in enumerate(parts[:3]))
    if not parts or not math.isfinite(degrees) or not 0 <= degrees <= most:
        return None
    return round(-degrees if str(gps.get(side, "")).upper().startswith(negative) else degrees, 6)


def _caption(image: ImageFile.ImageFile) -> dict[str, str]:
    for said in _captions(image):
        text = " ".join("".join(c if c.isprintable() else " " for c in said).split())
        if text and not _NOT_SAID.fullmatch(text):
            return {"caption": text[:LONGEST]}
    return {}


def _captions(image: ImageFile.ImageFile) -> Iterator[str]:
    """Everything that may be a caption, the likeliest first."""
    held = (IptcImagePlugin.getiptcinfo(image) or {}).get(_IPTC_CAPTION)
    for value in held if isinstance(held, list) else [held]:
        yield _text(value)
    xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
    for name in _XMP_CAPTIONS:
        field = _between(xmp.encode() if isinstance(xmp, str) else xmp, name)
        yield html.unescape(_text(_between(field, b"rdf:li")))
    exif = image.getexif()
    yield _text(str(exif.get(ExifTags.Base.ImageDescription, "")).encode("latin-1", "ignore"))
    for tag in (ExifTags.Base.XPTitle, ExifTags.Base.XPSubject, ExifTags.Base.XPComment):
        value = exif.get(tag)
        yield value.decode("utf-16-le", "ignore") if isinstance(value, bytes) else _text(value)


def _between(xml: bytes, name: bytes) -> bytes:
    """The content of the first element of a name, in one pass however odd the XML is.

    >>> _between(b'<a><rdf:li xml:lang="x">two dogs</rdf:li></a>', b"rdf:li")
    b'two dogs'
    """
    return xml.partition(b"<" + name)[2].partition(b">")[2].partition(b"</" + name)[0]


def _text(value: Any) -> str:
    """Text of unknown encoding."""
    if not isinstance(value, bytes):
        return value if isinstance(value, str) else ""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


# ---- the process ----


def serve(link: socket.socket) -> None:
    """Answer requests until there are no more, or until one took too much."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it is doing
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides, and closes the link
        signal.signal(number, signal.SIG_IGN)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    Image.MAX_IMAGE_PIXELS = None  # ours are bytes
    before, stays = _mapped(), True
    while stays:
        request, descriptors, *_ = socket.recv_fds(link, REQUEST.size, 1)
        if not request:
            return
        pixels, most, most_pixels, seconds = REQUEST.unpack(request)
        with os.fdopen(descriptors[0], "rb") as file:
            _limit(before + most + SLACK)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                told, picture = _read(file, pixels, most, most_pixels)
            except MemoryError:
                told, picture, stays = {"too_large": _too_much(most)}, None, False
            signal.setitimer(signal.ITIMER_REAL, 0)
        _send(link, told, picture)
        del picture
        stays = stays and _mapped() <= before + SLACK  # else the next has less than it may take
        link.sendall(bytes([stays]))


def _read(
    file: IO[bytes], pixels: bool, most: int, most_pixels: int
) -> tuple[dict[str, Any], Image.Image | None]:
    try:
        with opened(file) as image:
            check(image, most, most_pixels)
            width, height = image.size
            size = (height, width) if _orientation(image) >= 5 else (width, height)
            told = {"size": size, "said": said(image)}
            return told, decode(image) if pixels else None
    except TooLargeError as error:
        return {"too_large": str(error)}, None
    except ValueError as error:
        return {"error": " ".join(str(error).split())[:1000]}, None


def _too_much(most: int) -> str:
    return (
        f"decoding it takes more than {most // MIB} MiB, whatever its head says; save it again as "
        "JPEG or PNG"
    )


def _send(link: socket.socket, told: dict[str, Any], picture: Image.Image | None) -> None:
    """In strips, so that the pixels are not there twice."""
    width, height = (0, 0) if picture is None else picture.size
    text = json.dumps(told).encode()
    link.sendall(ANSWER.pack(len(text), width, height) + text)
    rows = max(1, ENOUGH // max(1, width))
    for top in range(0, height, rows):
        assert picture is not None
        strip = picture.crop((0, top, width, min(top + rows, height)))
        link.sendall(strip.tobytes())


def _mapped() -> int:
    """Bytes of address space of this process; 0 where the kernel does not limit them."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit(most: int) -> None:
    """Within the limit that this machine sets (``ulimit -v``), which nobody but root may raise."""
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    with suppress(BrokenPipeError, ConnectionResetError), socket.socket(fileno=0) as parent:
        serve(parent)
