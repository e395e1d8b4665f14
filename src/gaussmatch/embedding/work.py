"""What every process of a bulk embedding loads for itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from gaussmatch.embedding.manifest import EmbeddingManifest
from gaussmatch.index.model_copy import hashes
from gaussmatch.index.sources import ItemSource, describe_source, find_source
from gaussmatch.model import Model
from gaussmatch.run import load


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
