"""An index in a folder that one process at a time may change."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.files import atomic, sync
from gaussmatch.search.backend import Backend, Block
from gaussmatch.search.backends.folder import layout
from gaussmatch.search.backends.folder.layout import SEGMENTS, mark_of, sweep
from gaussmatch.search.backends.folder.segment import (
    Segment,
    SegmentView,
    wanted_structure,
    write_segment,
)
from gaussmatch.search.backends.folder.structure import blocks
from gaussmatch.search.manifest import (
    GALLERIES,
    FileMark,
    Gallery,
    IndexManifest,
    IndexSettings,
    Record,
    SegmentInfo,
    known,
)
from gaussmatch.search.where import Where

MOST_SEGMENTS = 16
"""More small segments than this in a gallery are joined when items are added."""
BLOCK = 10_000


class Folder(Backend):
    """Segments on disk, memory-mapped: nothing is loaded until it is needed."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, str(path)
        self._segments: Mapping[Gallery, list[Segment]] = {}
        self._see(layout.load_manifest(path))

    # ---- make and open ----

    @classmethod
    def open(cls, place: str) -> Self:
        return cls(Path(place))

    @classmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        folder = Path(place)
        layout.claim(folder)
        with layout.locked(folder, cls.wait):
            layout.claim(folder)  # another process may have made it meanwhile
            (folder / SEGMENTS).mkdir(exist_ok=True)
            for name, source in files.items():
                target = folder / name
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
                sync(target)
            for parent in {(folder / name).parent for name in files}:
                sync(parent)
            layout.save_manifest(folder, manifest.next())
        return cls(folder)

    @classmethod
    @contextmanager
    def building(cls, place: str) -> Iterator[str]:
        target = Path(place)
        work = target.with_name(f".{target.name}.building")
        with layout.building(work, target, cls.wait):
            yield str(work)
            os.rename(work, target)
            sync(target.parent)

    def reload(self) -> bool:
        manifest = layout.load_manifest(self.path)
        if manifest == self.manifest:
            return False
        self._see(manifest)
        return True

    def stale(self, error: Exception) -> bool:
        return isinstance(error, FileNotFoundError)

    def drop(self) -> None:
        with layout.locked(self.path, self.wait):
            layout.discard(self.path)

    # ---- read ----

    def file(self, name: str) -> Path | None:
        path, mark = self.path / name, self.manifest.files.get(name)
        if mark is None:
            return path if path.is_file() else None
        try:
            layout.check_mark(path, mark)
        except ValueError:
            if not self.reload():  # else another process has written a new one
                raise
            return self.file(name)
        return path

    def size(self, gallery: Gallery) -> int:
        return sum(part.live for part in self.manifest.galleries[gallery])

    def held(self, ids: Sequence[str], gallery: Gallery) -> set[str]:
        return {id_ for rows in self._rows_of(ids, gallery).values() for id_ in rows}

    def records(self, gallery: Gallery) -> Iterator[Record]:
        for segment in self.segments(gallery):
            yield from segment.live_records()

    def blocks(self, gallery: Gallery, ids: Sequence[str] | None = None) -> Iterator[Block]:
        for segment in self.segments(gallery):
            rows = segment.live_rows()
            if ids is not None:
                rows = np.array([*segment.rows_of(list(ids)).values()], dtype=np.int64)
            for some in blocks(len(rows), BLOCK):
                here = rows[some]
                yield segment.gaussians(here), segment.items.records(here, thumbnails=True)

    def some(self, most: int, gallery: Gallery) -> Block | None:
        """Evenly spread."""
        held = [(segment, segment.live_rows()) for segment in self.segments(gallery)]
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
        return (Gaussian.cat(parts), records) if parts else None

    def fields(self, gallery: Gallery) -> set[str]:
        return {name for segment in self.segments(gallery) for name in segment.items.fields}

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Collection[str]
    ) -> list[SegmentView]:
        out = list(exclude)
        return [SegmentView(s, s.allowed(where, out)) for s in self.segments(gallery)]

    def faults(self) -> Iterator[str]:
        run = {f"{layout.RUN}/{n}": FileMark(-1, sha) for n, sha in self.manifest.run.items()}
        marks = [layout.marks(self.path, part) for part in self.manifest.parts()]
        marks += [{self.path / n: mark for n, mark in {**self.manifest.files, **run}.items()}]
        for path, mark in (file for some in marks for file in some.items()):
            yield from layout.fault(path, mark)

    def copy(self, place: str) -> bool:
        """Segments never change, so all that a manifest names is one moment of the index."""
        with self.building(place) as work:
            target = Path(work)
            while True:
                try:
                    self._copy_to(target)
                    break
                except FileNotFoundError:  # another process has joined segments since
                    if not self.reload():
                        raise
            for text in Folder(target).faults():
                raise ValueError(f"{self.place} is damaged: {text}")
        return True

    def _copy_to(self, target: Path) -> None:
        manifest = self.manifest
        files = [path for part in manifest.parts() for path in layout.marks(self.path, part)]
        names = [path.relative_to(self.path) for path in files]
        names += [Path("run") / name for name in manifest.run]
        for name in (*names, *map(Path, manifest.files)):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.path / name, target / name)
            sync(target / name)
        (target / SEGMENTS).mkdir(exist_ok=True)
        layout.save_manifest(target, manifest)
        sweep(target, manifest)  # what a moment ago was to be copied

    def describe(self) -> dict[str, Any]:
        return {"segments": {g: [s.describe() for s in self.segments(g)] for g in GALLERIES}}

    def segments(self, gallery: Gallery) -> list[Segment]:
        """To be read now."""
        found = self._segments[known(gallery)]
        for segment in found:
            segment.check()
        return found

    # ---- change ----

    @contextmanager
    def writing(self) -> Iterator[None]:
        with layout.locked(self.path, self.wait):
            self.reload()
            sweep(self.path, self.manifest)
            try:
                yield
            except Exception:  # what was written does not count: a full disk has room again
                with suppress(OSError):
                    sweep(self.path, layout.load_manifest(self.path))
                raise

    def save(self, manifest: IndexManifest, files: Mapping[str, bytes] | None = None) -> None:
        for name, content in (files or {}).items():
            with atomic(self.path / name) as temporary:
                temporary.write_bytes(content)
            marks = {**manifest.files, name: mark_of(self.path / name)}
            manifest = replace(manifest, files=marks)
        new = manifest.next()
        layout.save_manifest(self.path, new)
        self._see(new)

    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        there = self._rows_of([r.id for r in records], gallery)
        new = self._write(gallery, [gaussians], len(records), records)
        self._commit(gallery, [*self._without(gallery, there), new], form)
        small = [s for s in self.segments(gallery) if s.part.items < self.settings.flat_below]
        if len(small) > MOST_SEGMENTS:
            with self._made("joining its small segments"):
                self._join(gallery, small)

    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        self._commit(gallery, self._without(gallery, self._rows_of(ids, gallery)))

    def compact(self, gallery: Gallery) -> None:
        """Join the segments of a gallery into one."""
        self._join(gallery, self.segments(gallery))

    # ---- inside ----

    def _write(
        self,
        gallery: Gallery,
        gaussians: Iterable[Gaussian],
        total: int,
        records: Iterable[Record],
    ) -> SegmentInfo:
        return write_segment(
            self.path, gallery, self.similarity(gallery), self.settings, gaussians, total, records
        )

    def _commit(
        self, gallery: Gallery, parts: Sequence[SegmentInfo], form: Mapping[str, int] | None = None
    ) -> None:
        """From here on the new parts count."""
        self.save(self.manifest.with_parts(gallery, [p for p in parts if p.live], form))
        with self._made("removing what is no longer needed"):
            sweep(self.path, self.manifest)

    @contextmanager
    def _made(self, what: str) -> Iterator[None]:
        """Work that follows a change which counts already: its failure is not that of the change,
        and what it leaves is removed by the next one."""
        try:
            yield
        except OSError as error:
            warnings.warn(
                f"{self.place}: the change is made, but {what} failed ({error}); the next change "
                "tries again",
                stacklevel=2,
            )

    def _join(self, gallery: Gallery, joined: Sequence[Segment]) -> None:
        total = sum(s.part.live for s in joined)
        if not total:
            return
        wanted = wanted_structure(self.similarity(gallery), self.settings, total)
        if len(joined) == 1 and joined[0].current and joined[0].part.structure == wanted:
            return
        for segment in joined:
            for path, mark in layout.marks(self.path, segment.part).items():
                layout.check_mark(path, mark)
        live = ((s, s.live_rows()) for s in joined)
        gaussians = (s.gaussians(rows[some]) for s, rows in live for some in blocks(len(rows)))
        records = (record for s in joined for record in s.live_records(thumbnails=True))
        new = self._write(gallery, gaussians, total, records)
        names = {s.part.name for s in joined}
        parts = self.manifest.galleries[gallery]
        self._commit(gallery, [*(p for p in parts if p.name not in names), new])

    def _rows_of(self, ids: Sequence[str], gallery: Gallery) -> dict[str, dict[str, int]]:
        """Segment name → id → row."""
        found = {s.part.name: s.rows_of(list(ids)) for s in self.segments(gallery)}
        return {name: rows for name, rows in found.items() if rows}

    def _without(
        self, gallery: Gallery, gone: Mapping[str, Mapping[str, int]]
    ) -> list[SegmentInfo]:
        """The parts of a gallery with more rows deleted: segment name → id → row."""
        changed = []
        for segment in self.segments(gallery):
            part = segment.part
            if part.name in gone:
                dead = np.zeros(part.items, dtype=bool) if segment.dead is None else segment.dead
                rows = np.union1d(np.flatnonzero(dead), list(gone[part.name].values()))
                name = f"{part.name}.deleted-{self.manifest.generation + 1}.npy"
                path = self.path / SEGMENTS / name
                np.save(path, rows.astype(np.int64))
                sync(path)
                mark = mark_of(path)
                part = replace(part, deleted=name, deleted_mark=mark, dead=len(rows))
            changed.append(part)
        return changed

    def _see(self, manifest: IndexManifest) -> None:
        """Open what is new; keep what is open already. If a writer was faster, look again."""
        while True:
            settings = IndexSettings(**manifest.settings)
            held = {s.part: s for parts in self._segments.values() for s in parts}
            held = {part: s for part, s in held.items() if s.settings == settings}
            try:
                opened = {
                    name: [
                        held.get(part)
                        or Segment(self.path, part, name, partial(self._used, name), settings)
                        for part in manifest.galleries[name]
                    ]
                    for name in GALLERIES
                }
            except FileNotFoundError as error:
                newer = layout.load_manifest(self.path)
                if newer == manifest:
                    raise ValueError(
                        f"{error.filename}: missing; the index is damaged, restore it or make it "
                        "again"
                    ) from error
                manifest = newer
            else:
                self.manifest, self._segments = manifest, opened
                return

    def _used(self, gallery: Gallery) -> Similarity:
        return self.similarity(gallery)
