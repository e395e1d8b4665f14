"""What a folder of embeddings holds, and which shards make it up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gaussmatch.embedding.shards import Shard
from gaussmatch.files import read_json, write_json
from gaussmatch.index.manifest import GALLERIES
from gaussmatch.index.sources import ItemSource

FILE = "embedding.json"
FORMAT = 1
BATCH = 256
"""A shard is a multiple of this, so that items meet the model in the batches that indexing in one
process has, and come out with the same bits."""


@dataclass(frozen=True)
class EmbeddingManifest:
    """A folder of shards.

    Args:
        run: file → sha256 of the model.
        source: for people and for ``index``: where the items came from.
        shard: items in each shard, but the last of a gallery.
        galleries: gallery → how many items it has, and a hash of their ids in order.
    """

    run: Mapping[str, str]
    source: Mapping[str, Any]
    shard: int
    galleries: Mapping[str, Mapping[str, Any]]

    @staticmethod
    def of(
        run: Mapping[str, str], source: ItemSource, about: Mapping[str, Any], shard: int
    ) -> EmbeddingManifest:
        if shard < 1 or shard % BATCH:
            raise ValueError(f"a shard must be a multiple of {BATCH} items, got {shard}")
        galleries: dict[str, dict[str, Any]] = {}
        for gallery in GALLERIES:
            ids = source.ids(gallery)
            digest = hashlib.sha256("\n".join(ids).encode("utf-8", "surrogatepass"))
            galleries[gallery] = {"items": len(ids), "ids": digest.hexdigest()}
        return EmbeddingManifest(run, dict(about), shard, galleries)

    def shards(self) -> list[Shard]:
        """All shards, images first."""
        return [
            Shard(gallery, number, start, min(start + self.shard, self.galleries[gallery]["items"]))
            for gallery in GALLERIES
            for number, start in enumerate(range(0, self.galleries[gallery]["items"], self.shard))
        ]

    def missing(self, folder: Path) -> list[Shard]:
        return [shard for shard in self.shards() if not shard.path(folder).is_file()]

    def claim(self, folder: Path) -> None:
        """Make the folder ours; one that holds something else is refused."""
        strange = [p for p in folder.iterdir() if p.name[:1] != "."] if folder.is_dir() else []
        if not (folder / FILE).is_file():
            if strange and not (folder / FILE).is_file():  # nor made by another process just now
                raise FileExistsError(
                    f"{folder} is not empty and holds no {FILE}; choose another --out"
                )
            write_json(folder / FILE, {"format": FORMAT, **asdict(self)})
        known = EmbeddingManifest.load(folder)
        for what, ours, theirs in (
            ("another model", self.run, known.run),
            ("items that are others now", self.galleries, known.galleries),
            (f"shards of {known.shard} items", self.shard, known.shard),
        ):
            if ours != theirs:
                raise ValueError(f"{folder} holds {what}; choose another folder with --out")

    @staticmethod
    def load(folder: Path) -> EmbeddingManifest:
        content = read_json(folder / FILE)
        found = content.pop("format", None) if isinstance(content, dict) else None
        if found != FORMAT:
            raise ValueError(f"{folder / FILE}: format {found!r}, but this version reads {FORMAT}")
        try:
            return EmbeddingManifest(**content)
        except TypeError as error:
            raise ValueError(f"{folder / FILE}: not a list of embeddings ({error})") from error


def is_embedding(folder: Path) -> bool:
    return (folder / FILE).is_file()
