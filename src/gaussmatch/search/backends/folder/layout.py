"""An index on disk: immutable segments, and one manifest that says which of them count.

manifest.json              which segments make up each gallery; the only file that ever changes
calibration.json           what scores and uncertainties mean for this model
run/                       recipe, vocabulary and weights of the model: the index is self-contained
segments/NAME/             Gaussians, items and search structure of some items; never changed
segments/NAME.deleted-N.npy    the rows of a segment that were deleted
.gaussmatch-index          proof that this program made the folder
.lock                      held by the one process that writes

Everything new is written and synced first; then a new manifest takes the place of the old one in
one step. Interrupted before that step, the old index remains; after it, the new one. The next
writer removes what an interrupted one left behind. Only files under names that this program gives
are ever removed: whatever else a user keeps in the folder stays.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from gaussmatch import files
from gaussmatch.files import atomic, sha256, sync
from gaussmatch.models.run import CALIBRATION, EXPORTED, MODEL
from gaussmatch.search.manifest import GALLERIES, MANIFEST, FileMark, IndexManifest, SegmentInfo

RUN, SEGMENTS, LOCK, MARKER = "run", "segments", ".lock", ".gaussmatch-index"
BUILDING = ".building.lock"
_SEGMENT = re.compile(rf"({'|'.join(GALLERIES)})-[0-9a-f]{{12}}")
_DELETED = re.compile(rf"{_SEGMENT.pattern}\.deleted-\d+\.npy")
_IN_SEGMENT = re.compile(
    r"items\.sqlite|records\.(jsonl|npy)|(mean|log_var|uncertainty|lifted\d|rows\d)\.npy"
    r"|lift\.safetensors|graph\d\.faiss|graph\.json"
)
_AT_TOP = re.compile(r"(manifest|calibration)\.json|\.lock|\.gaussmatch-index")
_IN_RUN = re.compile("|".join(map(re.escape, (*MODEL, *EXPORTED))))
_WRITTEN, _SEALED = (MANIFEST, CALIBRATION), ("lift.safetensors",)
"""What is written beside its place first, at the top and in a segment."""


def load_manifest(folder: Path) -> IndexManifest:
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is not an index: no {MANIFEST}; make one with 'gaussmatch index'"
        )
    return IndexManifest.loads(path.read_bytes(), path)


def save_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Take the place of the manifest on disk, in one step."""
    sync(folder / SEGMENTS)
    with atomic(folder / MANIFEST) as temporary:
        temporary.write_bytes(manifest.dumps())


def mark_of(path: Path) -> FileMark:
    return FileMark(path.stat().st_size, sha256(path))


def marks(folder: Path, part: SegmentInfo) -> dict[Path, FileMark]:
    """The files of a segment."""
    found = {folder / SEGMENTS / part.name / name: mark for name, mark in part.files.items()}
    if part.deleted is not None and part.deleted_mark is not None:
        found[folder / SEGMENTS / part.deleted] = part.deleted_mark
    return found


def check_sizes(sizes: Mapping[str, int], *, gone_ok: bool = False) -> None:
    """A clear error if a file is missing or not as long as it was.

    Args:
        sizes: path → bytes.
        gone_ok: that it may be missing: one that is open stays readable.
    """
    for path, size in sizes.items():
        try:
            found = os.stat(path).st_size
        except FileNotFoundError:  # it names the file
            if not gone_ok:
                raise
            continue
        if found != size:
            raise ValueError(
                f"{path}: {found} bytes, but {size} were written; the index is damaged, "
                "restore it or make it again"
            )


def fault(path: Path, mark: FileMark) -> Iterator[str]:
    """What is wrong with a file, if anything. A negative size is not compared."""
    try:
        found = mark_of(path)
    except OSError as error:
        yield f"{path}: {error.strerror}"
        return
    if mark.size >= 0 and found.size != mark.size:
        yield f"{path}: {found.size} bytes, but {mark.size} were written"
    elif found.sha256 != mark.sha256:
        yield f"{path}: its content is not what was written"


def check_mark(path: Path, mark: FileMark) -> None:
    for text in fault(path, mark):
        raise ValueError(f"{text}; the index is damaged, restore it or make it again")


def locked(folder: Path, wait: float) -> AbstractContextManager[None]:
    """Hold the lock of an index; a second writer waits ``wait`` seconds."""
    busy = (
        f"{folder}: another process is writing to this index, also after {wait:g} seconds; "
        "try again when it is done, or wait longer (--wait)"
    )
    return files.locked(folder / LOCK, busy, wait)


@contextmanager
def building(work: Path, target: Path, wait: float) -> Iterator[None]:
    """Alone in a folder in which an index is built that then takes the name ``target``."""
    check_absent(target)
    files.claim_folder(work, MARKER)
    work.mkdir(parents=True, exist_ok=True)
    (work / MARKER).touch()
    busy = f"{target}: another process is making this index; try again when it is done"
    with files.locked(work / BUILDING, busy, wait):
        check_absent(target)  # another process may have made it meanwhile
        try:
            discard(work)  # what a killed process left; the lock stays
            (work / MARKER).touch()
            yield
        except BaseException:
            (work / BUILDING).unlink(missing_ok=True)
            discard(work)
            raise
        (target / BUILDING).unlink(missing_ok=True)


def check_absent(target: Path) -> None:
    if target.exists():
        raise FileExistsError(f"{target} exists; choose another folder for the new index")


def claim(folder: Path) -> None:
    """Make a folder ours: a new or empty one, or what a killed ``create`` left, known by its
    marker. Any other is refused, and nothing in it is touched."""
    if (folder / MANIFEST).exists() and (folder / SEGMENTS).exists():
        raise FileExistsError(f"{folder} is an index already; add to it, or choose another folder")
    files.claim_folder(folder, MARKER)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def sweep(folder: Path, manifest: IndexManifest) -> None:
    """Remove what no manifest names: leftovers of a killed writer, segments that were merged."""
    _remove_segments(folder, {name for p in manifest.parts() for name in (p.name, p.deleted)})
    files.sweep(folder, _WRITTEN)


def discard(folder: Path) -> None:
    """Remove an index, if it is one; what is not of it stays, with the folder around it."""
    if not (folder / MARKER).is_file():
        if not (folder / MANIFEST).is_file():
            return
        load_manifest(folder)  # made before there were markers, or refused
    _remove_segments(folder, set())
    _remove(folder / RUN, _IN_RUN)
    files.sweep(folder, _WRITTEN)
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
        if _SEGMENT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            _remove(path, _IN_SEGMENT)
            files.sweep(path, _SEALED)
            with suppress(OSError):  # a foreign file is in it
                path.rmdir()
    _remove(folder / SEGMENTS, _DELETED, kept)


def _remove(folder: Path, names: re.Pattern[str], kept: Collection[str | None] = ()) -> None:
    """The files of a folder that have such a name."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if names.fullmatch(path.name) and path.name not in kept:
            path.unlink(missing_ok=True)
