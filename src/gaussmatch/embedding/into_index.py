"""Embeddings → an index."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from gaussmatch.embedding.manifest import EmbeddingManifest
from gaussmatch.embedding.shards import ShardContent
from gaussmatch.index.index import Index


def index_embeddings(
    index: Index, folder: str | os.PathLike[str], *, progress: bool = True
) -> None:
    """Add all items of a folder of embeddings that the index does not hold yet.

    Items count shard by shard, so that a killed run goes on where it was. Captions of photos that
    could not be read are left out.
    """
    folder = Path(folder)
    embedding = whole_embedding(folder)
    if index.manifest.run != embedding.run:
        raise ValueError(
            f"{folder} was embedded by another model than that of {index.place}: their Gaussians "
            "cannot be compared"
        )
    skipped: set[str] = set()
    shards = embedding.shards()
    with tqdm(total=sum(map(len, shards)), desc="index", unit="item", disable=not progress) as bar:
        for gallery in dict.fromkeys(shard.gallery for shard in shards):
            held = {record.id: record for record in index.records(gallery)}
            for shard in (s for s in shards if s.gallery == gallery):
                content = ShardContent.load(shard.path(folder))
                skipped |= set(content.skipped)
                kept = [
                    n
                    for n, r in enumerate(content.records)
                    if (r.id not in held or not same(held[r.id], r))
                    and (gallery == "images" or r.meta.get("image") not in skipped)
                ]
                if kept and content.gaussians is not None:
                    index.add(
                        content.gaussians[kept],
                        [content.records[n] for n in kept],
                        gallery,
                        replace=True,
                    )
                bar.update(len(shard))
    if embedding.source:
        index.note_source(embedding.source)
    index.compact()


def whole_embedding(folder: Path) -> EmbeddingManifest:
    """A clear error if shards are missing."""
    embedding = EmbeddingManifest.load(folder)
    lost = embedding.missing(folder)
    if lost:
        raise ValueError(
            f"{folder}: {len(lost)} of {len(embedding.shards())} shards are missing "
            f"({lost[0].path(folder).name}, …); run 'gaussmatch embed' again, it makes only those"
        )
    return embedding


def same(a: object, b: object) -> bool:
    """Whether an item is held as it is, whatever its picture looks like."""
    return replace(a, thumbnail=None) == replace(b, thumbnail=None)  # type: ignore[type-var]
