"""An index whose items are in Milvus."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Collection as Some
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search.backend import BUILDING, Backend, Block
from gaussmatch.search.backends.milvus import rows as coding
from gaussmatch.search.backends.milvus.address import Address
from gaussmatch.search.backends.milvus.client import NO_COLLECTION, Client, MilvusError, connect
from gaussmatch.search.backends.milvus.collection import BLOCK, Collection, CollectionView
from gaussmatch.search.backends.milvus.files import FilesCollection
from gaussmatch.search.backends.milvus.filter import expression, id_of
from gaussmatch.search.backends.milvus.filter import ids as among
from gaussmatch.search.lift import FILE as LIFT
from gaussmatch.search.lift import SAMPLE, Lift
from gaussmatch.search.manifest import (
    GALLERIES,
    MANIFEST,
    FileMark,
    Gallery,
    IndexManifest,
    SegmentInfo,
    StructureName,
)
from gaussmatch.search.recall import BEST, QUERIES, REPORT, Recall, measure
from gaussmatch.search.record import Record
from gaussmatch.search.topk import Candidates
from gaussmatch.search.where import Where

MEASURED = 1_000_000
"""Items of a collection up to which they are all read to measure what its index finds."""


class Milvus(Backend):
    """Three collections: NAME_images_N and NAME_captions_N, made when their first items come, and
    NAME_about, which keeps the files of the index: it is self-contained.

    What differs from a folder: a change counts upsert by upsert, not as a whole (to do it again
    after a kill is safe, as everything goes by id); any number of processes may add at once after
    the first items are in; and similarities without a lift are refused.
    """

    scans: ClassVar[bool] = False

    def __init__(self, address: Address, client: Client) -> None:
        self.address, self.place, self._client = address, str(address), client
        self.remote = True  # an embedded server answers in its own time, too
        self.one_process = not address.remote
        self._files = FilesCollection(client, address.name)
        self._scratch = Path(tempfile.mkdtemp(prefix="gaussmatch-"))
        self._finish = weakref.finalize(self, _finish, client, self._scratch)
        self._collections: dict[str, Collection] = {}
        try:
            self.manifest = self._read_manifest()
        except BaseException:
            self.close()
            raise

    # ---- make and open ----

    @classmethod
    def open(cls, place: str) -> Self:
        address = Address.of(place)
        return cls(address, connect(address))

    @classmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        address = Address.of(place)
        client = connect(address, make=True)
        held = FilesCollection(client, address.name)
        try:
            if held.open() and held.read(MANIFEST) is not None:
                raise FileExistsError(f"{address} is an index already; add to it, or name another")
            held.create()
            for name, path in files.items():
                held.write(name, path.read_bytes())
            held.write(MANIFEST, manifest.next().dumps())
        except BaseException:
            client.close()
            raise
        return cls(address, client)

    @classmethod
    @contextmanager
    def building(cls, place: str) -> Iterator[str]:
        """It is there under its name from the start, with a note; what a killed process left is
        removed by the next one that builds under this name."""
        try:
            there = cls.open(place)
        except FileNotFoundError:
            pass
        else:
            if any(there.manifest.galleries.values()) and BUILDING not in (
                there.manifest.source or {}
            ):
                there.close()
                raise FileExistsError(f"{place} is an index already; choose another name")
            there.drop()
        try:
            yield place
        except ValueError:  # refused: nothing of it stays
            cls.open(place).drop()
            raise

    def reload(self) -> bool:
        """See another model or form of the index; items are always seen as they are."""
        manifest = self._read_manifest()
        if manifest == self.manifest:
            return False
        changed = {name for name in manifest.files if "/" not in name}
        for name in changed:
            (self._scratch / name).unlink(missing_ok=True)
        self.manifest, self._collections = manifest, {}
        return True

    def stale(self, error: Exception) -> bool:
        return isinstance(error, MilvusError) and error.code == NO_COLLECTION

    def close(self) -> None:
        """Leave the server; an embedded one stops with its last client."""
        self._finish()

    def drop(self) -> None:
        """With what killed processes left of it. Its files go last: after a kill it can be dropped
        again."""
        ours = re.compile(rf"{self.address.name}_({'|'.join(GALLERIES)})_\d+")
        for name in self._client("list_collections"):
            if ours.fullmatch(name):
                self._client.drop(name, coding.FIELDS)
        self._files.drop()
        self.close()

    # ---- read ----

    def file(self, name: str) -> Path | None:
        """Brought here once."""
        path = self._scratch / name
        if not path.is_file():
            content = self._files.read(name)
            if content is None:
                return None
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return path

    def size(self, gallery: Gallery) -> int:
        held = self._held(gallery)
        return 0 if held is None else held.count()

    def held(self, ids: Sequence[str], gallery: Gallery) -> set[str]:
        held = self._held(gallery)
        return set() if held is None else {id_of(row["id"]) for row in held.rows(ids, ["id"])}

    def get(self, id: str, gallery: Gallery) -> tuple[Gaussian, Record] | None:
        held = self._held(gallery)
        found = [] if held is None else held.rows([id], ["id", "gaussian", "record", "thumbnail"])
        return (coding.gaussian(found, self._form), coding.record(found[0])) if found else None

    def records(self, gallery: Gallery) -> Iterator[Record]:
        held = self._held(gallery)
        for rows in () if held is None else held.all(["id", "record"]):
            yield from (coding.record(row) for row in rows)

    def blocks(self, gallery: Gallery) -> Iterator[Block]:
        held = self._held(gallery)
        for rows in () if held is None else held.all([*held.wanted(), "thumbnail"]):
            yield coding.gaussian(rows, self._form), [coding.record(row) for row in rows]

    def some(self, most: int, gallery: Gallery) -> Block | None:
        """Whichever Milvus gives first."""
        held = self._held(gallery)
        rows: list[dict[str, Any]] = []
        for block in () if held is None else held.all(held.wanted()):
            rows += block[: most - len(rows)]
            if len(rows) >= most:
                break
        return (coding.gaussian(rows, self._form), [*map(coding.record, rows)]) if rows else None

    def fields(self, gallery: Gallery) -> set[str]:
        """Of as many items as one sample has."""
        found = self.some(SAMPLE, gallery)
        return set() if found is None else {name for record in found[1] for name in record.meta}

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Some[str]
    ) -> list[CollectionView]:
        condition = expression(where)
        if exclude:
            condition = " and ".join(filter(None, [condition, among([*exclude], inside=False)]))
        held = self._held(gallery)
        return [] if held is None else [CollectionView(held, self.similarity(gallery), condition)]

    def faults(self) -> Iterator[str]:
        """Of its files; Milvus answers for its own collections."""
        names = [*(f"run/{name}" for name in self.manifest.run), *self.manifest.files]
        parts = [part for parts in self.manifest.galleries.values() for part in parts]
        for name in (*names, *(f"{part.name}/{LIFT}" for part in parts)):
            try:
                if self._files.read(name) is None:
                    yield f"{self.address}: {name} is missing"
            except ValueError as error:
                yield str(error)

    def describe(self) -> dict[str, Any]:
        return {
            "collections": {
                g: [self._describe(part) for part in parts]
                for g, parts in self.manifest.galleries.items()
            },
            "consistency": self.address.consistency,
        }

    # ---- change ----

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody is kept out: everything goes by id."""
        yield

    def save(self, manifest: IndexManifest, files: Mapping[str, bytes] | None = None) -> None:
        """A manifest takes the place of the old one in one step, as it is one row."""
        for name, content in (files or {}).items():
            self._files.write(name, content)
            (self._scratch / name).write_bytes(content)
            mark = FileMark(len(content), hashlib.sha256(content).hexdigest())
            manifest = replace(manifest, files={**manifest.files, name: mark})
        if manifest.settings != self.manifest.settings:
            self._collections.clear()
        self.manifest = manifest.next()
        self._files.write(MANIFEST, self.manifest.dumps())

    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        """In batches; what was sent before a kill counts."""
        held, similarity = self._held(gallery), self.similarity(gallery)
        lift = Lift.of(similarity, gallery, gaussians[:SAMPLE]) if held is None else held.lift
        rows = coding.rows(gaussians, records, lift)  # refuses before anything is changed
        if held is None:
            typical, structure = min(len(gaussians), SAMPLE), self.settings.structure
            held = self._new_collection(gallery, form, lift, typical, structure)
        for batch in coding.batches(rows):
            self._client("upsert", held.name, batch)

    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        held = self._held(gallery)
        if held is not None:
            for start in range(0, len(ids), BLOCK):
                self._client("delete", held.name, filter=among(ids[start : start + BLOCK]))

    def compact(self, gallery: Gallery) -> None:
        """Standardise a gallery anew where that was done on a few first items, or index it as the
        settings say: into a new collection, which then takes the place of the old one. (Milvus
        compacts by itself.) What the index finds is then measured; where that is too little, Milvus
        looks at every item instead."""
        structure, held = self.settings.structure, self._held(gallery)
        if held is None or self._is_measured(held):
            return
        part = self.manifest.galleries[gallery][0]
        few = held.lift.inner and 2 * part.items < min(SAMPLE, held.count())
        if part.structure != structure or (few and structure != "flat"):
            held = self._again(gallery, held, structure)
        if structure == "flat":
            return
        report = self._measure(held, gallery)
        if report is None:
            return
        if not report.used:
            held = self._again(gallery, held, "flat")
        about = {"items": held.count(), "settings": dict(self.manifest.settings)}
        content = json.dumps({**asdict(report), **about}).encode()
        self._files.write(f"{held.name}/{REPORT}", content)
        self._collections.pop(gallery)  # it is searched so wide from now on

    # ---- inside ----

    @property
    def _form(self) -> dict[str, int]:
        return dict(self.manifest.form or {})

    def _held(self, gallery: Gallery) -> Collection | None:
        """The collection of a gallery; ``None`` before its first item."""
        if not self.manifest.galleries[gallery]:
            self.reload()  # another process may have been the first
        if gallery not in self._collections:
            parts = self.manifest.galleries[gallery]
            if not parts:
                return None
            file = self.file(f"{parts[0].name}/{LIFT}")
            if file is None:
                raise ValueError(f"{self.address}: its {LIFT} is missing; make the index again")
            lift = Lift.load(file.parent, self.similarity(gallery), gallery)
            self._client("load_collection", parts[0].name)
            self._collections[gallery] = self._collection(parts[0], gallery, self._form, lift)
        return self._collections[gallery]

    def _collection(
        self, part: SegmentInfo, gallery: Gallery, form: dict[str, int], lift: Lift
    ) -> Collection:
        settings = replace(self.settings, structure=part.structure)  # type: ignore[arg-type]
        width = self._report(part.name).get("search", 0)
        settings = replace(settings, search=max(settings.search, width))
        return Collection(
            self._client, part.name, gallery, form, lift, settings, self.address.consistency
        )

    def _new_collection(
        self,
        gallery: Gallery,
        form: dict[str, int],
        lift: Lift,
        typical: int,
        structure: StructureName,
        old: Collection | None = None,
    ) -> Collection:
        """An empty collection, or one with the items of another, that is from now on the one."""
        name = f"{self.address.name}_{gallery}_{self.manifest.generation + 1}"
        self._client.drop(name, coding.FIELDS)  # of a process that was killed
        self._client(
            "create_collection",
            name,
            schema=coding.schema(form, lift, self.address.mmap),
            index_params=coding.index_params(lift, replace(self.settings, structure=structure)),
            consistency_level=self.address.consistency,
        )
        folder = self._scratch / name
        folder.mkdir(exist_ok=True)
        lift.save(folder)
        self._files.write(f"{name}/{LIFT}", (folder / LIFT).read_bytes())
        part = SegmentInfo(name, typical, structure)
        made = self._collection(part, gallery, form, lift)
        for some in () if old is None else old.all([*old.wanted(), "thumbnail"]):
            again = coding.rows(coding.gaussian(some, form), [*map(coding.record, some)], lift)
            for batch in coding.batches(again):
                self._client("upsert", name, batch)
        self.save(replace(self.manifest.with_parts(gallery, (part,)), form=form))
        self._collections[gallery] = made
        return made

    def _again(self, gallery: Gallery, old: Collection, structure: StructureName) -> Collection:
        """A gallery in a new collection, standardised on typical items."""
        typical = self.some(SAMPLE, gallery)
        if typical is None:
            return old
        lift = Lift.of(self.similarity(gallery), gallery, typical[0])
        made = self._new_collection(gallery, self._form, lift, len(typical[1]), structure, old)
        self._client("drop_collection", old.name)
        return made

    def _report(self, name: str) -> dict[str, Any]:
        """What was measured of a collection; empty if nothing was."""
        content = self._files.read(f"{name}/{REPORT}")
        return {} if content is None else dict(json.loads(content))

    def _describe(self, part: SegmentInfo) -> dict[str, Any]:
        report = self._report(part.name)
        found = {f.name: report[f.name] for f in fields(Recall) if report}
        return {"name": part.name, "structure": part.structure, **found}

    def _is_measured(self, held: Collection) -> bool:
        """Whether it was with these settings, and the collection is less than twice as large."""
        report = self._report(held.name)
        same = report.get("settings") == self.manifest.settings
        return same and held.count() < 2 * int(report["items"])

    def _measure(self, held: Collection, gallery: Gallery) -> Recall | None:
        """What the index of a collection finds; ``None`` where that would take too long."""
        some = self.some(QUERIES, gallery)
        view = CollectionView(held, self.similarity(gallery), "")
        if some is None or view.reach > MEASURED:
            return None

        def walk(width: int, count: int) -> Candidates:
            held.settings = replace(held.settings, search=width)
            return view.candidates(queries, count)

        queries = view.lifted(some[0].numpy())
        best = view.scan(queries, BEST)
        name = f"the index ({held.settings.structure}) of {held.name}, {view.reach:,} items,"
        return measure(self.settings, queries, best, walk, view.arrays, name)

    def _read_manifest(self) -> IndexManifest:
        content = self._files.read(MANIFEST) if self._files.open() else None
        if content is None:
            raise FileNotFoundError(
                f"{self.address}: no index of this name; make one with 'gaussmatch index'"
            )
        return IndexManifest.loads(content, f"{self.address}: {MANIFEST}")


def _finish(client: Client, scratch: Path) -> None:
    """Also when nobody closed the index."""
    client.close()
    shutil.rmtree(scratch, ignore_errors=True)
