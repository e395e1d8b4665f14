"""An index whose items are in Milvus."""

from __future__ import annotations

import re
from collections.abc import Collection as Some
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity as similarity_called
from gaussmatch.core.similarities.base import other_side
from gaussmatch.search.backend import Block
from gaussmatch.search.backends.database import DECLARED, Database, gaussian
from gaussmatch.search.backends.milvus import rows as coding
from gaussmatch.search.backends.milvus.client import (
    NO_COLLECTION,
    OLDEST,
    Address,
    Client,
    MilvusError,
    connect,
)
from gaussmatch.search.backends.milvus.collection import (
    Collection,
    CollectionView,
    FilesCollection,
    count,
)
from gaussmatch.search.backends.milvus.filter import expression, id_of
from gaussmatch.search.backends.milvus.filter import ids as among
from gaussmatch.search.lift import FILE as LIFT
from gaussmatch.search.lift import SAMPLE, Lift
from gaussmatch.search.manifest import (
    GALLERIES,
    MANIFEST,
    Gallery,
    IndexManifest,
    Record,
    SegmentInfo,
    StructureName,
)
from gaussmatch.search.where import Where

COUNT = "count"
"""Of a collection's files: how many items the last writer left, so that ``verify`` sees a loss."""


class Milvus(Database):
    """Three collections: NAME_images_N and NAME_captions_N, made when their first items come, and
    NAME_about, which keeps the files of the index: it is self-contained.

    What differs from a folder: a change counts upsert by upsert, not as a whole (repeating it after
    an interruption is safe, as everything goes by id); any number of processes may add at once
    after the first items are in; and similarities without a lift are refused.
    """

    scans: ClassVar[bool] = False

    def __init__(self, address: Address, client: Client) -> None:
        self.address, self._client = address, client
        self.one_process = not address.remote
        self._files = FilesCollection(client, address.name)
        self._collections: dict[str, Collection] = {}
        self._opened = False
        super().__init__(str(address), client.close)

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
            if address.remote:
                _check_version(address, client, manifest.similarity)
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

    def alive(self) -> bool:
        return self._client.alive()

    def stale(self, error: Exception) -> bool:
        return isinstance(error, MilvusError) and error.code == NO_COLLECTION

    def drop(self) -> None:
        """With all leftovers. Its files go last: if interrupted, it can be dropped again."""
        ours = re.compile(rf"{self.address.name}_({'|'.join(GALLERIES)})_\d+")
        for name in self._client("list_collections"):
            if ours.fullmatch(name):
                self._client.drop(name, coding.FIELDS)
        self._files.drop()
        self.close()

    # ---- read ----

    def _read(self, name: str, fresh: bool = True) -> bytes | None:
        self._opened = self._opened or self._files.open()
        if not self._opened:
            return None
        return self._files.read(name, "Strong" if fresh else self.address.consistency)

    def _write(self, files: Mapping[str, bytes]) -> None:
        """A manifest takes the place of the old one in one step, as it is one row."""
        for name, content in files.items():
            self._files.write(name, content)

    def _see(self, manifest: IndexManifest) -> bool:
        """Items are always seen as they are."""
        changed = super()._see(manifest)
        if changed:
            self._collections = {}
        return changed

    def size(self, gallery: Gallery) -> int:
        held = self._held(gallery)
        return 0 if held is None else held.count()

    def held(self, ids: Sequence[str], gallery: Gallery) -> set[str]:
        held = self._held(gallery)
        found = [] if held is None else held.rows(ids, ["id"], "Strong")
        return {id_of(row["id"]) for row in found}

    def get(self, id: str, gallery: Gallery) -> tuple[Gaussian, Record] | None:
        held = self._held(gallery)
        if held is None:
            return None
        found = held.rows([id], [*held.wanted(), "thumbnail"], held.level)
        return (gaussian(found, self._form), coding.record(found[0])) if found else None

    def records(self, gallery: Gallery) -> Iterator[Record]:
        held = self._held(gallery)
        for rows in () if held is None else held.all(["id", "record"]):
            yield from (coding.record(row) for row in rows)

    def blocks(self, gallery: Gallery, ids: Sequence[str] | None = None) -> Iterator[Block]:
        held = self._held(gallery)
        if held is not None:
            fields = [*held.wanted(), "thumbnail"]
            found = held.all(fields) if ids is None else iter([held.rows(ids, fields, "Strong")])
            yield from self._items(found)

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Some[str]
    ) -> list[CollectionView]:
        held = self._held(gallery)
        if held is None:
            return []
        condition = expression(where, held.columns)
        if exclude:
            condition = " and ".join(filter(None, [condition, among([*exclude], inside=False)]))
        return [CollectionView(held, self.similarity(gallery), condition)]

    def faults(self) -> Iterator[str]:
        """Of its files; and items that are gone, though nobody deleted them by this library."""
        yield from super().faults()
        for part in self._parts():
            if self._read(f"{part.name}/{LIFT}") is None:
                yield f"{self.place}: {part.name}/{LIFT} is missing"
            noted, there = self._read(f"{part.name}/{COUNT}"), count(self._client, part.name)
            if noted is not None and there < int(noted):
                yield f"{part.name}: {int(noted) - there:,} of {int(noted):,} items are missing"

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "consistency": self.address.consistency}

    # ---- change ----

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody is kept out: everything goes by id."""
        yield

    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        """In batches; what was sent before an interruption counts."""
        held, few, fields = self._held(gallery), gaussians[:SAMPLE], self.settings.fields
        planned = {name: (DECLARED[type_], n) for n, (name, type_) in enumerate(fields.items())}
        lift = Lift.of(self.similarity(gallery), gallery, few) if held is None else held.lift
        columns = planned if held is None else held.columns
        rows = coding.rows(gaussians, records, lift, columns)  # refuses before anything is made
        if held is None:
            held = self._new_collection(gallery, form, lift, len(few), self.settings.structure)
        held.add(rows)
        self._note_count(held, held.count(level="Session"))

    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        held = self._held(gallery)
        if held is not None:
            left = held.count(level="Strong") - len(ids)
            self._note_count(held, left)  # first: nothing is lost in between
            held.delete(ids)

    def compact(self, gallery: Gallery) -> None:
        """See ``Database.compact``. (Milvus itself joins segments and drops what was deleted.)"""
        super().compact(gallery)
        self._collections.pop(gallery, None)  # it is searched so wide from now on

    # ---- inside ----

    def _declared(self, gallery: Gallery) -> dict[str, str]:
        names, held = {letter: name for name, letter in DECLARED.items()}, self._held(gallery)
        found = {} if held is None else held.columns
        return {name: names[type_] for name, (type_, _) in found.items()}

    def _settled(self, gallery: Gallery) -> CollectionView:
        held = self._held(gallery)
        assert held is not None
        if self.address.remote:
            held.settle()
        return CollectionView(held, self.similarity(gallery), "")

    def _held(self, gallery: Gallery) -> Collection | None:
        """The collection of a gallery; ``None`` before its first item."""
        if not self._has(gallery):
            return None
        if gallery not in self._collections:
            parts = self.manifest.galleries[gallery]
            lift = self._load_lift(parts[0].name, gallery)
            held = self._collection(parts[0], gallery, self._form, lift)
            if self._client("list_indexes", held.name, "lift0"):
                self._client("load_collection", held.name)
            else:
                held.index()  # a process was killed while it changed the structure
            self._collections[gallery] = held
        return self._collections[gallery]

    def _collection(
        self, part: SegmentInfo, gallery: Gallery, form: dict[str, int], lift: Lift
    ) -> Collection:
        structure, width = part.structure, self._width(part)
        settings = replace(self.settings, structure=structure, search=width)  # type: ignore[arg-type]
        columns = coding.columns(self._client("describe_collection", part.name)["fields"])
        level = self.address.consistency
        return Collection(self._client, part.name, gallery, form, lift, settings, level, columns)

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
        fields, settings = self.settings.fields, replace(self.settings, structure=structure)
        self._client.drop(name, coding.FIELDS)  # of a process that was killed
        params = coding.index_params(lift, settings)
        params.extend(coding.column_params(fields))
        schema = coding.schema(form, lift, fields, self.address.mmap)
        self._client("create_collection", name, schema=schema, index_params=params)
        self._save_lift(name, lift)
        part = SegmentInfo(name, typical, structure)
        made = self._collection(part, gallery, form, lift)
        for some in () if old is None else old.all([*old.wanted(), "thumbnail"]):
            items = gaussian(some, form), [*map(coding.record, some)]
            made.add(coding.rows(*items, lift, made.columns))
        self.save(replace(self.manifest.with_parts(gallery, (part,)), form=form))
        self._collections[gallery] = made
        return made

    def _again(self, gallery: Gallery, lift: Lift, typical: int) -> None:
        """Into a new collection."""
        old, structure = self._held(gallery), self.settings.structure
        assert old is not None
        made = self._new_collection(gallery, self._form, lift, typical, structure, old)
        self._note_count(made, made.count(level="Session"))
        self._client("drop_collection", old.name)

    def _restructure(self, gallery: Gallery, structure: StructureName) -> None:
        """In place. It is noted first: if interrupted, the next to open it builds what is noted."""
        held, part = self._held(gallery), self.manifest.galleries[gallery][0]
        assert held is not None
        self.save(self.manifest.with_parts(gallery, (replace(part, structure=structure),)))
        held.settings = replace(self.settings, structure=structure)
        held.restructure()

    def _note_count(self, held: Collection, count: int) -> None:
        self._files.write(f"{held.name}/{COUNT}", str(count).encode())

    def _parts(self) -> list[SegmentInfo]:
        return [part for parts in self.manifest.galleries.values() for part in parts]

    def _items(self, blocks: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[Block]:
        for rows in blocks:
            if rows:
                yield gaussian(rows, self._form), [coding.record(row) for row in rows]


def _check_version(address: Address, client: Client, name: str) -> None:
    """Refuse a server that fails only when the first items come."""
    some = Gaussian(torch.zeros(1, 2), torch.zeros(1, 2))
    sides = (similarity_called(name).for_query(other_side(g)) for g in GALLERIES)
    needed = (2, 4) if max(len(s.lift_images(some)) for s in sides) > 1 else OLDEST
    if client.version < needed:
        found, least = (".".join(map(str, v)) for v in (client.version, needed))
        raise ValueError(
            f"{address} is Milvus {found}, and {name} needs {least} or later; update the server, "
            "or keep the index in a folder"
        )
