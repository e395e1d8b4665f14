"""One process's part of a bulk embedding."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from gaussmatch.embedding.manifest import BATCH, EmbeddingManifest
from gaussmatch.embedding.shards import Shard, ShardContent
from gaussmatch.gaussian import Gaussian
from gaussmatch.index.record import Record
from gaussmatch.index.sources import ItemSource
from gaussmatch.model import Model


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
    """Make the shards of a part that are not there yet; whether now all parts are done."""
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
