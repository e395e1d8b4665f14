"""The data set of a recipe: pixels of photos, or features wherever they come from; how new pictures
become the same; and texts as the rows that an encoder takes: tokens, or cached embeddings."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from gaussmatch.data import SOURCES, Source, scenes, source, stored
from gaussmatch.data.listing import Listing, Photo, assemble
from gaussmatch.data.pairs import DataSet, ImageSource, Pairs, joined
from gaussmatch.data.pictures import open_picture
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.data.stored import CachedCrops, features_by_name, read_lines
from gaussmatch.device import default_device
from gaussmatch.files import atomic, cache_root, damage, made_once, sha256, write_rows
from gaussmatch.models.encoders.adapter import FrozenTexts
from gaussmatch.models.encoders.base import ImageTransform, TextEncoder
from gaussmatch.models.encoders.pretrained import ImageTower, Spec, TextTower, image_tower
from gaussmatch.models.features.photos import (
    CROPS,
    UNREADABLE,
    ExtractionPlan,
    Layout,
    PhotoPixels,
    describe,
    extract,
    featurizer_of,
    featurizer_with,
    pixel_transform,
)


def load_data(recipe: DataRecipe) -> DataSet:
    """The data set of a recipe."""
    one = source(recipe.name)
    _check_fields(recipe, one)
    if one is stored.PRECOMPUTED:
        recipe = stored.with_names(recipe)
        one = source(recipe.name)
    if one.load is not None:
        data = one.load(recipe)
    else:
        root = one.root(recipe)
        images = photo_images(recipe, root, one.listing(recipe, root))
        data = assemble(*images, recipe.dev_images)
    if not recipe.also:
        return data
    others = [
        load_data(replace(recipe, name=name, root=root, also={}))
        for name, root in recipe.also.items()
    ]
    return replace(data, train=joined([data.train, *(other.train for other in others)]))


def listed(recipe: DataRecipe) -> tuple[dict[str, list[Photo]], str | None]:
    """The photos of each split, and what of them training needs that is not there."""
    root = source(recipe.name).root(recipe)
    listing = source(recipe.name).listing(recipe, root)
    if recipe.features == "pixels" or find_extracted(recipe, root) is None:
        try:
            listing.check_files()
        except FileNotFoundError as error:
            return listing.splits, str(error)
    return listing.splits, None


def featurizer(recipe: DataRecipe) -> ImageTransform:
    """How pictures become what a model trained on this data takes, where the network that made the
    features is outside the model: (n, …) float32.

    A folder of features says how it was made. A single file does not: there ``data.backbone``,
    ``data.weights`` and ``data.view`` must, and a photo of the data is made again to check it.
    """
    if (view := pixel_transform(recipe)) is not None:  # an export that does not hold its own
        return view.batch
    if recipe.name == "scenes":
        return partial(scenes.featurize, features=recipe.features)
    if recipe.name == "arrays":
        raise ValueError(
            "this model was trained on ready embeddings and its image encoder is not known: "
            "give embeddings instead of pictures, or adapt again with --image-encoder NAME"
        )
    one = source(recipe.name)
    root = one.root(recipe)
    given = root if recipe.name == "precomputed" else find_extracted(recipe, root)
    if given is not None and (given.is_dir() or recipe.weights is None):
        return featurizer_of(given)
    featurize = featurizer_with(_tower(recipe), layout_of(recipe))
    if given is not None:
        _check_origin(recipe, given, one.listing(recipe, root).photos, featurize)
    return featurize


def _check_fields(recipe: DataRecipe, one: Source) -> None:
    """Refuse a field that only other sources read: it would silently change nothing."""
    plain = DataRecipe()
    for name in sorted({field for other in SOURCES.values() for field in other.fields}):
        if name not in one.fields and getattr(recipe, name) != getattr(plain, name):
            readers = [other.name for other in SOURCES.values() if name in other.fields]
            raise ValueError(
                f"data.{name} applies to {' and '.join(readers)}, not to {one.name}; leave it out"
            )


def photo_images(
    recipe: DataRecipe, root: Path, listing: Listing, *, skip_unreadable: bool = False
) -> tuple[Listing, Callable[[str, Sequence[Photo]], ImageSource]]:
    """The readable photos, and what gives the images of a split: pixels, the features given, or
    features that are extracted once into the cache."""
    view = pixel_transform(recipe)
    if view is not None:
        listing.check_files()
        return listing, lambda split, photos: PhotoPixels([p.path for p in photos], view)
    given = find_extracted(recipe, root)
    if given is None:
        given = _extracted_once(recipe, listing, skip_unreadable)
    if (given / UNREADABLE).is_file():  # left out by extract --skip-unreadable
        lost = set(read_lines(given / UNREADABLE))
        kept = {s: [p for p in some if p.id not in lost] for s, some in listing.splits.items()}
        listing = replace(listing, splits=kept)

    def images(split: str, photos: Sequence[Photo]) -> ImageSource:
        array = given if given.suffix in (".npy", ".npz") else given / f"{split}_ims.npy"
        if given.is_dir() and not (given / f"{split}_ims_files.txt").is_file():
            source = stored.of_photos(given, split, photos)  # published: rows without names
        else:
            source = features_by_name(array, photos)
        shape = source[0].shape
        if layout_of(recipe) != (held := "pooled" if len(shape) == 1 else "regions"):
            raise ValueError(
                f"data.features is {recipe.features}, but {array} holds {shape} for each image; "
                f"set data.features to {held}"
            )
        if not recipe.crops or split != "train":
            return source
        path = given / f"{CROPS}_ims.npy"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: data.crops is {recipe.crops}, but {given} holds no crops; extract with "
                f"--crops {recipe.crops}, or set data.crops to 0"
            )
        return CachedCrops(source, features_by_name(path, photos, (3, 4)))

    return listing, images


SAME = 0.99
"""Cosine of a photo's features with those in a file, above which one network made both."""


def _check_origin(
    recipe: DataRecipe, given: Path, photos: Sequence[Photo], featurize: ImageTransform
) -> None:
    """Make the features of a photo again: the network and the view must be those of the file."""
    photo = next((photo for photo in photos if photo.path.is_file()), None)
    if photo is None:
        warnings.warn(
            f"{given}: no photo found to check that {recipe.backbone} made it", stacklevel=3
        )
        return
    held = features_by_name(given, [photo])[0].ravel()
    made = featurize([open_picture(photo.path)])[0].ravel()
    same = held.shape == made.shape
    cosine = float(held @ made / np.linalg.norm(held) / np.linalg.norm(made)) if same else 0.0
    if cosine < SAME:
        raise ValueError(
            f"{given}: {recipe.backbone} with data.weights and data.view {recipe.view} makes other "
            f"features of {photo.path.name} (cosine {cosine:.2f}); name the network and the view "
            "that the file was made with"
        )


def _tower(recipe: DataRecipe) -> ImageTower:
    """The image encoder outside the model that makes its features."""
    whole = recipe.view == "whole"
    return image_tower(recipe.backbone, recipe.weights, whole).to(default_device())


def find_extracted(recipe: DataRecipe, root: Path) -> Path | None:
    """The folder or file of features that a recipe names: as given, or inside root."""
    if recipe.extracted is None:
        return None
    for path in (Path(recipe.extracted).expanduser(), root / recipe.extracted):
        if path.exists():
            return path
    raise FileNotFoundError(
        f"{recipe.extracted}: no such features, neither here nor in {root} (data.extracted); "
        f"make them with 'gaussmatch extract {root} --out {recipe.extracted}'"
    )


def layout_of(recipe: DataRecipe) -> Layout:
    if recipe.features == "pixels":
        raise ValueError(
            f"data.features is pixels, but {recipe.name} has none; choose pooled or regions"
        )
    return recipe.features


def _extracted_once(recipe: DataRecipe, listing: Listing, skip_unreadable: bool) -> Path:
    """The features of a listing in the cache, known by what weights and photos hold."""
    net = _tower(recipe)
    place = recipe.weights or Spec.of(recipe.backbone).place
    manifest = describe(net, place, layout_of(recipe), recipe.crops)
    if not skip_unreadable:
        listing.check_files()
    photos = [(split, p) for split, some in listing.splits.items() for p in some]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(lambda p: sha256(p[1].path) if p[1].path.is_file() else "", photos)
        known = [(split, p.id, digest) for (split, p), digest in zip(photos, digests, strict=True)]
    made = [manifest.sha256, manifest.layout, manifest.view, manifest.crops, skip_unreadable, known]
    key = hashlib.sha256(json.dumps(made).encode()).hexdigest()[:24]
    name = re.sub(r"[^\w.-]+", "-", f"{listing.name}-{net.name}-{key}")
    plan = ExtractionPlan(skip_unreadable=skip_unreadable)
    return made_once(
        cache_root() / "extracted" / name,
        lambda out: extract(listing, out, net, manifest, plan=plan),
    )


VECTORS, KEYS = "vectors.npy", "keys.npy"
SHARD = 4096
"""Texts that are embedded and kept at a time: what an interruption can lose."""


def prepared_texts(pairs: Pairs, encoder: TextEncoder) -> Sequence[Any] | np.ndarray:
    """A row for each caption of a split: its tokens, or its embedding by a frozen encoder, computed
    once and cached."""
    return prepared(pairs.captions, encoder) if pairs.texts is None else pairs.texts


def prepared(texts: Sequence[str], encoder: TextEncoder) -> Sequence[Any] | np.ndarray:
    """A row for each text, see ``prepared_texts``."""
    if not isinstance(encoder, FrozenTexts):
        return encoder.prepare(texts)
    distinct = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    embeddings = embedded_once(encoder.tower, list(distinct))
    return embeddings if len(distinct) == len(texts) else embeddings[[distinct[t] for t in texts]]


def embedded_once(tower: TextTower, texts: Sequence[str], progress: bool = True) -> np.ndarray:
    """The embeddings (n, width) of texts, from the cache or made into it, memory-mapped.

    A list of texts is one folder; texts that another list of the same encoder holds are copied from
    there, so that data sets, splits and queries share what was embedded before."""
    encoder = hashlib.sha256(f"{tower.name} {tower.sha256()}".encode()).hexdigest()[:16]
    keys = np.array([_key(text) for text in texts], np.uint64)
    name = hashlib.sha256(keys.tobytes()).hexdigest()[:24]
    folder = cache_root() / "texts" / encoder / name
    made_once(folder, lambda work: _embed(tower, texts, keys, work, progress))
    return np.load(folder / VECTORS, mmap_mode="r")


def _embed(
    tower: TextTower, texts: Sequence[str], keys: np.ndarray, work: Path, progress: bool
) -> None:
    """Fill a folder, shard by shard; those of an interrupted process are there already."""
    shards = {at: work / "shards" / f"{at:09}.npy" for at in range(0, len(texts), SHARD)}
    earlier = [_Embedded(f) for f in sorted(work.parent.glob("[!.]*")) if damage(f) is None]
    with tqdm(total=len(texts), desc=tower.name, unit="text", disable=not progress) as bar:
        for start, path in shards.items():
            chunk = slice(start, start + SHARD)
            if not path.is_file():
                rows = np.full((len(texts[chunk]), tower.width), np.nan, np.float32)
                for some in earlier:
                    some.fill(keys[chunk], rows)
                new = np.isnan(rows[:, 0]).nonzero()[0]
                if len(new):
                    rows[new] = tower.encode([texts[start + int(k)] for k in new]).numpy()
                with atomic(path) as temporary, open(temporary, "wb") as file:
                    np.save(file, rows)
            bar.update(len(texts[chunk]))
    np.save(work / KEYS, keys)
    blocks = map(np.load, shards.values())
    write_rows(work / VECTORS, (len(texts), tower.width), blocks, np.float32)
    shutil.rmtree(work / "shards", ignore_errors=True)  # there are none of no texts


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Embedded:
    """A finished list of embeddings, looked up by text."""

    def __init__(self, folder: Path) -> None:
        self._vectors = np.load(folder / VECTORS, mmap_mode="r")
        keys = np.load(folder / KEYS)
        self._order = keys.argsort(kind="stable")
        self._keys = keys[self._order]

    def fill(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Write the embeddings of the texts that are here into their ``rows``."""
        if not len(self._keys):
            return
        near = self._keys.searchsorted(keys).clip(max=len(self._keys) - 1)
        found = (self._keys[near] == keys).nonzero()[0]
        rows[found] = self._vectors[self._order[near[found]]]
