"""``data.name: arrays``: embeddings of images and texts that exist already, and which go together.

``data.pairs`` is a CSV or TSV with the columns ``image``, ``text`` (ids, see ``embeddings``) and
perhaps ``split``; without it the split is cut by the hash of the image's id.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import torch

from gaussmatch.data.embeddings import Embeddings, open_embeddings
from gaussmatch.data.listing import Caption, Photo, cut, split_name
from gaussmatch.data.pairs import SPLITS, DataSet, Pairs
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.data.source import Source
from gaussmatch.data.stored import StoredFeatures


def load(recipe: DataRecipe) -> DataSet:
    """The three splits of a recipe's arrays."""
    missing = [n for n in ("images", "texts", "pairs") if getattr(recipe, n) is None]
    if missing:
        raise ValueError(f"data.{missing[0]} is not set: arrays needs images, texts and pairs")
    images, texts, pairs = (
        Path(str(getattr(recipe, name))).expanduser() for name in ("images", "texts", "pairs")
    )
    return assembled(open_embeddings(images), open_embeddings(texts), pairs, recipe.dev_images)


def assembled(
    images: Embeddings, texts: Embeddings, pairs: Path, dev_images: int | None = None
) -> DataSet:
    splits = _read(pairs, images.check(), texts.check())
    if dev_images is not None:
        splits["dev"] = splits["dev"][:dev_images]
    row = {name: i for i, name in enumerate(images.ids)}
    column = {name: i for i, name in enumerate(texts.ids)}
    said = texts.ids if texts.texts is None else texts.texts
    made = []
    for split, photos in splits.items():
        if not photos:
            raise ValueError(f"{pairs}: the split {split!r} has no images")
        chosen = [column[c.id] for p in photos for c in p.captions]
        made.append(
            Pairs(
                f"{pairs.stem}/{split}",
                StoredFeatures(images.vectors, [row[p.id] for p in photos]),
                [said[i] for i in chosen],
                torch.tensor([i for i, p in enumerate(photos) for _ in p.captions]),
                texts=StoredFeatures(texts.vectors, chosen),
            )
        )
    return DataSet(pairs.stem, *made)


def _read(path: Path, images: Embeddings, texts: Embeddings) -> dict[str, list[Photo]]:
    """Images with the ids of their texts, by split."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of pairs (data.pairs)")
    known = {"image": set(images.ids), "text": set(texts.ids)}
    said: dict[str, list[str]] = defaultdict(list)
    split_of: dict[str, str] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, dialect="excel-tab" if path.suffix == ".tsv" else "excel")
        if not {"image", "text"} <= set(reader.fieldnames or ()):
            raise ValueError(f"{path}, line 1: the columns must be image, text and perhaps split")
        for number, line in enumerate(reader, start=2):
            for column, names in known.items():
                if line[column] not in names:
                    of = (images if column == "image" else texts).path
                    raise ValueError(f"{path}, line {number}: {of.name} has no {line[column]!r}")
            said[line["image"]].append(line["text"])
            if line.get("split"):
                split = split_name(line["split"], f"{path}, line {number}")
                if split_of.setdefault(line["image"], split) != split:
                    raise ValueError(f"{path}, line {number}: {line['image']!r} is in two splits")
    photos = [Photo(i, path, tuple(Caption(t, t) for t in ts)) for i, ts in said.items()]
    if not split_of:
        return {name: cut(photos)[name] for name in SPLITS}
    lost = [p.id for p in photos if p.id not in split_of]
    if lost:
        raise ValueError(f"{path}: {lost[0]!r} has no split ({len(lost)} images)")
    return {s: [p for p in photos if split_of[p.id] == s] for s in SPLITS}


SOURCE = Source(
    "arrays",
    where="Embeddings of your own: data.images and data.texts (.npy, .safetensors, .parquet, "
    ".arrow) and data.pairs, a CSV with the columns image, text and perhaps split. An array's ids "
    "are the lines of {stem}_ids.txt beside it, or its row numbers.",
    fields=("images", "texts", "pairs"),
    load=load,
)
