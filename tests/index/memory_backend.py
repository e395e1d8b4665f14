"""A backend in a dictionary: the ten methods that one has to write, and no more."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.search.backend import Backend, Block
from gaussmatch.search.lift import LiftedQueries
from gaussmatch.search.manifest import GALLERIES, FileMark, Gallery, IndexManifest, Record
from gaussmatch.search.topk import Candidates
from gaussmatch.search.where import Where

Item = tuple[Gaussian, Record]


@dataclass
class Held:
    manifest: IndexManifest
    files: dict[str, bytes]
    items: dict[str, dict[str, Item]] = field(default_factory=lambda: {g: {} for g in GALLERIES})


ALL: dict[str, Held] = {}


class MemoryView:
    """A ``Searchable``: every item, by the similarity itself."""

    exact = True

    def __init__(self, items: list[Item], similarity: Similarity, gallery: Gallery) -> None:
        self.items, self.similarity, self.gallery = items, similarity, gallery
        self.reach = len(items)

    def lifted(self, queries: ArrayGaussian) -> LiftedQueries:
        return LiftedQueries(self.similarity, self.gallery, queries)

    def candidates(self, queries: LiftedQueries, count: int) -> Candidates:
        every = self.arrays(np.arange(self.reach)).gaussian()
        own = queries.queries.gaussian()
        found = query_scores(self.similarity, own, every, self.gallery).double().numpy()
        rows = np.argsort(-found, axis=1)
        return Candidates.merged([(rows, np.take_along_axis(found, rows, 1))], whole=True)

    scan = candidates

    def sample(self, count: int) -> np.ndarray:
        return np.arange(min(count, self.reach))

    def arrays(self, rows: np.ndarray) -> ArrayGaussian:
        return Gaussian.cat([self.items[r][0] for r in rows.tolist()]).numpy()

    def described(self, rows: np.ndarray) -> tuple[list[str], list[Mapping[str, Any]]]:
        found = [self.items[r][1] for r in rows.tolist()]
        return [record.id for record in found], [record.meta for record in found]

    def uncertainty(self, rows: np.ndarray) -> np.ndarray | None:
        if not len(rows) or self.items[0][0].is_point:
            return None
        return self.arrays(rows).uncertainty().astype(np.float64)


class Memory(Backend):
    one_process = True

    def __init__(self, place: str) -> None:
        if place not in ALL:
            raise FileNotFoundError(f"{place}: no such index")
        self.place, self._all = place, ALL[place]
        self.manifest = self._all.manifest
        self._scratch = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, self._scratch)

    @classmethod
    def open(cls, place: str) -> Self:
        return cls(place)

    @classmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        if place in ALL:
            raise FileExistsError(f"{place} is an index already")
        ALL[place] = Held(manifest, {name: path.read_bytes() for name, path in files.items()})
        return cls(place)

    def reload(self) -> bool:
        changed = self.manifest != self._all.manifest
        self.manifest = self._all.manifest
        return changed

    def drop(self) -> None:
        del ALL[self.place]

    def file(self, name: str) -> Path | None:
        if name not in self._all.files:
            return None
        path = Path(self._scratch) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self._all.files[name])
        return path

    def blocks(self, gallery: Gallery, ids: Sequence[str] | None = None) -> Iterator[Block]:
        for g, record in list(self._all.items[gallery].values()):
            if ids is None or record.id in ids:
                yield g, [record]

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Collection[str]
    ) -> list[MemoryView]:
        held = self._all.items[gallery].values()
        some = [(g, r) for g, r in held if where.holds(r.meta) and r.id not in exclude]
        return [MemoryView(some, self.similarity(gallery), gallery)]

    def save(self, manifest: IndexManifest, files: Mapping[str, bytes] | None = None) -> None:
        files = files or {}
        self._all.files |= files
        marks = {n: FileMark(len(c), hashlib.sha256(c).hexdigest()) for n, c in files.items()}
        manifest = replace(manifest, files={**manifest.files, **marks})
        self.manifest = self._all.manifest = manifest.next()

    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        for n, record in enumerate(records):
            self._all.items[gallery][record.id] = (gaussians[n : n + 1], record)
        self.save(replace(self.manifest, form=form))

    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        for id_ in ids:
            del self._all.items[gallery][id_]
