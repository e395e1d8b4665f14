"""What a photo says of itself: when and where it was taken, and what is on it.

=====================  =====================================================================
``taken``              EXIF date, ISO 8601: ``2023-05-17T10:22:31``
``latitude``           EXIF position in degrees, south and west negative; and ``longitude``
``place``              both as text: ``48.85840, 2.29450``
``caption``            of IPTC, XMP or EXIF, else the words of the file's name
=====================  =====================================================================

A field that is missing or makes no sense is left out: metadata never stops an index.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from PIL import ExifTags, ImageFile, IptcImagePlugin

from gaussmatch.data.pictures import opened

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
_NOT_WORDS = (
    "img image images photo photos pic pict picture pano mvimg burst screenshot screen shot scan "
    "whatsapp signal telegram fullsizerender thumb thumbnail copy edited edit final untitled "
    "unnamed download jpg jpeg png foto bild the and"
)
"""Parts of file names that programs write, and words that say nothing alone."""


def photo_metadata(path: Path) -> dict[str, Any]:
    """What the head of a photo's file says, and else its name."""
    words = words_of_name(path)
    said: dict[str, Any] = {"caption": words} if words else {}
    with suppress(OSError, ValueError), path.open("rb") as file, opened(file) as image:
        for read in (_taken, _position, _caption):
            with suppress(Exception):  # Pillow raises whatever it likes on damaged tags
                said |= read(image)
    return said


def words_of_name(path: PurePath) -> str:
    """The words in a file's name; nothing where a camera or a program made it.

    >>> words_of_name(PurePath("two-dogs_in the snow (2).jpg"))
    'two dogs in the snow'
    >>> words_of_name(PurePath("IMG_20230517.jpg")), words_of_name(PurePath("a9f3-cbd7.jpg"))
    ('', '')
    """
    parts = [part for part in re.split(r"[\W_]+", path.stem) if part.isalpha()]
    informative = [
        p for p in parts if len(p) > 2 and p.lower() not in _NOT_WORDS.split() and _has_vowel(p)
    ]
    return " ".join(parts) if informative else ""


def _has_vowel(word: str) -> bool:
    """Whether it may be a word; letters beyond ASCII are taken for some."""
    return not word.isascii() or any(letter in "aeiouy" for letter in word.lower())


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
