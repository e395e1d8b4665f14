"""What every process of a bulk embedding loads for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gaussmatch.embedding.manifest import Embedding
from gaussmatch.index.sources import Source, describe_source, find_source
from gaussmatch.index.store import RUN_FILES, _sha256
from gaussmatch.run import Model, load


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
    skip_unreadable: bool = False
    device: str = "cpu"

    def __call__(self) -> tuple[Model, Source]:
        model = load(self.run, torch.device(self.device))
        return model, find_source(model, self.source, skip_unreadable=self.skip_unreadable)

    def embedding(self, source: Source, shard: int) -> Embedding:
        return Embedding.of(run_hashes(self.run), source, describe_source(source), shard)


def run_hashes(run: Path) -> Mapping[str, str]:
    """As an index keeps them."""
    return {name: _sha256(run / name) for name in RUN_FILES}
