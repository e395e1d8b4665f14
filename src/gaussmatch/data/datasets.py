"""``data.name: datasets``: a data set of the library `datasets` by name, or a folder that it saved.

``data.root`` is the name on the Hugging Face hub (``nlphuji/flickr30k``), a folder of
``save_to_disk``, or any folder that ``load_dataset`` reads. Its photos and captions are written
once into the cache, as a folder of one's own (``data.folder``), and read from there.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gaussmatch.checks import extra
from gaussmatch.data import folder, hub
from gaussmatch.data.folder import COLUMNS
from gaussmatch.data.listing import Listing, split_name
from gaussmatch.data.recipe import DataRecipe, Source
from gaussmatch.files import cache_root, made_once

CAPTIONS = (*COLUMNS["caption"], "sentences", "caption_0")


def place(recipe: DataRecipe) -> Path:
    """The folder of a data set in the cache."""
    if recipe.root is None:
        raise ValueError("data.root is not set: give the name of the data set, or its folder")
    return written(recipe.root)


def read(place: Path, name: str) -> Listing:
    listing = folder.read(place)
    return Listing(Path(name).name, listing.splits, listing.notes)


def written(name: str) -> Path:
    """The photos and captions of a data set as a folder in the cache, made once."""
    splits = opened(name)
    prints = [str(getattr(rows, "_fingerprint", "")) for rows in splits.values()]
    key = hashlib.sha256("\n".join([name, *splits, *prints]).encode()).hexdigest()[:16]

    def make(out: Path) -> None:
        with (out / "captions.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            named = len(splits) > 1
            writer.writerow(["image", "caption", *(["split"] if named else [])])
            for split, rows in splits.items():
                ours = [split_name(split, name)] if named else []
                for number, (picture, captions) in enumerate(_items(name, rows)):
                    photo = f"{split}-{number:07}{_ending(picture)}"
                    (out / photo).write_bytes(picture)
                    writer.writerows([photo, caption, *ours] for caption in captions)

    return made_once(cache_root() / "datasets" / key, make)


def opened(name: str) -> Mapping[str, Any]:
    """Split → rows."""
    with extra("datasets", "this data set"):
        import datasets
    place = Path(name).expanduser()
    if place.is_dir():
        saved = any((place / file).is_file() for file in ("dataset_dict.json", "state.json"))
        found = datasets.load_from_disk(place) if saved else datasets.load_dataset(str(place))
    else:
        hub.check_reachable(name)
        found = datasets.load_dataset(name)
    return found if isinstance(found, datasets.DatasetDict) else {"all": found}


def columns(name: str, rows: Any) -> tuple[str, str]:
    """The column of images, and that of captions."""
    import datasets

    held = rows.features
    image = next((c for c, type_ in held.items() if isinstance(type_, datasets.Image)), None)
    said = next((c for c in CAPTIONS if c in held), None)
    if image is None or said is None:
        raise ValueError(
            f"{name}: needs a column of images and one of {', '.join(CAPTIONS)}; it has "
            f"{', '.join(held)}"
        )
    return image, said


def _items(name: str, rows: Any) -> Iterator[tuple[bytes, list[str]]]:
    """Each photo's file, as it was stored, with its captions."""
    import datasets

    image, said = columns(name, rows)
    for row in rows.cast_column(image, datasets.Image(decode=False)):
        held, texts = row[image], row[said]
        picture = held["bytes"] or Path(held["path"]).read_bytes()
        several = texts if isinstance(texts, list) else [texts]
        captions = [text["raw"] if isinstance(text, dict) else text for text in several]
        yield picture, [" ".join(str(caption).split()) for caption in captions if caption]


def _ending(picture: bytes) -> str:
    """What the name of a photo's file ends with; its content decides how it is read.

    >>> _ending(bytes.fromhex("89504e47")), _ending(bytes.fromhex("ffd8ffe0"))
    ('.png', '.jpg')
    """
    return ".png" if picture.startswith(b"\x89PNG") else ".jpg"


SOURCE = Source(
    "datasets",
    where="A data set of the library 'datasets' (extra datasets), by name or as a folder that it "
    "saved: data.root is its name on the hub, or the folder. It needs a column of images and one "
    "of captions.",
    signs=("dataset_dict.json", "dataset_info.json", "data/*.parquet"),
    place=place,
    read=lambda recipe, root: read(root, recipe.root or root.name),
)
