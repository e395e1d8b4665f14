"""Bulk embedding: what each process loads, its share of the shards, and an index made of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch
from tqdm import tqdm

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.files import remembered_folder
from gaussmatch.models.model import Model
from gaussmatch.models.run import load
from gaussmatch.search.embedding.shards import BATCH, EmbeddingManifest, Shard, ShardContent
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import hashes
from gaussmatch.search.record import Record
from gaussmatch.search.sources import ItemSource, describe_source, find_source


@dataclass(frozen=True)
class Share:
    """Which shards a process does: the k-th, the (k + of)-th, … of all.

    The shares do not depend on what is finished already, so processes that start at different
    moments never do a shard twice.
    """

    k: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.k < self.of:
            raise ValueError(f"part {self.k} of {self.of}: must be 0 to {self.of - 1}")

    @staticmethod
    def of_torchrun(environment: Mapping[str, str] = os.environ) -> Share:
        """The part of this rank; the whole where there is only one process.

        >>> Share.of_torchrun({"RANK": "1", "WORLD_SIZE": "4"})
        Share(k=1, of=4)
        """
        return Share(int(environment.get("RANK", 0)), int(environment.get("WORLD_SIZE", 1)))

    def select(self, shards: Sequence[Shard]) -> list[Shard]:
        return list(shards[self.k :: self.of])


def embed(
    model: Model,
    source: ItemSource,
    embedding: EmbeddingManifest,
    out: Path,
    part: Share | None = None,
    *,
    progress: bool = True,
) -> bool:
    """Make the missing shards of a part; returns whether all parts are now done."""
    embedding.claim(out)
    share = (part or Share()).select(embedding.shards())
    with tqdm(total=sum(map(len, share)), desc="embed", unit="item", disable=not progress) as bar:
        for shard in share:
            if shard.path(out).is_file():
                bar.update(len(shard))
            else:
                encode(model, source, shard, bar).save(shard.path(out))
    return not embedding.missing(out)


def encode(
    model: Model, source: ItemSource, shard: Shard, bar: tqdm[NoReturn] | None = None
) -> ShardContent:
    """The items of one shard."""
    size = source.batch if shard.gallery == "images" else BATCH
    before = len(source.skipped)
    gaussians: list[Gaussian] = []
    records: list[Record] = []
    for start in range(shard.start, shard.stop, size):
        numbers = range(start, min(start + size, shard.stop))
        found = source.encode(model, shard.gallery, numbers)
        if found is not None:
            gaussians.append(found[0])
            records += found[1]
        if bar is not None:
            bar.update(len(numbers))
    skipped = list(source.skipped)[before:]
    return ShardContent(Gaussian.cat(gaussians) if gaussians else None, records, skipped)


@dataclass(frozen=True)
class Work:
    """Small enough to be sent to any process; ``load`` there gives model and source.

    Args:
        run: a run folder.
        source: a split of the run's own data, or a folder of photos.
        device: cpu, cuda, …
    """

    run: Path
    source: str
    strict: bool = False
    device: str = "cpu"

    def __call__(self) -> tuple[Model, ItemSource]:
        model = load(self.run, torch.device(self.device))
        return model, find_source(model, self.source, strict=self.strict)

    def embedding(self, source: ItemSource, shard: int) -> EmbeddingManifest:
        return EmbeddingManifest.of(hashes(self.run), source, describe_source(source), shard)


def index_embeddings(
    index: Index, folder: str | os.PathLike[str], *, progress: bool = True
) -> None:
    """Add all items of a folder of embeddings that the index does not hold yet.

    Items are added shard by shard, so that a killed run continues where it stopped. Captions of
    unreadable photos are left out.
    """
    folder = Path(folder)
    embedding = whole_embedding(folder)
    if index.manifest.run != embedding.run:
        raise ValueError(
            f"{folder} was embedded by another model than that of {index.place}: their Gaussians "
            "cannot be compared"
        )
    if embedding.source:  # first, so that it survives an interruption
        own = remembered_folder(os.fspath(folder))
        index.note_source(embedding.source, here=own == embedding.source.get("folder", ""))
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
