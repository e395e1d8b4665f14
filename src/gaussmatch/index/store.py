"""Galleries of Gaussians on disk: create, open, add, delete, compact. Searching is ``Index``."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.calibrate import Calibration
from gaussmatch.index.items import Record
from gaussmatch.index.layout import (
    CALIBRATION,
    GALLERIES,
    LOCK,
    MANIFEST,
    RUN,
    SEGMENTS,
    Gallery,
    Manifest,
    Part,
    sweep,
    sync,
    writing,
)
from gaussmatch.index.lift import blocks
from gaussmatch.index.segment import Segment, wanted_structure, write_segment
from gaussmatch.index.settings import Settings
from gaussmatch.run import Model, load
from gaussmatch.similarities import Similarity
from gaussmatch.similarities import similarity as similarity_called

RUN_FILES = ("recipe.yaml", "vocabulary.json", "model.safetensors")
MOST_SEGMENTS = 16
"""More small segments than this in a gallery are joined when items are added."""


class Store:
    """What an index holds. Any number of processes may read it while one writes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = Manifest.load(self.path)
        self._segments: Mapping[Gallery, list[Segment]] = {}
        self._open_segments()

    # ---- make and open ----

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
        if (run is None) == (similarity is None):
            raise ValueError("an index needs a run, or the name of a similarity, and not both")
        _check_free(folder)
        model = None if run is None else load(run)
        used = model.matcher.similarity if model else similarity_called(str(similarity))
        _check_kind(used, settings)
        folder.mkdir(parents=True, exist_ok=True)
        with writing(folder):
            _check_free(folder)
            for name in (RUN, SEGMENTS):
                shutil.rmtree(folder / name, ignore_errors=True)
                (folder / name).mkdir()
            hashes = {} if run is None else _copy_run(Path(run), folder / RUN)
            (calibration or Calibration()).save(folder / CALIBRATION)
            Manifest(used.name, asdict(settings), hashes).save(folder)
        return cls.open(folder)

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
        self.manifest = manifest
        self.__dict__.pop("calibration", None)
        self._open_segments()
        return True

    @cached_property
    def model(self) -> Model:
        """The model that the index was made with."""
        if not self.manifest.run:
            raise ValueError(f"{self.path} holds bare Gaussians: it has no model to encode with")
        for name, known in self.manifest.run.items():
            if _sha256(self.path / RUN / name) != known:
                raise ValueError(
                    f"{self.path / RUN / name} is not the file that the index was made with; "
                    "restore it or make the index again"
                )
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
        return sum(part.live for part in self.manifest.galleries[_known(gallery)])

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
        record = segment.items.records([row])[row]
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
                told = segment.items.records(here.tolist())
                records += [told[row] for row in here.tolist()]
                parts.append(segment.gaussians(here))
        return records, Gaussian.cat(parts) if parts else None

    def segments(self, gallery: Gallery) -> list[Segment]:
        return self._segments[_known(gallery)]

    # ---- change ----

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
        if len(gaussians) != len(records):
            raise ValueError(f"{len(gaussians)} Gaussians, but {len(records)} records")
        if not records:
            return
        _check_finite(gaussians, records)
        with self._changing():
            form = self._check_form(gaussians)
            parts = list(self.manifest.galleries[_known(gallery)])
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
        _check_kind(self.similarity, settings)
        with self._changing():
            self.manifest = replace(self.manifest, settings=asdict(settings)).save(self.path)

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
            yield

    def _commit(
        self, gallery: Gallery, parts: Sequence[Part], form: Mapping[str, int] | None = None
    ) -> None:
        """From here on the new parts count."""
        manifest = self.manifest.with_parts(gallery, tuple(p for p in parts if p.live))
        self.manifest = replace(manifest, form=form or manifest.form).save(self.path)
        self._open_segments()
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

    def _check_form(self, g: Gaussian) -> dict[str, int]:
        form = {"dim": g.dim, "variances": 0 if g.log_var is None else g.log_var.shape[-1]}
        known = self.manifest.form
        if known is not None and form != known:
            raise ValueError(f"the index holds Gaussians of {dict(known)}, these are of {form}")
        if self.similarity.needs_variance and g.is_point:
            raise ValueError(f"{self.similarity.name} compares distributions; these are points")
        return form

    def _open_segments(self) -> None:
        """Open what is new; keep what is open already. If a writer was faster, look again."""
        while True:
            manifest = self.manifest
            held = {s.part: s for parts in self._segments.values() for s in parts}
            try:
                self._segments = {
                    name: [held.get(p) or self._segment(name, p) for p in manifest.galleries[name]]
                    for name in GALLERIES
                }
                return
            except FileNotFoundError as error:
                self.manifest = Manifest.load(self.path)
                if self.manifest == manifest:
                    raise ValueError(
                        f"{error.filename}: missing; the index is damaged, restore it or make it "
                        "again"
                    ) from error

    def _segment(self, gallery: Gallery, part: Part) -> Segment:
        return Segment(self.path, part, gallery, lambda: self.similarity, self.settings)


def same_run(store: Store, run: Path) -> None:
    """A clear error unless an index was made with this run."""
    if dict(store.manifest.run) != {name: _sha256(run / name) for name in RUN_FILES}:
        raise ValueError(
            f"{store.place} was made with another model than {run}: choose another place"
        )


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


def _check_free(folder: Path) -> None:
    if (folder / MANIFEST).exists():
        raise FileExistsError(f"{folder} is an index already; add to it, or choose another folder")
    if folder.exists():
        ours = {RUN, SEGMENTS, LOCK, CALIBRATION}  # of a writer that was killed
        strange = [p.name for p in folder.iterdir() if p.name not in ours and p.name[:1] != "."]
        if strange:
            raise FileExistsError(f"{folder} is not empty ({strange[0]}); choose another folder")


def _check_kind(similarity: Similarity, settings: Settings) -> None:
    if similarity.several:
        raise ValueError(
            f"an index holds one Gaussian for each item, and with {similarity.name} an item has "
            f"several embeddings: {similarity.no_lift}"
        )
    if settings.kind != "flat" and similarity.no_lift is not None:
        raise ValueError(
            f"{similarity.name} is no product or distance of vectors, so an index of kind "
            f"{settings.kind!r} cannot hold it; use kind 'flat', which looks at every item"
        )


def _check_finite(g: Gaussian, records: Sequence[Record]) -> None:
    for values in (g.mean, g.log_var):
        if values is not None and not values.isfinite().all():
            at = int((~values.isfinite()).any(-1).nonzero()[0])
            raise ValueError(f"the embedding of {records[at].id!r} holds a NaN or infinity")


def _known(gallery: str) -> Gallery:
    if gallery not in GALLERIES:
        raise ValueError(f"no gallery {gallery!r}; choose {' or '.join(GALLERIES)}")
    return gallery


def _copy_run(run: Path, target: Path) -> dict[str, str]:
    for name in RUN_FILES:
        shutil.copyfile(run / name, target / name)
        sync(target / name)
    sync(target)
    return {name: _sha256(target / name) for name in RUN_FILES}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
