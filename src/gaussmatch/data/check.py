"""What is in a data set, and what is wrong with it, before hours are spent on it."""

from __future__ import annotations

import hashlib
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, ImageOps
from PIL.PngImagePlugin import PngInfo
from tqdm import tqdm

from gaussmatch.data.listing import Listing, Photo
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
    """Counts, lengths, missing and unreadable photos, photos that are in two splits."""
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
    _look_at_files(listing, report)
    return report


def _look_at_files(listing: Listing, report: Report) -> None:
    missing, unreadable = [], []
    seen: dict[bytes, tuple[str, str]] = {}
    leaks, twice = [], []
    photos = [(split, photo) for split, photos in listing.splits.items() for photo in photos]
    for split, photo in tqdm(photos, "photos", unit="photo", leave=False):
        if not photo.path.is_file():
            missing.append(photo.path.name)
            continue
        try:
            open_picture(photo.path)
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
