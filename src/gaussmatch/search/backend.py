"""What an index needs of the place where its items are kept.

``Index`` checks, encodes, ranks and explains; a backend stores and proposes candidates. A new one
is a folder of ``backends`` with a subclass of ``Backend``, a ``Searchable`` and an entry in
``backends.SCHEMES``; the contract test of ``tests/index/test_backends.py`` then runs on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Self

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.files import BusyError as IndexBusyError
from gaussmatch.search.manifest import Gallery, IndexManifest, IndexSettings
from gaussmatch.search.record import Record
from gaussmatch.search.topk import Searchable
from gaussmatch.search.where import Where

__all__ = ["BUILDING", "Backend", "Block", "IndexBusyError"]

Block = tuple[Gaussian, list[Record]]
BUILDING = "building"
"""Note in the source of an index that is not whole yet."""


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

    # ---- make and open ----

    @classmethod
    @abstractmethod
    def open(cls, place: str) -> Self:
        """``FileNotFoundError`` where there is no index."""

    @classmethod
    @abstractmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        """A new, empty index that holds these files; ``FileExistsError`` if there is one."""

    @classmethod
    @abstractmethod
    def building(cls, place: str) -> AbstractContextManager[str]:
        """Gives the place to build a new index at; it is at ``place`` when the block is left."""

    @abstractmethod
    def reload(self) -> bool:
        """See what other processes have written since; whether there was anything."""

    @abstractmethod
    def stale(self, error: Exception) -> bool:
        """Whether a read failed because another process has replaced what was read."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def drop(self) -> None:
        """Remove the index and close it."""

    # ---- read ----

    @abstractmethod
    def file(self, name: str) -> Path | None:
        """A file of the index on this machine; ``None`` if there is no such file."""

    @abstractmethod
    def size(self, gallery: Gallery) -> int: ...

    @abstractmethod
    def held(self, ids: Sequence[str], gallery: Gallery) -> set[str]:
        """Which of these ids are there."""

    @abstractmethod
    def get(self, id: str, gallery: Gallery) -> tuple[Gaussian, Record] | None:
        """One item, as a batch of one, with its thumbnail."""

    @abstractmethod
    def records(self, gallery: Gallery) -> Iterator[Record]:
        """All items, without thumbnails."""

    @abstractmethod
    def blocks(self, gallery: Gallery) -> Iterator[Block]:
        """All items with Gaussians and thumbnails, some at a time."""

    @abstractmethod
    def some(self, most: int, gallery: Gallery) -> Block | None:
        """At most so many items, as typical as is cheap; without thumbnails."""

    @abstractmethod
    def fields(self, gallery: Gallery) -> set[str]:
        """Names of the metadata that items have."""

    @abstractmethod
    def searchable(
        self, gallery: Gallery, where: Where, exclude: Collection[str]
    ) -> Sequence[Searchable]:
        """The items that may be found, for one search."""

    @abstractmethod
    def faults(self) -> Iterator[str]:
        """What is damaged, file by file: everything is read and held against its checksum."""

    def describe(self) -> dict[str, Any]:
        """What only this backend has to report."""
        return {}

    def copy(self, place: str) -> bool:
        """Copy its files to a new place of the same backend, as they are at one moment, while
        others write; whether such a copy can be made."""
        return False

    # ---- change ----

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Held around every change: alone, and having seen all changes of others. If the block
        fails, what it has not saved does not count."""

    @abstractmethod
    def save(self, manifest: IndexManifest, files: Mapping[str, bytes] | None = None) -> None:
        """Put the manifest, and these files, in the place of the old ones."""

    @abstractmethod
    def add(
        self, gaussians: Gaussian, records: Sequence[Record], gallery: Gallery, form: dict[str, int]
    ) -> None:
        """Add items; those whose ids are there are replaced."""

    @abstractmethod
    def delete(self, ids: Sequence[str], gallery: Gallery) -> None:
        """Delete items that are there."""

    @abstractmethod
    def compact(self, gallery: Gallery) -> None:
        """Bring a gallery into the form that the settings ask for."""
