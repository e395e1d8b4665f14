"""An index on disk: immutable segments, and one manifest that says which of them count.

manifest.json              which segments make up each gallery; the only file that ever changes
calibration.json           what scores and uncertainties mean for this model
run/                       recipe, vocabulary and weights of the model: the index is self-contained
segments/NAME/             Gaussians, items and search structure of some items; never changed
segments/NAME.deleted-N.npy    the rows of a segment that were deleted
.gaussmatch-index          proof that this program made the folder
.lock                      held by the one process that writes

Everything new is written and synced first; then a new manifest takes the place of the old one in
one step. A kill before that step leaves the old index, one after it the new; what a killed writer
left behind is removed by the next. Only files under names that this program gives are ever removed:
whatever else a user keeps in the folder stays.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from gaussmatch.files import read_json, write_json
from gaussmatch.trust.calibration import GALLERIES as GALLERIES
from gaussmatch.trust.calibration import Gallery as Gallery

MANIFEST, CALIBRATION, RUN, SEGMENTS, LOCK, MARKER = (
    "manifest.json",
    "calibration.json",
    "run",
    "segments",
    ".lock",
    ".gaussmatch-index",
)
_SEGMENT = re.compile(rf"({'|'.join(GALLERIES)})-[0-9a-f]{{12}}")
_DELETED = re.compile(rf"{_SEGMENT.pattern}\.deleted-\d+\.npy")
_IN_SEGMENT = re.compile(
    r"items\.sqlite|records\.(jsonl|npy)|(mean|log_var|uncertainty|lifted\d)\.npy"
    r"|lift\.safetensors|graph\d\.faiss"
)
_AT_TOP = re.compile(r"(manifest|calibration)\.json|\.lock|\.gaussmatch-index")
_IN_RUN = re.compile(r"recipe\.yaml|vocabulary\.json|model\.safetensors")
_TEMPORARY = re.compile(r"\.(manifest|calibration)\.json\.[a-z0-9_]{8}")
FORMAT = 2


def known(gallery: str) -> Gallery:
    """A clear error unless it is the name of a gallery."""
    if gallery not in GALLERIES:
        raise ValueError(f"no gallery {gallery!r}; choose {' or '.join(GALLERIES)}")
    return gallery


class IndexBusyError(OSError):
    """Another process is writing to the index."""


@dataclass(frozen=True)
class Part:
    """A segment as the manifest lists it.

    Args:
        structure: how it is searched.
        files: name → size of each of its files, to notice a truncated one.
        deleted: the file of deleted rows, if any, and ``dead``, how many they are.
    """

    name: str
    items: int
    structure: str
    files: Mapping[str, int] = field(hash=False)
    deleted: str | None = None
    dead: int = 0

    @property
    def live(self) -> int:
        return self.items - self.dead


@dataclass(frozen=True)
class Manifest:
    """What is in an index.

    Args:
        similarity: its name.
        settings: see ``Settings``.
        run: file → sha256 of the run that was copied in; empty for an index of bare Gaussians.
        form: ``{"dim": D, "variances": 0, 1 or D}`` of its Gaussians, once there are some.
        source: where the items came from, for ``update``.
        generation: how often it was written.
    """

    similarity: str
    settings: Mapping[str, Any]
    run: Mapping[str, str]
    galleries: Mapping[str, tuple[Part, ...]] = field(
        default_factory=lambda: dict.fromkeys(GALLERIES, ())
    )
    form: Mapping[str, int] | None = None
    source: Mapping[str, Any] | None = None
    generation: int = 0

    def save(self, folder: Path) -> Manifest:
        """Take the place of the manifest on disk, in one step; gives what was written."""
        new = replace(self, generation=self.generation + 1)
        sync(folder / SEGMENTS)
        write_json(folder / MANIFEST, {"format": FORMAT, **asdict(new)})
        sync(folder)
        return new

    @staticmethod
    def load(folder: Path) -> Manifest:
        path = folder / MANIFEST
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder} is not an index: no {MANIFEST}; make one with 'gaussmatch index'"
            )
        content = read_json(path)
        found = content.pop("format", None) if isinstance(content, dict) else None
        if found != FORMAT:
            raise ValueError(
                f"{path}: format {found!r}, but this version reads {FORMAT}; "
                "make the index again, or use the version that made it"
            )
        try:
            galleries = {
                name: tuple(Part(**part) for part in parts)
                for name, parts in content.pop("galleries").items()
            }
            return Manifest(galleries=galleries, **content)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: not a manifest of an index ({error})") from error

    def with_parts(self, gallery: Gallery, parts: tuple[Part, ...]) -> Manifest:
        return replace(self, galleries={**self.galleries, gallery: parts})


def check_files(folder: Path, part: Part) -> None:
    """A clear error if a file of a segment is missing or shorter than it was."""
    for name, size in part.files.items():
        path = folder / SEGMENTS / part.name / name
        found = path.stat().st_size  # FileNotFoundError names it
        if found != size:
            raise ValueError(
                f"{path}: {found} bytes, but {size} were written; the index is damaged, restore "
                "it or make it again"
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of an index; a second writer is refused. A kill releases it."""
    with open(folder / LOCK, "a", encoding="utf-8") as file:
        _lock(file, folder)
        yield


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock file that is there only while it is held."""
    while True:
        with open(path, "a", encoding="utf-8") as file:
            _lock(file, path)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    try:
                        yield
                    finally:
                        path.unlink(missing_ok=True)
                    return
        # whoever held it has removed it since it was opened: try again


def _lock(file: TextIO, what: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise IndexBusyError(
            f"{what}: another process is writing to this index; try again when it is done"
        ) from None


def claim(folder: Path) -> None:
    """Make a folder ours: a new or empty one, or what a killed ``create`` left, known by its
    marker. Any other is refused, and nothing in it is touched."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; choose another place for the index")
    if (folder / MANIFEST).exists() and (folder / SEGMENTS).exists():
        raise FileExistsError(f"{folder} is an index already; add to it, or choose another folder")
    if not (folder / MARKER).is_file() and folder.is_dir():
        foreign = sorted(path.name for path in folder.iterdir())
        if foreign and not (folder / MARKER).is_file():  # nor made by another process just now
            raise FileExistsError(
                f"{folder} is not empty ({foreign[0]}); choose a new folder for the index"
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def sweep(folder: Path, manifest: Manifest) -> None:
    """Remove what no manifest names: leftovers of a killed writer, segments that were merged."""
    parts = [part for parts in manifest.galleries.values() for part in parts]
    kept = {part.name for part in parts} | {part.deleted for part in parts}
    _remove_segments(folder, kept)
    _remove(folder, _TEMPORARY)


def discard(folder: Path) -> None:
    """Remove an index, if it is one; what is not of it stays, with the folder around it."""
    if not (folder / MARKER).is_file():
        if not (folder / MANIFEST).is_file():
            return
        Manifest.load(folder)  # made before there were markers, or refused
    _remove_segments(folder, set())
    _remove(folder / RUN, _IN_RUN)
    _remove(folder, _TEMPORARY)
    _remove(folder, _AT_TOP)
    for path in (folder / SEGMENTS, folder / RUN, folder):
        with suppress(OSError):  # not empty, or not there
            path.rmdir()


def _remove_segments(folder: Path, kept: set[str | None]) -> None:
    if not (folder / SEGMENTS).is_dir():
        return
    for path in (folder / SEGMENTS).iterdir():
        if path.name in kept:
            continue
        if _SEGMENT.fullmatch(path.name) and path.is_dir():
            _remove(path, _IN_SEGMENT)
            with suppress(OSError):  # a foreign file is in it
                path.rmdir()
    _remove(folder / SEGMENTS, _DELETED, kept)


def _remove(folder: Path, names: re.Pattern[str], kept: Collection[str | None] = ()) -> None:
    """The files of a folder that have such a name."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if names.fullmatch(path.name) and path.name not in kept:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
