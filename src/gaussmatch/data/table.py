"""Every data source by name."""

from __future__ import annotations

from pathlib import Path

from gaussmatch.checks import known
from gaussmatch.data import coco, datasets, embeddings, flickr, folder, scenes, stored
from gaussmatch.data.recipe import Source

SOURCES: dict[str, Source] = {
    s.name: s
    for s in (
        Source(
            "scenes",
            fields=("size", "seed"),
            load=lambda recipe: scenes.load(recipe.size, recipe.seed, recipe.features),
        ),
        coco.CXC,
        flickr.FLICKR8K,
        flickr.FLICKR30K,
        coco.SOURCE,
        coco.VISUAL_GENOME,
        stored.PRECOMPUTED,
        folder.SOURCE,
        embeddings.SOURCE,
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


def recognize(root: Path) -> Source:
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
