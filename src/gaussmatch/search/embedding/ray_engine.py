"""Bulk embedding by Ray Data: a pool of actors on any number of machines, one shard at a time.

All machines must see the run, the source and the output folder under the same paths.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gaussmatch.checks import extra
from gaussmatch.models.model import Model
from gaussmatch.search.embedding.embed import encode
from gaussmatch.search.embedding.shards import EmbeddingManifest
from gaussmatch.search.sources import ItemSource

Worker = Callable[[], tuple[Model, ItemSource]]
"""Loads model and source where it is called."""
BLOCKS = 64
"""Parts into which the work of an actor is cut at most: the fewer, the less evenly it is spread."""


def embed_with_ray(
    worker: Worker, embedding: EmbeddingManifest, out: Path, workers: int = 1
) -> bool:
    """Make all shards that are not there yet; whether now all are.

    Joins the cluster that RAY_ADDRESS names, or starts Ray on this machine and stops it again.

    Args:
        workers: actors, each with a model of its own.
    """
    ray = _ray()
    embedding.claim(out)
    todo = {n for n, shard in enumerate(embedding.shards()) if not shard.path(out).is_file()}
    if not todo:
        return True
    ours = not ray.is_initialized()
    if ours:
        ray.init(
            address=os.environ.get("RAY_ADDRESS"),
            num_cpus=None if os.environ.get("RAY_ADDRESS") else workers + 1,
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
    try:
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # we have a bar of our own
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"shard": n} for n in sorted(todo)]
        made = ray.data.from_items(
            rows, override_num_blocks=min(len(rows), BLOCKS * workers)
        ).map_batches(
            Actor,
            fn_constructor_args=(worker, embedding, out.resolve()),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(todo))),
            num_cpus=1,
        )
        shards = embedding.shards()
        total = sum(len(shards[n]) for n in todo)
        with tqdm(total=total, desc="embed", unit="item") as bar:
            for batch in made.iter_batches(batch_size=1):
                bar.update(sum(len(shards[n]) for n in batch["shard"].tolist()))
    finally:
        if ours:
            ray.shutdown()
    return not embedding.missing(out)


class Actor:
    """Holds model and source, and makes the shards that it is handed."""

    def __init__(self, worker: Worker, embedding: EmbeddingManifest, out: Path) -> None:
        self.model, self.source = worker()
        self.shards, self.out = embedding.shards(), out

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for number in batch["shard"].tolist():
            shard = self.shards[number]
            encode(self.model, self.source, shard).save(shard.path(self.out))
        return batch


def _ray() -> Any:
    with extra("ray", "--engine ray"):
        import ray
        import ray.data
    return ray
