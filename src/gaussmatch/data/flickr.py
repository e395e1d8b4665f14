"""Flickr8k and Flickr30K as their publishers give them.

Flickr8k: ``Flickr8k.token.txt``, ``Flickr_8k.{train,dev,test}Images.txt``, the photos in
``images/`` or ``Flicker8k_Dataset/``, and ``CrowdFlowerAnnotations.txt`` where there: for pairs of
a caption and another photo, the share of people who said that it fits.
Flickr30K: ``dataset_flickr30k.json``; or ``results_20130124.token`` with ``train.txt``,
``val.txt`` and ``test.txt`` (image numbers, as in Flickr30k Entities).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gaussmatch.data.listing import Caption, Listing, Photo, read_karpathy
from gaussmatch.data.pairs import SPLITS
from gaussmatch.data.recipe import Source
from gaussmatch.data.stored import read_lines

AGREED = 0.5
"""A caption also fits another photo if at least this share of the judges said so."""
_PHOTOS = {
    "flickr8k": ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset"),
    "flickr30k": ("flickr30k-images", "flickr30k_images", "images", "Images"),
}


def read_flickr8k(root: Path) -> Listing:
    """6,000 / 1,000 / 1,000 photos, with the human judgments as further true pairs of test."""
    captions = read_tokens(root / "Flickr8k.token.txt")
    lists = {split: root / f"Flickr_8k.{split}Images.txt" for split in SPLITS}
    splits = _split(captions, lists, finder(root, "flickr8k"), str)
    judged = root / "CrowdFlowerAnnotations.txt"
    notes = _orphans(captions, splits, finder(root, "flickr8k"))
    if not judged.is_file():
        notes.append(f"no {judged.name}: only the pairs themselves count as true")
        return Listing("flickr8k", splits, notes)
    also = {(caption, photo) for photo, caption, yes in read_judgments(judged) if yes >= AGREED}
    return Listing("flickr8k", splits, notes, frozenset(also))


def read_flickr30k(root: Path) -> Listing:
    """29,000 / 1,000 / 1,000 photos in Karpathy's split (his file lists 31,014)."""
    find, split_file = finder(root, "flickr30k"), root / "dataset_flickr30k.json"
    if split_file.is_file():
        return read_karpathy(split_file, "flickr30k", find)
    captions = read_tokens(root / "results_20130124.token")
    lists = {s: root / f"{n}.txt" for s, n in zip(SPLITS, ("train", "val", "test"), strict=True)}
    splits = _split(captions, lists, find, lambda name: name.removesuffix(".jpg") + ".jpg")
    return Listing("flickr30k", splits, _orphans(captions, splits, find))


def finder(root: Path, data_set: str) -> Callable[[str], Path]:
    """Where a photo is, by its file name."""
    folder = next((root / f for f in _PHOTOS[data_set] if (root / f).is_dir()), root / "images")
    return lambda name: folder / name


def read_tokens(path: Path) -> dict[str, list[Caption]]:
    """``photo.jpg#0<tab>caption`` lines, by photo."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing; see 'gaussmatch data where'")
    captions: dict[str, list[Caption]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        key, tab, text = line.partition("\t")
        name, hash_sign, which = key.rpartition("#")
        if not tab or not hash_sign or not which.isdigit():
            raise ValueError(f"{path}, line {number}: not 'photo.jpg#0<tab>caption': {line[:60]!r}")
        place = f"{path.name}, line {number}"
        captions.setdefault(name, []).append(Caption(key, text.strip(), place))
    return captions


def read_judgments(path: Path) -> Iterator[tuple[str, str, float]]:
    """Photo, caption id, and the share of the judges who said that they fit."""
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        try:
            yield fields[0], fields[1], float(fields[2])
        except (IndexError, ValueError):
            raise ValueError(
                f"{path}, line {number}: not 'photo<tab>caption id<tab>share of Yes…'"
            ) from None


def _split(
    captions: dict[str, list[Caption]],
    lists: dict[str, Path],
    find: Callable[[str], Path],
    file_name: Callable[[str], str],
) -> dict[str, list[Photo]]:
    splits: dict[str, list[Photo]] = {}
    seen: dict[str, str] = {}
    for split, path in lists.items():
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: missing; it lists the photos of {split} (see 'gaussmatch data where')"
            )
        splits[split] = []
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            name, place = file_name(line.strip()), f"{path}, line {number}"
            if name not in captions:
                raise ValueError(f"{place}: {name} has no caption; remove it or add its captions")
            if name in seen:
                raise ValueError(f"{place}: {name} is also in {seen[name]}; keep it in one split")
            seen[name] = split
            splits[split].append(Photo(name, find(name), tuple(captions[name])))
    return splits


def _orphans(
    captions: dict[str, list[Caption]], splits: dict[str, list[Photo]], find: Callable[[str], Path]
) -> list[str]:
    used = {photo.id for photos in splits.values() for photo in photos}
    left = [name for name in captions if name not in used]
    lost = [name for name in left if not find(name).is_file()]
    notes = [f"{name} has captions and no photo; not used" for name in lost[:5]]
    if len(lost) > 5:
        notes.append(f"… and {len(lost) - 5} more with captions and no photo")
    if len(left) > len(lost):
        notes.append(f"{len(left) - len(lost)} photos with captions are in no split; not used")
    return notes


FLICKR8K = Source(
    "flickr8k",
    where="""\
Flickr8k (Hodosh et al. 2013). In one folder:
  images/ (or Flicker8k_Dataset/)    the photos
  Flickr8k.token.txt                 the captions
  Flickr_8k.trainImages.txt, Flickr_8k.devImages.txt, Flickr_8k.testImages.txt
  CrowdFlowerAnnotations.txt         human judgments (not needed; they become true pairs of test)
From: the authors' form at the University of Illinois (Flickr8k_text.zip, Flickr8k_Dataset.zip).""",
    signs=("Flickr8k.token.txt",),
    read=lambda recipe, root: read_flickr8k(root),
)
FLICKR30K = Source(
    "flickr30k",
    where="""\
Flickr30K (Young et al. 2014). In one folder:
  flickr30k-images/ (or images/)     the photos
  dataset_flickr30k.json             captions and Karpathy's split (caption_datasets.zip); or
  results_20130124.token             the captions, with train.txt, val.txt, test.txt
From: the authors' form at shannon.cs.illinois.edu/DenotationGraph; the three lists from
github.com/BryanPlummer/flickr30k_entities.""",
    signs=("results_20130124.token", "dataset_flickr30k.json"),
    read=lambda recipe, root: read_flickr30k(root),
)
