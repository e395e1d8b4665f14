"""An index on disk that changes: create, add, delete, compact. Searching is ``Index``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.arrays import blocks
from gaussmatch.index.checks import check_items, check_kind, check_one_origin
from gaussmatch.index.items import Record
from gaussmatch.index.layout import (
    CALIBRATION,
    GALLERIES,
    RUN,
    SEGMENTS,
    Gallery,
    Manifest,
    Part,
    claim,
    known,
    sweep,
    sync,
    writing,
)
from gaussmatch.index.model_copy import copy_run
from gaussmatch.index.opened import Opened
from gaussmatch.index.segment import Segment, wanted_structure, write_segment
from gaussmatch.index.settings import Settings
from gaussmatch.run import load
from gaussmatch.similarities import similarity as similarity_called
from gaussmatch.trust import Calibration

MOST_SEGMENTS = 16
"""More small segments than this in a gallery are joined when items are added."""


class Store(Opened):
    """An index that one process at a time may change."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        run: str | os.PathLike[str] | None = None,
        *,
        similarity: str | None = None,
        settings: Settings | None = None,
        calibration: Calibration | None = None,
    ) -> Self:
        """A new, empty index.

        Args:
            run: the run folder of the model; it is copied in. Or else
            similarity: its name, for an index of bare Gaussians that no model can query.
            calibration: see ``calibrate``; without one there are no percentiles and probabilities.
        """
        folder, settings = Path(path), settings or Settings()
        check_one_origin(run, similarity)
        model = None if run is None else load(run)
        used = model.matcher.similarity if model else similarity_called(str(similarity))
        check_kind(used, settings)
        claim(folder)
        with writing(folder):
            claim(folder)  # another process may have made it meanwhile
            for name in (RUN, SEGMENTS):
                (folder / name).mkdir(exist_ok=True)
            hashes = {} if run is None else copy_run(Path(run), folder / RUN)
            (calibration or Calibration()).save(folder / CALIBRATION)
            Manifest(used.name, asdict(settings), hashes).save(folder)
        return cls.open(folder)

    def add(
        self,
        gaussians: Gaussian,
        records: Sequence[Record],
        gallery: Gallery = "images",
        *,
        replace: bool = False,
        tidy: bool = True,
    ) -> None:
        """Add items; all of them count, or after a kill none.

        Args:
            replace: an item whose id is there takes its place; otherwise it is refused.
            tidy: join small segments when there are many.
        """
        check_items(gaussians, records)
        if not records:
            return
        with self._changing():
            form = self._check_form(gaussians)
            parts = list(self.manifest.galleries[known(gallery)])
            there = self._rows_of([r.id for r in records], gallery)
            if there and not replace:
                first = next(iter(next(iter(there.values()))))
                raise ValueError(
                    f"{first!r} is in the index already; replace it, or give another id"
                )
            new = write_segment(
                self.path,
                gallery,
                self.similarity,
                self.settings,
                [gaussians],
                len(records),
                records,
            )
            parts = self._without(parts, gallery, there)
            self._commit(gallery, [*parts, new], form)
            if tidy:
                self._join_small(gallery)

    def delete(
        self, ids: Iterable[str], gallery: Gallery = "images", *, missing_ok: bool = False
    ) -> int:
        """Delete items by id; gives how many. An id that is not there is refused."""
        wanted = list(dict.fromkeys(ids))
        with self._changing():
            there = self._rows_of(wanted, gallery)
            found = {id_ for rows in there.values() for id_ in rows}
            lost = [id_ for id_ in wanted if id_ not in found]
            if lost and not missing_ok:
                raise ValueError(f"no item {lost[0]!r} among the {gallery} of {self.path}")
            if found:
                parts = list(self.manifest.galleries[gallery])
                self._commit(gallery, self._without(parts, gallery, there))
        return len(found)

    def compact(self, gallery: Gallery | None = None) -> None:
        """Join the segments of a gallery (of all) into one, leave out what was deleted, and build
        the structure that the index is meant to have."""
        with self._changing():
            for name in GALLERIES if gallery is None else (gallery,):
                self._join(name, self.segments(name))

    def set_settings(self, settings: Settings) -> None:
        """Search it another way. Segments follow when they are next written (``compact``)."""
        check_kind(self.similarity, settings)
        with self._changing():
            self._see(replace(self.manifest, settings=asdict(settings)).save(self.path))

    def set_calibration(self, calibration: Calibration) -> None:
        """From now on scores and uncertainties are read so."""
        with self._changing():
            calibration.save(self.path / CALIBRATION)
            self.manifest = self.manifest.save(self.path)
            self.__dict__.pop("calibration", None)

    def note_source(self, source: Mapping[str, object]) -> None:
        """Remember where the items came from."""
        with self._changing():
            self.manifest = replace(self.manifest, source=dict(source)).save(self.path)

    # ---- inside ----

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with writing(self.path):
            self.reload()
            sweep(self.path, self.manifest)
            try:
                yield
            except Exception:  # what was written does not count: a full disk has room again
                sweep(self.path, Manifest.load(self.path))
                raise

    def _commit(
        self, gallery: Gallery, parts: Sequence[Part], form: Mapping[str, int] | None = None
    ) -> None:
        """From here on the new parts count."""
        manifest = self.manifest.with_parts(gallery, tuple(p for p in parts if p.live))
        self._see(replace(manifest, form=form or manifest.form).save(self.path))
        sweep(self.path, self.manifest)

    def _join_small(self, gallery: Gallery) -> None:
        small = [s for s in self.segments(gallery) if s.part.items < self.settings.flat_below]
        if len(small) > MOST_SEGMENTS:
            self._join(gallery, small)

    def _join(self, gallery: Gallery, joined: Sequence[Segment]) -> None:
        total = sum(s.part.live for s in joined)
        if not total:
            return
        wanted = wanted_structure(self.similarity, self.settings, total)
        if len(joined) == 1 and joined[0].dead is None and joined[0].part.structure == wanted:
            return
        new = write_segment(
            self.path,
            gallery,
            self.similarity,
            self.settings,
            _live_gaussians(joined),
            total,
            _live_records(joined),
        )
        names = {s.part.name for s in joined}
        parts = self.manifest.galleries[gallery]
        self._commit(gallery, [*(p for p in parts if p.name not in names), new])

    def _without(
        self, parts: Sequence[Part], gallery: Gallery, there: Mapping[str, Mapping[str, int]]
    ) -> list[Part]:
        """The parts with more rows deleted: segment name → id → row."""
        changed = []
        for part, segment in zip(parts, self.segments(gallery), strict=True):
            if part.name in there:
                gone = np.zeros(part.items, dtype=bool) if segment.dead is None else segment.dead
                rows = np.union1d(np.flatnonzero(gone), list(there[part.name].values()))
                name = f"{part.name}.deleted-{self.manifest.generation + 1}.npy"
                path = self.path / SEGMENTS / name
                np.save(path, rows.astype(np.int64))
                sync(path)
                part = replace(part, deleted=name, dead=len(rows))
            changed.append(part)
        return changed

    def _check_form(self, g: Gaussian) -> dict[str, int]:
        form = {"dim": g.dim, "variances": 0 if g.log_var is None else g.log_var.shape[-1]}
        known = self.manifest.form
        if known is not None and form != known:
            raise ValueError(f"the index holds Gaussians of {dict(known)}, these are of {form}")
        if self.similarity.needs_variance and g.is_point:
            raise ValueError(f"{self.similarity.name} compares distributions; these are points")
        return form


def _live_gaussians(segments: Sequence[Segment]) -> Iterator[Gaussian]:
    for segment in segments:
        rows = segment.live_rows()
        for block in blocks(len(rows)):
            yield segment.gaussians(rows[block])


def _live_records(segments: Sequence[Segment]) -> Iterator[Record]:
    for segment in segments:
        for row, record in segment.items.all(thumbnails=True):
            if segment.dead is None or not segment.dead[row]:
                yield record
