"""A folder of embeddings: a manifest, and shards of Gaussians with records. A shard is one
safetensors file:

mean, log_var      (n, D), (n, D or 1); no log_var for points
records            UTF-8 bytes of JSON: id, metadata and source of each item
thumbnails         the JPEGs one after the other, and
thumbnail_sizes    (n), their bytes, −1 where there is none
skipped            UTF-8 bytes of JSON: ids that could not be read
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.files import (
    claim_folder,
    load_tensors,
    read_json,
    remember_folder,
    save_tensors,
    write_json,
)
from gaussmatch.search.manifest import GALLERIES, Gallery
from gaussmatch.search.record import Record
from gaussmatch.search.sources import ItemSource


@dataclass(frozen=True)
class Shard:
    """Items start … stop − 1 of a gallery."""

    gallery: Gallery
    number: int
    start: int
    stop: int

    def path(self, folder: Path) -> Path:
        return folder / f"{self.gallery}-{self.number:06}.safetensors"

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class ShardContent:
    """What is in a shard; ``gaussians`` is ``None`` where nothing could be read."""

    gaussians: Gaussian | None
    records: Sequence[Record]
    skipped: Sequence[str] = ()

    def save(self, path: Path) -> None:
        g = self.gaussians
        tensors = {} if g is None else {"mean": g.mean.contiguous()}
        if g is not None and g.log_var is not None:
            tensors["log_var"] = g.log_var.contiguous()
        small = [record.thumbnail for record in self.records]
        rows = [
            {"id": r.id, "meta": json.loads(r.meta_json()), "source": r.source}
            for r in self.records
        ]
        tensors |= {
            "records": _bytes(json.dumps(rows, ensure_ascii=False).encode()),
            "thumbnails": _bytes(b"".join(jpeg or b"" for jpeg in small)),
            "thumbnail_sizes": torch.tensor([-1 if jpeg is None else len(jpeg) for jpeg in small]),
            "skipped": _bytes(json.dumps(list(self.skipped)).encode()),
        }
        save_tensors(path, tensors)

    @staticmethod
    def load(path: Path) -> ShardContent:
        try:
            held = load_tensors(path)
            records = _records(held)
            skipped = json.loads(held["skipped"].numpy().tobytes())
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: this shard is missing; run 'gaussmatch embed' again, it makes only what "
                "is missing"
            ) from None
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path}: not a complete shard ({error}); delete it and run 'gaussmatch embed' "
                "again"
            ) from error
        mean = held.get("mean")
        g = None if mean is None else Gaussian(mean, held.get("log_var"))
        if (0 if g is None else len(g)) != len(records):
            raise ValueError(f"{path}: as many Gaussians as records are needed; delete it")
        return ShardContent(g, records, skipped)


def _records(held: dict[str, Tensor]) -> list[Record]:
    rows: list[dict[str, Any]] = json.loads(held["records"].numpy().tobytes())
    jpegs, sizes = held["thumbnails"].numpy().tobytes(), held["thumbnail_sizes"].tolist()
    ends = accumulate(max(size, 0) for size in sizes)
    return [
        Record(r["id"], r["meta"], None if size < 0 else jpegs[end - size : end], r["source"])
        for r, size, end in zip(rows, sizes, ends, strict=True)
    ]


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else _EMPTY


_EMPTY = torch.empty(0, dtype=torch.uint8)


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
        galleries: gallery → how many items it has, and a hash of their ids and content in order.
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
            words = "\n".join([*ids, *source.content(gallery)])
            digest = hashlib.sha256(words.encode("utf-8", "surrogatepass"))
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
        claim_folder(folder, FILE)
        if not (folder / FILE).is_file():
            write_json(folder / FILE, {"format": FORMAT, **asdict(self)})
        if "folder" in self.source:
            remember_folder(os.fspath(folder), self.source["folder"])
        known = EmbeddingManifest.load(folder)
        for what, ours, theirs in (
            ("another model", self.run, known.run),
            ("items that have changed", self.galleries, known.galleries),
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
            found = EmbeddingManifest(**content)
            items = [found.galleries[gallery]["items"] for gallery in GALLERIES]
            if min(*items, found.shard - 1) < 0 or not isinstance(found.source, dict):
                raise ValueError("a negative number, or no source")
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{folder / FILE}: not a list of embeddings ({error})") from error
        return found


def is_embedding(folder: Path) -> bool:
    return (folder / FILE).is_file()
