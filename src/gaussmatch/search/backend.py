"""What an index needs of the place where its items are kept.

``Index`` checks, encodes, ranks and explains; a backend stores and proposes candidates. A new one
is a subclass of ``Backend`` (of ``Database`` if it keeps files as bytes), a ``Searchable`` and an
entry in ``backends.SCHEMES``; the contract test of ``tests/index/test_backends.py`` then runs on
it. Ten methods must be written; the others are derived from them, and are written again where a
place can do better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.files import BusyError as IndexBusyError
from gaussmatch.files import sha256
from gaussmatch.search.manifest import Gallery, IndexManifest, IndexSettings, Record
from gaussmatch.search.topk import Searchable
from gaussmatch.search.where import Where

__all__ = ["BUILDING", "Backend", "Block", "IndexBusyError", "batched"]

T = TypeVar("T")

Block = tuple[Gaussian, list[Record]]
BUILDING = "building"
"""Note in the source of an index that is not whole yet."""
FIELD_ITEMS = 10_000
"""Items that are asked which metadata they have."""


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """At most ``size`` of them at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Backend(ABC):
    """A place that keeps galleries of Gaussians with their records, and the files of a model."""

    scans: ClassVar[bool] = True
    """Whether it can search a similarity that has no lift."""
    remote: bool = False
    """Whether answers come over a network, and may take long."""
    one_process: bool = False
    """Whether only one process may have it open."""

    place: str
    """Where it is, as a user types it."""
    manifest: IndexManifest
    wait: float = 30
    """Seconds to wait for another writer before ``IndexBusyError``."""
    similarity: Callable[[Gallery], Similarity]
    """How queries are scored among a gallery; set by the index. The first call loads the model."""

    @property
    def settings(self) -> IndexSettings:
        return self.manifest.parsed

    # ---- to be written ----

    @classmethod
    @abstractmethod
    def open(cls, place: str) -> Self:
        """``FileNotFoundError`` if there is no index."""

    @classmethod
    @abstractmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        """A new, empty index that holds these files; ``FileExistsError`` if there is one."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the index and close it."""

    @abstractmethod
    def reload(self) -> bool:
        """See what other processes have written since; whether there was anything."""

    @abstractmethod
    def save(self, manifest: IndexManifest, files: Mapping[str, bytes] | None = None) -> None:
        """Put the manifest, and these files, in the place of the old ones."""

    @abstractmethod
    def file(self, name: str) -> Path | None:
        """A file of the index on this machine; ``None`` if there is no such file."""

    @abstractmethod
    def blocks(self, gallery: Gallery, ids: Sequence[str] | None = None) -> Iterator[Block]:
        """Items with Gaussians and thumbnails, some at a time: all, or those of these ids that are
        there."""

    @abstractmethod
    def searchable(
        self, gallery: Gallery, where: Where, exclude: Collection[str]
    ) -> Sequence[Searchable]:
        """The items that may be found, for one search."""

    @abstractmethod
    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        """Add items; those whose ids are there are replaced."""

    @abstractmethod
    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        """Delete items that are there."""

    # ---- derived: make and open ----

    @classmethod
    @contextmanager
    def building(cls, place: str) -> Iterator[str]:
        """Gives the place to build a new index at; it is at ``place`` when the block is left.

        Here it is there under its name from the start, with a note; what a killed process left is
        removed by the next one that builds under this name."""
        try:
            there = cls.open(place)
        except FileNotFoundError:
            pass
        else:
            filled = there.manifest.form is not None
            if filled and BUILDING not in (there.manifest.source or {}):
                there.close()
                raise FileExistsError(f"{place} is an index already; choose another name")
            there.drop()
        try:
            yield place
        except ValueError:  # refused: nothing of it stays
            cls.open(place).drop()
            raise

    def stale(self, error: Exception) -> bool:
        """Whether a read failed because another process has replaced what was read."""
        return False

    def alive(self) -> bool:
        """Whether it answers now, said within seconds."""
        return True

    def close(self) -> None:  # noqa: B027
        """Leave it; nothing is left open by default."""

    # ---- derived: read ----

    def size(self, gallery: Gallery) -> int:
        return sum(1 for _ in self.records(gallery))

    def held(self, ids: Sequence[str], gallery: Gallery) -> set[str]:
        """Which of these ids are there."""
        return {record.id for _, some in self.blocks(gallery, ids) for record in some}

    def get(self, id: str, gallery: Gallery) -> tuple[Gaussian, Record] | None:
        """One item, as a batch of one, with its thumbnail."""
        for gaussians, records in self.blocks(gallery, [id]):
            return gaussians, records[0]
        return None

    def records(self, gallery: Gallery) -> Iterator[Record]:
        """All items, without thumbnails."""
        for _, some in self.blocks(gallery):
            yield from (replace(record, thumbnail=None) for record in some)

    def some(self, most: int, gallery: Gallery) -> Block | None:
        """At most ``most`` items, a cheap sample, without thumbnails."""
        parts: list[Gaussian] = []
        found: list[Record] = []
        for gaussians, records in self.blocks(gallery):
            room = most - len(found)
            parts.append(gaussians[:room])
            found += (replace(record, thumbnail=None) for record in records[:room])
            if len(found) >= most:
                break
        return (Gaussian.cat(parts), found) if found else None

    def fields(self, gallery: Gallery) -> set[str]:
        """Names of the metadata that items have; of a sample if there are many."""
        some = islice(self.records(gallery), FIELD_ITEMS)
        return {name for record in some for name in record.meta}

    def faults(self) -> Iterator[str]:
        """What is damaged: everything is read and held against its checksum."""
        marks = {f"run/{name}": digest for name, digest in self.manifest.run.items()}
        marks |= {name: mark.sha256 for name, mark in self.manifest.files.items()}
        for name, digest in marks.items():
            try:
                path = self.file(name)
            except ValueError as error:
                yield str(error)
                continue
            if path is None or sha256(path) != digest:
                yield f"{self.place}: {name} is {'missing' if path is None else 'damaged'}"

    def describe(self) -> dict[str, Any]:
        """What only this backend has to report."""
        return {}

    def copy(self, place: str) -> bool:
        """Copy its files to a new place of the same backend, as they are at one moment, while
        others write; whether such a copy can be made."""
        return False

    # ---- derived: change ----

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Held around every change: alone, and having seen all changes of others. If the block
        fails, what it has not saved does not count."""
        self.reload()
        yield

    def compact(self, gallery: Gallery) -> None:  # noqa: B027
        """Bring a gallery into the form that the settings ask for; by default it always is."""
