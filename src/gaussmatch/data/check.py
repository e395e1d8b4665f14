"""What is in a data set, and what is wrong with it, before hours are spent on it."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps, ImageStat
from PIL.PngImagePlugin import PngInfo
from tqdm import tqdm

from gaussmatch.data.language import language_of
from gaussmatch.data.listing import Caption, Listing, Photo
from gaussmatch.data.pictures import open_picture
from gaussmatch.files import atomic

SHOWN = 5  # names of each problem
SHEET = "gaussmatch data check"
"""What a contact sheet says of its maker, so that it may be written again."""


@dataclass
class Report:
    """What was found, line by line, and the problems."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, what: str, names: Sequence[str]) -> None:
        """Count what has a problem, and name the first few."""
        if names:
            more = f", … ({len(names) - SHOWN} more)" if len(names) > SHOWN else ""
            self.problems.append(f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}")


def check_listing(listing: Listing) -> Report:
    """Counts, lengths; captions that say nothing or are in another language; photos that are
    missing, unreadable, of one color, or in two splits."""
    report = Report([f"note: {note}" for note in listing.notes])
    for split, photos in listing.splits.items():
        captions = [caption.text for photo in photos for caption in photo.captions]
        report.lines.append(f"{split}: {len(photos):,} images, {len(captions):,} captions")
        if photos:
            report.lines += spread([len(p.captions) for p in photos], captions)
    if listing.classes:
        shown = sum(bool(p.classes) for p in listing.photos)
        report.lines.append(
            f"{len(listing.classes)} object classes; {shown:,} images show at least one"
        )
    if listing.also_true:
        report.lines.append(f"{len(listing.also_true):,} pairs judged to match")
    _look_at_captions(listing, report)
    _look_at_files(listing, report)
    return report


# ---- captions ----

REPEATED = 100
"""Times that one caption may be repeated before it says nothing about any photo."""
_NOTHING = re.compile(
    r"(n/?a|none|null|nil|nan|todo|tbd|xxx+|test|untitled|unknown|no (caption|description|text)"
    r"|(a|an|the)?\s*(image|img|photo|picture|pic|dsc|dscn|dscf|pxl|screenshot|file|scan|frame)?"
    r"[\s_#-]*\(?\d[\d\s_.:-]*\)?(\.\w{3,4})?|(img|dsc|dscn|dscf|pxl)[\s_-]?\w*(\.\w{3,4})?"
    r"|(a|an|the|this|my|some)?\s*(image|photo|picture|pic|caption|description|photograph)s?"
    r"|\S+\.(jpe?g|png|gif|webp|heic|tiff?)|[\W_]+)",
    re.IGNORECASE,
)


def says_nothing(text: str, often: Collection[str] = ()) -> str | None:
    """Why a caption says nothing about any photo; ``None`` if it may say something. ``often``:
    those that are ``repeated``.

    >>> [says_nothing(t) for t in ("n/a", "Photo 23", "IMG_2041.jpg", " ", "a dog", "3 dogs")]
    ['a placeholder', 'a placeholder', 'a placeholder', 'empty', None, None]
    """
    bare = text.strip().strip("\"'.")
    if not bare:
        return "empty"
    if _NOTHING.fullmatch(bare):
        return "a placeholder"
    return f"repeated {REPEATED} times or more" if text.strip().lower() in often else None


def repeated(texts: Iterable[str]) -> set[str]:
    """Captions, in lower case, that occur ``REPEATED`` times or more."""
    counts = Counter(text.strip().lower() for text in texts)
    return {text for text, count in counts.items() if count >= REPEATED and text}


def garbled(text: str) -> str | None:
    """The text that was probably meant where UTF-8 was read as another encoding, or ``""`` where
    letters are lost; ``None`` for a sound text.

    >>> garbled("un cafÃ©"), garbled("a caf\ufffd"), garbled("un café")
    ('un café', '', None)
    """
    if "\ufffd" in text:
        return ""
    for encoding in ("cp1252", "latin-1"):
        try:
            meant = text.encode(encoding).decode("utf-8")
        except (UnicodeEncodeError, UnicodeDecodeError):
            continue
        return meant if meant != text else None
    return None


def _look_at_captions(listing: Listing, report: Report) -> None:
    said = [caption for photo in listing.photos for caption in photo.captions]
    often = repeated(caption.text for caption in said)
    why = [says_nothing(one.text, often) for one in said]
    for reason, what in (("empty", "are empty"), ("a placeholder", "say nothing")):
        held = [one for one, of in zip(said, why, strict=True) if of == reason]
        report.problem(f"captions {what}", _places(held, reason != "empty"))
    report.problem(
        f"captions are repeated {REPEATED} times or more",
        sorted({repr(one.text) for one in said if one.text.strip().lower() in often}),
    )
    broken = [one for one in said if garbled(one.text) is not None]
    report.problem("captions have a broken encoding", _places(broken, True))
    languages: dict[str, list[Caption]] = {}
    for one in said:
        languages.setdefault(language_of(one.text) or "", []).append(one)
    _other_languages(languages, report)


def _other_languages(languages: Mapping[str, list[Caption]], report: Report) -> None:
    """Captions in another language than most; several that are common are what the data is."""
    told = {name: held for name, held in languages.items() if name}
    total = sum(map(len, told.values()))
    for name, held in told.items():
        if len(held) < 0.05 * total:
            report.problem(f"captions are in another language ({name})", _places(held, True))
        elif len(held) < total:
            report.lines.append(f"{len(held):,} captions are in one language: {name}")


def _places(captions: Iterable[Caption], quoted: bool = False) -> list[str]:
    """Where captions stand, in the order of their files and lines."""
    in_order = sorted(captions, key=lambda c: _numbers(c.place or c.id))
    return [f"{c.place or c.id}{f' {c.text!r}' if quoted else ''}" for c in in_order]


def _numbers(place: str) -> list[tuple[int, str]]:
    """A key that sorts line 9 before line 10."""
    parts = re.split(r"(\d+)", place)
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)]


def one_color(picture: Image.Image) -> bool:
    """Whether a picture shows nothing: all its pixels have nearly one color.

    >>> one_color(Image.new("RGB", (40, 30), "navy"))
    True
    """
    small = picture.convert("RGB").resize((32, 32), Image.Resampling.BOX)
    return max(ImageStat.Stat(small).stddev) < 2.0


# ---- files ----


def _look_at_files(listing: Listing, report: Report) -> None:
    missing, unreadable, blank = [], [], []
    seen: dict[bytes, tuple[str, str]] = {}
    leaks, twice = [], []
    photos = [(split, photo) for split, photos in listing.splits.items() for photo in photos]
    for split, photo in tqdm(photos, "photos", unit="photo", leave=False):
        if not photo.path.is_file():
            missing.append(photo.path.name)
            continue
        try:
            if one_color(open_picture(photo.path)):
                blank.append(photo.path.name)
        except (ValueError, OSError):
            unreadable.append(photo.path.name)
        digest = hashlib.sha256(photo.path.read_bytes()).digest()
        before, name = seen.setdefault(digest, (split, photo.path.name))
        if before != split:
            leaks.append(f"{name} ({before}) = {photo.path.name} ({split})")
        elif name != photo.path.name:
            twice.append(f"{name} = {photo.path.name}")
    report.problem("photos are missing", missing)
    report.problem("photos cannot be decoded", unreadable)
    report.problem("photos have one color only", blank)
    report.problem("photos are in two splits under two names (leakage)", leaks)
    if twice:
        report.lines.append(f"note: {len(twice)} photos are twice in one split: {twice[0]} …")
    report.lines.append(f"{len(photos) - len(missing) - len(unreadable):,} photos can be read")


def spread(per_image: Sequence[int], captions: Sequence[str]) -> list[str]:
    """Captions per image and words per caption, in two lines."""
    words = sorted(len(caption.split()) for caption in captions)
    counts = Counter(per_image)
    listed = ", ".join(f"{n:,} images with {k}" for k, n in sorted(counts.items())[:SHOWN])
    lines = [f"  captions per image: {listed}{', …' if len(counts) > SHOWN else ''}"]
    if words:
        median = words[len(words) // 2]
        lines.append(f"  words per caption: {words[0]} to {words[-1]}, median {median}")
    return lines


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
        said = photo.captions[0].text if photo.captions else "(no caption)"
        words = textwrap.wrap(said, 34)[:3]
        draw.multiline_text((x, y + SIDE - 6), "\n".join(words), "black", font)
        shown += 1
    if shown:
        said_so = PngInfo()
        said_so.add_text("Software", SHEET)
        with atomic(path) as temporary:
            sheet.save(temporary, "PNG", pnginfo=said_so)
    return shown


def _spread_out(photos: list[Photo]) -> Iterable[Photo]:
    step = max(1, len(photos) // (COLUMNS * ROWS))
    return photos[::step]
