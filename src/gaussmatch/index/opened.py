"""An index on disk, open for reading."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.items import Record
from gaussmatch.index.layout import CALIBRATION, GALLERIES, RUN, Gallery, Manifest, Part, known
from gaussmatch.index.model_copy import check_unchanged
from gaussmatch.index.segment import Segment
from gaussmatch.index.settings import Settings
from gaussmatch.model import Model
from gaussmatch.run import load
from gaussmatch.similarities import Similarity
from gaussmatch.similarities import similarity as similarity_called
from gaussmatch.trust import Calibration


class Opened:
    """What an index holds. Any number of processes may read it while one writes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._segments: Mapping[Gallery, list[Segment]] = {}
        self._see(Manifest.load(self.path))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """An index on disk, memory-mapped: nothing is loaded until it is asked for."""
        return cls(path)

    def close(self) -> None:
        """Nothing to leave here; an index elsewhere has a connection."""

    @property
    def place(self) -> str:
        """Where it is, as a user would type it."""
        return str(self.path)

    @property
    def run_folder(self) -> Path | None:
        """The files of its model; ``None`` for an index of bare Gaussians."""
        return self.path / RUN if self.manifest.run else None

    def reload(self) -> bool:
        """See what other processes have written since; whether there was anything."""
        manifest = Manifest.load(self.path)
        if manifest == self.manifest:
            return False
        self._see(manifest)
        self.__dict__.pop("calibration", None)
        return True

    @cached_property
    def model(self) -> Model:
        """The model that the index was made with."""
        if not self.manifest.run:
            raise ValueError(f"{self.path} holds bare Gaussians: it has no model to encode with")
        check_unchanged(self.path / RUN, self.manifest.run)
        return load(self.path / RUN)

    @cached_property
    def similarity(self) -> Similarity:
        if self.manifest.run:
            return self.model.matcher.similarity
        return similarity_called(self.manifest.similarity)

    @property
    def settings(self) -> Settings:
        return Settings(**self.manifest.settings)

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.load(self.path / CALIBRATION)

    # ---- look ----

    def size(self, gallery: Gallery = "images") -> int:
        """Items in a gallery."""
        return sum(part.live for part in self.manifest.galleries[known(gallery)])

    def __len__(self) -> int:
        return sum(self.size(gallery) for gallery in GALLERIES)

    def __contains__(self, id: str) -> bool:
        return any(self._find(id, gallery) for gallery in GALLERIES)

    def records(self, gallery: Gallery = "images") -> Iterator[Record]:
        """All items of a gallery, without thumbnails."""
        for segment in self.segments(gallery):
            for row, record in segment.items.all():
                if segment.dead is None or not segment.dead[row]:
                    yield record

    def blocks(
        self, gallery: Gallery = "images", most: int = 10_000
    ) -> Iterator[tuple[Gaussian, list[Record]]]:
        """All items of a gallery with Gaussian and thumbnail, at most so many at a time."""
        for segment in self.segments(gallery):
            live = (
                r
                for r in segment.items.all(thumbnails=True)
                if segment.dead is None or not segment.dead[r[0]]
            )
            while some := list(islice(live, most)):
                rows = np.array([row for row, _ in some])
                yield segment.gaussians(rows), [record for _, record in some]

    def get(self, id: str, gallery: Gallery = "images") -> Record:
        """One item, with its thumbnail."""
        segment, row = self._found(id, gallery)
        (record,) = segment.items.records(np.array([row]))
        return replace(record, thumbnail=segment.items.thumbnail(row))

    def gaussian(self, id: str, gallery: Gallery = "images") -> Gaussian:
        """The Gaussian of one item, as a batch of one."""
        segment, row = self._found(id, gallery)
        return segment.gaussians(np.array([row]))

    def some(self, most: int, gallery: Gallery = "images") -> tuple[list[Record], Gaussian | None]:
        """At most so many items of a gallery, evenly spread, with their Gaussians."""
        held = [(s, row) for s in self.segments(gallery) for row in (s.live_rows(),)]
        total = sum(len(rows) for _, rows in held)
        chosen = np.unique(np.linspace(0, total - 1, min(most, total)).astype(np.int64))
        records: list[Record] = []
        parts: list[Gaussian] = []
        start = 0
        for segment, live in held:
            here = live[chosen[(chosen >= start) & (chosen < start + len(live))] - start]
            start += len(live)
            if len(here):
                records += segment.items.records(here)
                parts.append(segment.gaussians(here))
        return records, Gaussian.cat(parts) if parts else None

    def segments(self, gallery: Gallery) -> list[Segment]:
        return self._segments[known(gallery)]

    # ---- inside ----

    def _rows_of(self, ids: Sequence[str], gallery: Gallery) -> dict[str, dict[str, int]]:
        found = {s.part.name: s.rows_of(list(ids)) for s in self.segments(gallery)}
        return {name: rows for name, rows in found.items() if rows}

    def _find(self, id: str, gallery: Gallery) -> tuple[Segment, int] | None:
        for segment in self.segments(gallery):
            row = segment.rows_of([id]).get(id)
            if row is not None:
                return segment, row
        return None

    def _found(self, id: str, gallery: Gallery) -> tuple[Segment, int]:
        found = self._find(id, gallery)
        if found is None:
            raise ValueError(f"no item {id!r} among the {gallery} of {self.path}")
        return found

    def _see(self, manifest: Manifest) -> None:
        """Open what is new; keep what is open already. If a writer was faster, look again."""
        while True:
            settings = Settings(**manifest.settings)
            held = {s.part: s for parts in self._segments.values() for s in parts}
            held = {part: s for part, s in held.items() if s.settings == settings}
            try:
                opened = {
                    name: [
                        held.get(part) or self._segment(name, part, settings)
                        for part in manifest.galleries[name]
                    ]
                    for name in GALLERIES
                }
            except FileNotFoundError as error:
                newer = Manifest.load(self.path)
                if newer == manifest:
                    raise ValueError(
                        f"{error.filename}: missing; the index is damaged, restore it or make it "
                        "again"
                    ) from error
                manifest = newer
            else:
                self.manifest, self._segments = manifest, opened
                return

    def _segment(self, gallery: Gallery, part: Part, settings: Settings) -> Segment:
        return Segment(self.path, part, gallery, lambda: self.similarity, settings)
