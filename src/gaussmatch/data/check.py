"""What is in a data set, and what is wrong with it, before hours are spent on it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gaussmatch.data import cxc, precomputed
from gaussmatch.data.listing import Listing
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.data.pictures import open_picture

FORMATS = ("coco", "flickr30k", "flickr8k", "cxc", "visual-genome", "precomputed", "folder")
_SIGNS = (
    ("cxc", "sits_*.csv"),
    ("flickr8k", "Flickr8k.token.txt"),
    ("flickr30k", "results_20130124.token"),
    ("flickr30k", "dataset_flickr30k.json"),
    ("coco", "captions_*.json"),
    ("coco", "annotations/captions_*.json"),
    ("visual-genome", "region_descriptions.json"),
    ("precomputed", "*_ims.npy"),
    ("folder", "*.csv"),
    ("folder", "*.tsv"),
    ("folder", "*.jsonl"),
)
SHOWN = 5  # names of each kind of problem


def guess_format(root: Path) -> str:
    """The format of a folder, by the files in it."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    for name, pattern in _SIGNS:
        if any(root.glob(pattern)):
            return name
    raise ValueError(
        f"{root}: holds none of the files that tell its format; name it with --format "
        f"{'|'.join(FORMATS)}, and see 'gaussmatch data where'"
    )


@dataclass
class Report:
    """Lines that tell what was found, and the problems among them."""

    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def problem(self, what: str, names: Sequence[str]) -> None:
        """Count and name a kind of problem, if there is any."""
        if names:
            more = f", … ({len(names) - SHOWN} more)" if len(names) > SHOWN else ""
            self.problems.append(f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}")


def check_cxc(root: Path) -> Report:
    report = Report()
    for path in cxc.score_files(root):
        told = cxc.read_positives(path)
        report.lines.append(
            f"{path.name}: {len(told.original):,} original pairs and {len(told.extra):,} extra "
            f"positives, {told.total:,} in all"
        )
    return report


def check_precomputed(root: Path) -> Report:
    """Numbers and shapes, and every value looked at for NaN and infinity."""
    report, data = Report(), precomputed.load(root)
    for pairs in _splits(data):
        shape = " × ".join(str(side) for side in pairs.images[0].shape)
        report.lines += [f"{pairs.name}: features {shape}", *_counts(pairs)]
        bad = [i for i in range(len(pairs.images)) if not np.isfinite(pairs.images[i]).all()]
        report.problem(f"rows of {pairs.name} hold a NaN or infinity", [str(i) for i in bad])
    return report


def check_listing(listing: Listing, progress: bool = True) -> Report:
    """Counts, lengths, missing and unreadable photos, photos that stand in two splits."""
    report = Report([f"note: {note}" for note in listing.notes])
    for split, photos in listing.splits.items():
        captions = [caption.text for photo in photos for caption in photo.captions]
        report.lines.append(f"{split}: {len(photos):,} images, {len(captions):,} captions")
        if photos:
            report.lines += _spread([len(p.captions) for p in photos], captions)
    if listing.classes:
        shown = sum(bool(p.classes) for p in listing.photos)
        report.lines.append(
            f"{len(listing.classes)} object classes; {shown:,} images show at least one"
        )
    if listing.also_true:
        report.lines.append(f"{len(listing.also_true):,} pairs judged to match")
    _look_at_files(listing, report, progress)
    return report


def _look_at_files(listing: Listing, report: Report, progress: bool) -> None:
    missing, unreadable = [], []
    seen: dict[bytes, tuple[str, str]] = {}
    leaks, twice = [], []
    photos = [(split, photo) for split, photos in listing.splits.items() for photo in photos]
    for split, photo in tqdm(photos, "photos", unit="photo", disable=not progress, leave=False):
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


def _counts(pairs: Pairs) -> Iterator[str]:
    yield f"  {len(pairs.images):,} images, {len(pairs.captions):,} captions"
    yield from _spread(list(Counter(pairs.image_of.tolist()).values()), pairs.captions)


def _spread(per_image: Sequence[int], captions: Sequence[str]) -> list[str]:
    """Captions per image and words per caption, in two lines."""
    words = sorted(len(caption.split()) for caption in captions)
    counts = Counter(per_image)
    told = ", ".join(f"{n:,} images with {k}" for k, n in sorted(counts.items())[:SHOWN])
    return [
        f"  captions per image: {told}{', …' if len(counts) > SHOWN else ''}",
        f"  words per caption: {words[0]} to {words[-1]}, median {words[len(words) // 2]}",
    ]


def _splits(data: DataSet) -> tuple[Pairs, Pairs, Pairs]:
    return data.train, data.dev, data.test
