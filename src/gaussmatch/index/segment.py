"""A segment: some items of a gallery, written once, opened by memory mapping."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.arrays import created, mapped
from gaussmatch.index.exact import Flat, Scan
from gaussmatch.index.graph import Compressed, Hnsw
from gaussmatch.index.items import Items, Record, write_items
from gaussmatch.index.layout import SEGMENTS, Gallery, Part, check_files, sync
from gaussmatch.index.settings import Settings
from gaussmatch.index.structure import Content, Structure
from gaussmatch.similarities import Similarity

STRUCTURES: dict[str, type[Structure]] = {s.kind: s for s in (Flat, Scan, Hnsw, Compressed)}


class Segment:
    """An open segment.

    Args:
        dead: (items), true where a row was deleted; ``None`` if none was.
    """

    def __init__(
        self,
        folder: Path,
        part: Part,
        gallery: Gallery,
        similarity: Callable[[], Similarity],
        settings: Settings,
    ) -> None:
        check_files(folder, part)
        self.part, self.gallery = part, gallery
        self._similarity, self.settings = similarity, settings
        self.path = folder / SEGMENTS / part.name
        self.items = Items(self.path)
        self.mean = mapped(self.path / "mean.npy", part.items)
        self.log_var = self.uncertainty = None
        if "log_var.npy" in part.files:
            self.log_var = mapped(self.path / "log_var.npy", part.items)
            self.uncertainty = mapped(self.path / "uncertainty.npy", part.items)
        self.dead: np.ndarray | None = None
        if part.deleted is not None:
            self.dead = np.zeros(part.items, dtype=bool)
            self.dead[mapped(self.path.parent / part.deleted, part.dead)] = True

    @property
    def similarity(self) -> Similarity:
        return self._similarity()

    def gaussians(self, rows: slice | np.ndarray) -> Gaussian:
        """The Gaussians of some rows, copied into memory."""
        log_var = None if self.log_var is None else torch.from_numpy(np.array(self.log_var[rows]))
        return Gaussian(torch.from_numpy(np.array(self.mean[rows])), log_var)

    @property
    def content(self) -> Content:
        return Content(
            self.path,
            self.similarity,
            self.gallery,
            self.settings,
            self.part.items,
            self.gaussians,
        )

    @cached_property
    def structure(self) -> Structure:
        """Opened when first searched."""
        try:
            return STRUCTURES[self.part.structure](self.content)
        except (EOFError, KeyError, RuntimeError) as error:
            raise ValueError(
                f"{self.path}: its {self.part.structure} structure cannot be read ({error}); "
                "restore the index or make it again"
            ) from error

    @cached_property
    def scan(self) -> Scan:
        """Every item, by the similarity itself: slow and sure."""
        return Scan(self.content)

    def rows_of(self, ids: list[str]) -> dict[str, int]:
        """id → row, of items that are not deleted."""
        found = self.items.rows_of(ids)
        if self.dead is None:
            return found
        return {id_: row for id_, row in found.items() if not self.dead[row]}

    def live_rows(self) -> np.ndarray:
        return np.arange(self.part.items) if self.dead is None else np.flatnonzero(~self.dead)

    def close(self) -> None:
        self.items.close()


def wanted_structure(similarity: Similarity, settings: Settings, items: int) -> str:
    """How a segment of so many items is to be searched."""
    if similarity.no_lift is not None:
        return Scan.kind
    return settings.kind if items >= settings.flat_below else Flat.kind


def write_segment(
    folder: Path,
    gallery: Gallery,
    similarity: Similarity,
    settings: Settings,
    gaussians: Iterable[Gaussian],
    total: int,
    records: Iterable[Record],
) -> Part:
    """Write and sync a new segment. It counts when a manifest names it.

    Args:
        gaussians: in blocks, ``total`` in all.
        records: one for each, in the same order.
    """
    name = f"{gallery}-{uuid.uuid4().hex[:12]}"
    path = folder / SEGMENTS / name
    path.mkdir(parents=True)
    try:
        written = write_items(path, records)
    except sqlite3.OperationalError as error:  # a full disk
        raise OSError(f"{path}: cannot be written ({error})") from error
    if written != total:
        raise ValueError(f"{total} Gaussians need as many ids")
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for g in gaussians:
        for what, values in _columns(g).items():
            if what not in arrays:
                arrays[what] = created(path / f"{what}.npy", (total, *values.shape[1:]))
            arrays[what][start : start + len(g)] = values
        start += len(g)
    if start != total:
        raise ValueError(f"{total} ids, but {start} Gaussians")
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]

    def read(rows: slice | np.ndarray) -> Gaussian:
        log_var = arrays.get("log_var")
        return Gaussian(
            torch.from_numpy(np.array(arrays["mean"][rows])),
            None if log_var is None else torch.from_numpy(np.array(log_var[rows])),
        )

    structure = STRUCTURES[wanted_structure(similarity, settings, total)]
    structure.build(Content(path, similarity, gallery, settings, total, read))
    files = sorted(path.iterdir())
    for file in files:
        sync(file)
    sync(path)
    return Part(name, total, structure.kind, {f.name: f.stat().st_size for f in files})


def _columns(g: Gaussian) -> dict[str, np.ndarray]:
    found = {"mean": g.mean.float().numpy()}
    if g.log_var is not None:
        found["log_var"] = g.log_var.float().numpy()
        found["uncertainty"] = g.uncertainty().float().numpy()
    return found
