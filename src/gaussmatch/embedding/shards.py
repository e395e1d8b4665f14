"""A shard of embeddings: one safetensors file with Gaussians and records.

mean, log_var      (n, D), (n, D or 1); no log_var for points
records            UTF-8 bytes of JSON: id, metadata and source of each item
thumbnails         the JPEGs one after the other, and
thumbnail_sizes    (n), their bytes, −1 where there is none
skipped            UTF-8 bytes of JSON: ids that could not be read
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gaussmatch.files import atomic
from gaussmatch.gaussian import Gaussian
from gaussmatch.index.manifest import Gallery
from gaussmatch.index.record import Record


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
        with atomic(path) as temporary:
            save_file(tensors, os.fspath(temporary))

    @staticmethod
    def load(path: Path) -> ShardContent:
        try:
            held = load_file(os.fspath(path))
            records = _records(held)
            skipped = json.loads(held["skipped"].numpy().tobytes())
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: this shard is missing; run 'gaussmatch embed' again, it makes only what "
                "is missing"
            ) from None
        except (SafetensorError, KeyError, ValueError) as error:
            raise ValueError(
                f"{path}: not a whole shard ({error}); delete it and run 'gaussmatch embed' again"
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
