"""Bulk embedding: a source of millions of items → shards of Gaussians, by many processes.

``embed`` writes DIR/embedding.json, which says what is embedded by which model, and one file per
shard, atomically. Which items a shard holds depends only on the source and the shard size, so any
number of processes, in any order, interrupted and started again, write the same files.
``index_embeddings`` then fills an index from them, equal to one that encoded the items itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.files import (
    claim_folder,
    load_tensors,
    read_json,
    remember_folder,
    remembered_folder,
    save_tensors,
    write_json,
)
from gaussmatch.models.model import Model
from gaussmatch.models.run import load
from gaussmatch.search.backend import batched
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import GALLERIES, Gallery, Record, hashes
from gaussmatch.search.sources import ItemSource, describe_source, find_source


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
    """What is in a shard, one safetensors file; ``gaussians`` is ``None`` where nothing could be
    read.

    mean, log_var      (n, D), (n, D or 1); no log_var for points
    records            UTF-8 bytes of JSON: id, metadata and source of each item
    thumbnails         the JPEGs one after the other, and
    thumbnail_sizes    (n), their bytes, −1 if there is none
    skipped            UTF-8 bytes of JSON: ids that could not be read
    """

    gaussians: Gaussian | None
    records: Sequence[Record]
    skipped: Sequence[str] = ()

    def save(self, path: Path) -> None:
        g, small = self.gaussians, [record.thumbnail for record in self.records]
        rows = [
            {"id": r.id, "meta": json.loads(r.meta_json()), "source": r.source}
            for r in self.records
        ]
        tensors = {
            "records": _bytes(json.dumps(rows, ensure_ascii=False).encode()),
            "thumbnails": _bytes(b"".join(jpeg or b"" for jpeg in small)),
            "thumbnail_sizes": torch.tensor([-1 if jpeg is None else len(jpeg) for jpeg in small]),
            "skipped": _bytes(json.dumps(list(self.skipped)).encode()),
        }
        if g is not None:
            tensors["mean"] = g.mean.contiguous()
        if g is not None and g.log_var is not None:
            tensors["log_var"] = g.log_var.contiguous()
        save_tensors(path, tensors)

    @staticmethod
    def load(path: Path) -> ShardContent:
        again = "run 'gaussmatch embed' again"
        try:
            held = load_tensors(path)
            rows, skipped = (json.loads(held[name].numpy().tobytes()) for name in _JSON)
            jpegs, sizes = held["thumbnails"].numpy().tobytes(), held["thumbnail_sizes"].tolist()
            ends = accumulate(max(size, 0) for size in sizes)
            small = [
                None if n < 0 else jpegs[end - n : end] for n, end in zip(sizes, ends, strict=True)
            ]
            both = zip(rows, small, strict=True)
            records = [Record(r["id"], r["meta"], jpeg, r["source"]) for r, jpeg in both]
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path}: this shard is missing; {again}, it makes only what is missing"
            ) from None
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path}: not a complete shard ({error}); delete it and {again}"
            ) from error
        mean = held.get("mean")
        if (0 if mean is None else len(mean)) != len(records):
            raise ValueError(f"{path}: the numbers of Gaussians and records differ; delete it")
        g = None if mean is None else Gaussian(mean, held.get("log_var"))
        return ShardContent(g, records, skipped)


_JSON = ("records", "skipped")


def _bytes(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


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
    share = embedding.shards()[part.k :: part.of] if part else embedding.shards()
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
    for ids in batched(source.ids(shard.gallery)[shard.start : shard.stop], size):
        found = source.encode(model, shard.gallery, ids)
        if found is not None:
            gaussians.append(found[0])
            records += found[1]
        if bar is not None:
            bar.update(len(ids))
    skipped = list(source.skipped)[before:]
    return ShardContent(Gaussian.cat(gaussians) if gaussians else None, records, skipped)


@dataclass(frozen=True)
class Work:
    """Small enough to be sent to any process; called there, it gives model and source. The source
    is a split of the run's own data, or a folder of photos."""

    run: Path
    source: str
    strict: bool = False
    device: str = "cpu"

    def __call__(self) -> tuple[Model, ItemSource]:
        model = load(self.run, torch.device(self.device))
        return model, find_source(model, self.source, strict=self.strict)

    def embedding(self, source: ItemSource, shard: int) -> EmbeddingManifest:
        if shard < 1 or shard % BATCH:
            raise ValueError(f"a shard must be a multiple of {BATCH} items, got {shard}")
        galleries: dict[str, dict[str, Any]] = {}
        for gallery in GALLERIES:
            ids = source.ids(gallery)
            words = "\n".join([*ids, *source.content(gallery)])
            digest = hashlib.sha256(words.encode("utf-8", "surrogatepass"))
            galleries[gallery] = {"items": len(ids), "ids": digest.hexdigest()}
        return EmbeddingManifest(hashes(self.run), describe_source(source), shard, galleries)


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
                    if held.get(r.id) != replace(r, thumbnail=None)
                    and (gallery == "images" or r.meta.get("image") not in skipped)
                ]
                if kept and content.gaussians is not None:
                    records = [content.records[n] for n in kept]
                    index.add(content.gaussians[kept], records, gallery, replace=True)
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


Worker = Callable[[], tuple[Model, ItemSource]]
"""Loads model and source where it is called."""
REACH = 10.0
"""Seconds in which the Ray cluster must accept a connection."""
BLOCKS = 64
"""Parts into which the work of an actor is cut at most: the fewer, the less evenly it is spread."""


def embed_with_ray(
    worker: Worker, embedding: EmbeddingManifest, out: Path, workers: int = 1
) -> bool:
    """Make all shards that are not there yet; whether now all are.

    Joins the cluster that RAY_ADDRESS names, or starts Ray on this machine and stops it again. If
    the cluster asks for a token, so do RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here.

    Args:
        workers: actors, each with a model of its own.
    """
    ray = _ray()
    embedding.claim(out)
    todo = {n for n, shard in enumerate(embedding.shards()) if not shard.path(out).is_file()}
    if not todo:
        return True
    ours, address = not ray.is_initialized(), os.environ.get("RAY_ADDRESS")
    if ours:
        check_reachable(address or "local")
        ray.init(
            address=address,
            num_cpus=None if address else workers + 1,
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
        with tqdm(total=sum(len(shards[n]) for n in todo), desc="embed", unit="item") as bar:
            for batch in made.iter_batches(batch_size=1):
                bar.update(sum(len(shards[n]) for n in batch["shard"].tolist()))
    finally:
        if ours:
            ray.shutdown()
    return not embedding.missing(out)


def check_reachable(address: str) -> None:
    """A clear error at once: Ray itself would wait for a cluster that is not there."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.port is None:  # auto, local
        return
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=REACH).close()
    except OSError as error:
        raise ConnectionError(
            f"RAY_ADDRESS={address}: nothing answers there ({error}); correct it, or unset it to "
            "run on this machine"
        ) from error


class Actor:
    """Makes the shards that it is handed."""

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
