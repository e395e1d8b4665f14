"""An ``Index`` whose items are in Milvus."""

from __future__ import annotations

from collections.abc import Collection as Some
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.best import best
from gaussmatch.index.checks import check_items
from gaussmatch.index.hits import Hits
from gaussmatch.index.index import Filter
from gaussmatch.index.items import Record
from gaussmatch.index.layout import GALLERIES, Gallery
from gaussmatch.index.lift import SAMPLE, Lift
from gaussmatch.index.milvus import rows as coding
from gaussmatch.index.milvus.filter import expression, id_of
from gaussmatch.index.milvus.filter import ids as among
from gaussmatch.index.milvus.gallery import BLOCK, Seen
from gaussmatch.index.milvus.store import MilvusStore, write_calibration
from gaussmatch.index.segment import Segment
from gaussmatch.index.settings import Settings
from gaussmatch.index.where import Where
from gaussmatch.trust import Calibration


class MilvusIndex(MilvusStore):
    """Galleries of Gaussians in Milvus; asking is that of ``Index``.

    What differs from an index on disk: a change counts upsert by upsert, not as a whole (to do it
    again after a kill is safe, as everything goes by id); any number of processes may add at once
    after the first items are in; and similarities without a lift are refused.
    """

    # ---- look ----

    def size(self, gallery: Gallery = "images") -> int:
        def ask() -> int:
            held = self._held(gallery)
            return 0 if held is None else held.count()

        return self._fresh(ask)

    def __contains__(self, id: str) -> bool:
        return any(self._there([id], gallery) for gallery in GALLERIES)

    def records(self, gallery: Gallery = "images") -> Iterator[Record]:
        held = self._held(gallery)
        for rows in () if held is None else held.all(["id", "record"]):
            yield from (coding.record(row) for row in rows)

    def blocks(
        self, gallery: Gallery = "images", most: int = BLOCK
    ) -> Iterator[tuple[Gaussian, list[Record]]]:
        """See ``Index.blocks``; of the size in which Milvus gives them."""
        held = self._held(gallery)
        for rows in () if held is None else held.all([*held.wanted(), "thumbnail"]):
            yield coding.gaussian(rows, self._form), [coding.record(row) for row in rows]

    def get(self, id: str, gallery: Gallery = "images") -> Record:
        return coding.record(self._row(id, gallery, ["id", "record", "thumbnail"]))

    def gaussian(self, id: str, gallery: Gallery = "images") -> Gaussian:
        return coding.gaussian([self._row(id, gallery, ["id", "gaussian"])], self._form)

    def some(self, most: int, gallery: Gallery = "images") -> tuple[list[Record], Gaussian | None]:
        """At most so many items, whichever Milvus gives first."""
        held = self._held(gallery)
        rows: list[dict[str, Any]] = []
        for block in () if held is None else held.all(held.wanted()):
            rows += block[: most - len(rows)]
            if len(rows) >= most:
                break
        records = [coding.record(row) for row in rows]
        return records, coding.gaussian(rows, self._form) if rows else None

    def segments(self, gallery: Gallery) -> list[Segment]:
        raise ValueError(f"{self.address}: the items of an index in Milvus are not in files")

    def info(self) -> dict[str, Any]:
        parts = self.manifest.galleries
        return {
            "path": str(self.address),
            **{gallery: self.size(gallery) for gallery in GALLERIES},
            "kind": self.settings.kind,
            "similarity": self.manifest.similarity,
            "form": dict(self.manifest.form or {}),
            "collections": {g: [part.name for part in parts[g]] for g in GALLERIES},
            "consistency": self.address.consistency,
            "source": self.manifest.source,
            "model": dict(self.manifest.run),
            "calibration": dict(self.calibration.about),
        }

    # ---- ask ----

    def search(
        self,
        queries: Gaussian,
        k: int = 10,
        *,
        gallery: Gallery = "images",
        kind: Gallery | None = None,
        where: Filter = None,
        exclude: Some[str] = (),
    ) -> list[Hits]:
        """See ``Index.search``."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        queries = self._fit(queries)
        kind = kind or ("captions" if gallery == "images" else "images")
        condition = expression(Where.of(where))
        if exclude:
            condition = " and ".join(filter(None, [condition, among([*exclude], inside=False)]))

        def ask() -> list[Hits]:
            held = self._held(gallery)
            seen = [] if held is None else [Seen(held, self.similarity, condition)]
            segments = cast(list[Segment], seen)
            found = best(segments, queries, k, [None] * len(seen), self.settings.rescore)
            return self._hits(segments, found, queries, kind, gallery)

        return self._fresh(ask)

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
        """Add items, in batches; what was sent before a kill counts."""
        check_items(gaussians, records)
        if not records:
            return
        names = [record.id for record in records]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the id {twice!r} is given twice")
        form = self._check_form(gaussians)
        there = [] if replace else self._there(names, gallery)
        if there:
            raise ValueError(
                f"{there[0]!r} is in the index already; replace it, or give another id"
            )
        held = self._held(gallery)
        lift = Lift.of(self.similarity, gallery, gaussians[:SAMPLE]) if held is None else held.lift
        rows = coding.rows(gaussians, records, lift)  # refuses before anything is changed
        if held is None:
            held = self._new_collection(gallery, form, lift, min(len(gaussians), SAMPLE))
        for batch in coding.batches(rows):
            self._client("upsert", held.name, batch)

    def delete(
        self, ids: Iterable[str], gallery: Gallery = "images", *, missing_ok: bool = False
    ) -> int:
        wanted = list(dict.fromkeys(ids))
        there = set(self._there(wanted, gallery))
        lost = [name for name in wanted if name not in there]
        if lost and not missing_ok:
            raise ValueError(f"no item {lost[0]!r} among the {gallery} of {self.address}")
        held = self._held(gallery)
        gone = [name for name in wanted if name in there]
        if held is not None:
            for start in range(0, len(gone), BLOCK):
                self._client("delete", held.name, filter=among(gone[start : start + BLOCK]))
        return len(gone)

    def compact(self, gallery: Gallery | None = None) -> None:
        """Standardise a gallery anew where that was done on a few first items, or index it as
        ``set_settings`` says: into a new collection, which then takes the place of the old one.
        (Milvus compacts by itself.)"""
        kind = self.settings.kind
        for name in GALLERIES if gallery is None else (gallery,):
            held = self._held(name)
            if held is None:
                continue
            part = self.manifest.galleries[name][0]
            few = held.lift.inner and 2 * part.items < min(SAMPLE, held.count())
            if part.structure == kind and (kind == "flat" or not few):
                continue
            _, typical = self.some(SAMPLE, name)
            if typical is not None:
                lift = Lift.of(self.similarity, name, typical)
                self._new_collection(name, self._form, lift, len(typical), held)
                self._client("drop_collection", held.name)

    def set_settings(self, settings: Settings) -> None:
        """Search it another way, from now on."""
        self._keep(replace(self.manifest, settings=asdict(settings)))
        self._collections.clear()
        self.compact()

    def set_calibration(self, calibration: Calibration) -> None:
        """From now on scores and uncertainties are read so."""
        write_calibration(self._about, calibration)
        self._keep(self.manifest)  # others see that there is something new
        self.calibration = calibration

    def note_source(self, source: Mapping[str, object]) -> None:
        self._keep(replace(self.manifest, source=dict(source)))

    # ---- inside ----

    def _there(self, names: Sequence[str], gallery: Gallery) -> list[str]:
        return [id_of(row["id"]) for row in self._rows(names, gallery, ["id"])]

    def _row(self, id: str, gallery: Gallery, fields: Sequence[str]) -> dict[str, Any]:
        found = self._rows([id], gallery, fields)
        if not found:
            raise ValueError(f"no item {id!r} among the {gallery} of {self.address}")
        return dict(found[0])

    def _rows(
        self, names: Sequence[str], gallery: Gallery, fields: Sequence[str]
    ) -> list[dict[str, Any]]:
        def ask() -> list[dict[str, Any]]:
            held = self._held(gallery)
            return [] if held is None else held.rows(names, fields)

        return self._fresh(ask)
