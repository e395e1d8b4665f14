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

import re
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from gaussmatch.data.pictures import read_picture

_NOT_WORDS = (
    "img image images photo photos pic pict picture pano mvimg burst screenshot screen shot scan "
    "whatsapp signal telegram fullsizerender thumb thumbnail copy edited edit final untitled "
    "unnamed download jpg jpeg png foto bild the and"
)
"""Parts of file names that programs write, and words that say nothing alone."""


def photo_metadata(path: Path) -> dict[str, Any]:
    """What the head of a photo's file says, and else its name."""
    said: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        said = read_picture(path, pixels=False).said
    return named(path, said)


def named(path: PurePath, said: dict[str, Any]) -> dict[str, Any]:
    """With the words of the file's name where the file says none."""
    words = words_of_name(path)
    return {"caption": words, **said} if words else said


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
