"""Embeddings that exist already, into an index of a model that was adapted to them.

Files are those of ``data.embeddings``. A row becomes the Gaussian that the model's heads make of
it; what else a table says of it becomes metadata, to filter and sort by.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.embeddings import Block, check_vectors, count_embeddings, read_embeddings
from gaussmatch.models.model import Model
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import Gallery
from gaussmatch.search.record import Record


def index_arrays(
    index: Index,
    file: str | os.PathLike[str],
    gallery: Gallery = "images",
    *,
    progress: bool = True,
) -> int:
    """Add the rows of a file whose ids are not in a gallery yet; gives how many. They count block
    by block, so that an interruption loses one block, and memory holds one."""
    path, model = Path(file), index.model
    if model.recipe.model.system not in ("adapter", "published"):
        raise ValueError(
            f"{path} holds embeddings, which {model.recipe.title!r} does not take: they need a "
            "model that 'gaussmatch adapt' made of such embeddings"
        )
    held = {record.id for record in index.records(gallery)}
    seen: set[str] = set()
    added = 0
    with tqdm(total=count_embeddings(path), desc=f"index {gallery}", disable=not progress) as bar:
        for block in read_embeddings(path):
            _check(path, block, seen)
            new = [i for i, id_ in enumerate(block.ids) if id_ not in held]
            if new:
                records = [Record(block.ids[i], block.meta[i]) for i in new]
                index.add(_encoded(path, model, block.vectors[new], gallery), records, gallery)
            added += len(new)
            bar.update(len(block.ids))
    index.compact(gallery)
    return added


def _check(path: Path, block: Block, seen: set[str]) -> None:
    check_vectors(path, block.vectors, block.ids)
    for id_ in block.ids:
        if id_ in seen:
            raise ValueError(f"{path}: the id {id_!r} comes twice; ids must be unique")
        seen.add(id_)


def _encoded(path: Path, model: Model, vectors: np.ndarray, gallery: Gallery) -> Gaussian:
    side = model.matcher.part("image" if gallery == "images" else "text")
    width = vectors.shape[1]
    if getattr(side, "width", width) != width:  # an exported model checks itself
        raise ValueError(
            f"{path}: embeddings of {width} dimensions; the model was adapted to {gallery} of "
            f"{side.width}"
        )
    rows = np.asarray(vectors, np.float32)
    return model.encode_images(rows) if gallery == "images" else model.encode_texts(rows)
