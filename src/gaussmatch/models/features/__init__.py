"""Photos become features in one place: transforms, extraction, its cache, and data sets of both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gaussmatch.data import SOURCES, Source, precomputed, scenes, source
from gaussmatch.data.listing import Photo
from gaussmatch.data.pairs import DataSet, joined
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.models.encoders.base import ImageTransform
from gaussmatch.models.features.photos import find_extracted, load_photos, photo_featuriser
from gaussmatch.models.features.pixels import pixel_transform

__all__ = ["featuriser", "listed", "load_data"]


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
        root = one.root(recipe)
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
    root = source(recipe.name).root(recipe)
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
    root = source(recipe.name).root(recipe)
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
