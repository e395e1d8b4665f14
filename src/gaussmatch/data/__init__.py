"""Data sets, each as three splits of ``Pairs``. A new one is one file, named in ``SOURCES``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from gaussmatch.checks import known
from gaussmatch.data import (
    arrays,
    coco,
    cxc,
    datasets,
    flickr,
    folder,
    precomputed,
    scenes,
    visual_genome,
)
from gaussmatch.data.listing import Photo
from gaussmatch.data.pairs import DataSet, ImageSource, Pairs, Region, joined
from gaussmatch.data.photos import find_extracted, load_photos, photo_featuriser
from gaussmatch.data.pixels import pixel_transform
from gaussmatch.data.source import Source, data_root
from gaussmatch.encoders.base import ImageTransform
from gaussmatch.recipe import DataRecipe

__all__ = [
    "SOURCES",
    "DataSet",
    "ImageSource",
    "Pairs",
    "Region",
    "Source",
    "featuriser",
    "listed",
    "load_data",
    "recognise",
    "source",
]

SOURCES: dict[str, Source] = {
    s.name: s
    for s in (
        Source(
            "scenes",
            fields=("size", "seed"),
            load=lambda recipe: scenes.load(recipe.size, recipe.seed, recipe.features),
        ),
        cxc.SOURCE,
        flickr.FLICKR8K,
        flickr.FLICKR30K,
        coco.SOURCE,
        visual_genome.SOURCE,
        precomputed.SOURCE,
        folder.SOURCE,
        arrays.SOURCE,
        datasets.SOURCE,
    )
}
"""Every data source by name; the first whose signs are in a folder is the one it is taken for."""


def source(name: str) -> Source:
    """A data source by name.

    >>> source("cocoo")
    Traceback (most recent call last):
    ValueError: data.name 'cocoo' is not known; did you mean 'coco'?
    """
    known("data.name", name, SOURCES)
    return SOURCES[name]


def recognise(root: Path) -> Source:
    """The source of a folder, by the files in it."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    for one in SOURCES.values():
        if any(any(root.glob(pattern)) for pattern in one.signs):
            return one
    raise ValueError(
        f"{root}: holds none of the files that its format is known by; name it with --format "
        f"{'|'.join(n for n, s in SOURCES.items() if s.signs)}, and see 'gaussmatch data where'"
    )


def load_data(recipe: DataRecipe) -> DataSet:
    """The data set of a recipe."""
    one = source(recipe.name)
    _check_fields(recipe, one)
    if one is precomputed.SOURCE:
        recipe = precomputed.with_names(recipe)
        one = source(recipe.name)
    if one.load is not None:
        data = one.load(recipe)
    else:
        root = data_root(recipe)
        data = load_photos(recipe, root, one.listing(recipe, root))
    if not recipe.also:
        return data
    others = [
        load_data(replace(recipe, name=name, root=root, also={}))
        for name, root in recipe.also.items()
    ]
    return replace(data, train=joined([data.train, *(other.train for other in others)]))


def listed(recipe: DataRecipe) -> tuple[dict[str, list[Photo]], str | None]:
    """The photos of each split, and what of them training needs that is not there."""
    root = data_root(recipe)
    listing = source(recipe.name).listing(recipe, root)
    if recipe.features == "pixels" or find_extracted(recipe, root) is None:
        try:
            listing.check_files()
        except FileNotFoundError as error:
            return listing.splits, str(error)
    return listing.splits, None


def featuriser(recipe: DataRecipe) -> ImageTransform:
    """How pictures become what a model trained on this data takes, where the network that made the
    features is outside the model: (n, …) float32."""
    if (view := pixel_transform(recipe)) is not None:  # an export that does not hold its own
        return view.batch
    if recipe.name == "scenes":
        return partial(scenes.featurise, features=recipe.features)
    if recipe.name == "arrays":
        raise ValueError(
            "this model was trained on ready embeddings and its image encoder is not known: "
            "give embeddings instead of pictures, or adapt again with --image-encoder NAME"
        )
    root = data_root(recipe)
    return photo_featuriser(recipe, root, partial(source(recipe.name).listing, recipe, root))


def _check_fields(recipe: DataRecipe, one: Source) -> None:
    """Refuse a field that only other sources read: it would silently change nothing."""
    plain = DataRecipe()
    for name in sorted({field for other in SOURCES.values() for field in other.fields}):
        if name not in one.fields and getattr(recipe, name) != getattr(plain, name):
            readers = [other.name for other in SOURCES.values() if name in other.fields]
            raise ValueError(
                f"data.{name} applies to {' and '.join(readers)}, not to {one.name}; leave it out"
            )
