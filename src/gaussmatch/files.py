"""Atomic files: written beside the target, synced, then renamed. Whose a folder is, folders that
are made once, plain names, locks, checksums and JSON."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import logging
import math
import os
import random
import re
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gaussmatch.checks import extra

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ImportError as error:
    raise ImportError(
        "gaussmatch needs the file locks of Linux and macOS; on Windows, run it in WSL"
    ) from error

_log = logging.getLogger(__name__)
_PARTIAL = ".gaussmatch-partial"
"""The suffix of unfinished files, which no other program uses."""
ABANDONED = 24 * 60 * 60
"""Seconds after which nobody is writing an unfinished file any more."""
OURS = ".gaussmatch"
"""The file that lists what this program wrote into a folder."""


class BusyError(OSError):
    """Another process holds a lock."""


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; a clean exit renames it to ``path``.

    An interruption or a power cut leaves either the old file or the new one: the content is
    synced before the rename, and the folder after it.

    >>> import tempfile, pathlib
    >>> target = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic(target) as p:
    ...     _ = p.write_text("whole")
    >>> target.read_text()
    'whole'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(_PARTIAL, f".{target.name}.", target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        sync(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
        sync(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed writers of these files left behind; call this with the lock held."""
    known = "|".join(map(re.escape, names))
    partial = r"\.[a-z0-9_]{8}" + re.escape(_PARTIAL)
    left = re.compile(rf"\.+({known})({partial})+")  # also one that was written into another
    for path in folder.iterdir() if folder.is_dir() else ():
        if left.fullmatch(path.name):
            path.unlink(missing_ok=True)


def plain_name(name: object, where: object) -> str:
    """The name of a file as a manifest may give it: inside its folder, and not hidden. Whoever
    reads a manifest checks every name here, before a path is made of it.

    >>> plain_name("model.safetensors", "run.json")
    'model.safetensors'
    >>> plain_name("../../.bashrc", "manifest.json")
    Traceback (most recent call last):
    ValueError: manifest.json: '../../.bashrc' is not a plain file name; do not use this folder
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]{0,199}", name, re.ASCII):
        shown = repr(name) if len(repr(name)) < 100 else f"{repr(name)[:100]}…"
        raise ValueError(f"{where}: {shown} is not a plain file name; do not use this folder")
    return name


def claim_folder(
    folder: Path,
    proof: str | None = OURS,
    names: Collection[str] | None = None,
    ignore: Collection[str] = (),
) -> None:
    """Make sure that a folder may be written to: a new or empty one, or one with a file that proves
    that this program made it. Any other is refused, and nothing in it is touched.

    Args:
        proof: the file that proves it; ``None`` if the folder must be empty.
        names: what will be written, if ``proof`` is to list it: a file of such a name that is not
            listed yet is somebody else's, and refused too.
        ignore: what else does not count, such as a lock.

    >>> import tempfile, pathlib
    >>> photos = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (photos / "dog.jpg").write_text("mine")
    >>> claim_folder(photos / "audit", names=["audit.csv"])
    >>> claim_folder(photos, names=["audit.csv"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileExistsError: ... is not empty (audit) and has no .gaussmatch; choose a new folder with --out
    """
    advice = "choose a new folder with --out"
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; {advice}")
    ours = {proof, *ignore}
    there = sorted(os.listdir(folder)) if folder.is_dir() else []
    foreign = [name for name in there if name not in ours and not name.endswith(_PARTIAL)]
    # nor made by another process just now
    if foreign and (proof is None or not (folder / proof).is_file()):
        missing = "" if proof is None else f" and has no {proof}"
        raise FileExistsError(f"{folder} is not empty ({foreign[0]}){missing}; {advice}")
    for path in folder.rglob(f".*{_PARTIAL}"):  # of writers that were killed
        with suppress(FileNotFoundError):  # another process was faster
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
    if names is None or proof is None:
        return
    listed = set(map(str, read_json(folder / proof, list) if (folder / proof).is_file() else ()))
    for name in names:
        if name not in listed and os.path.lexists(folder / name):
            raise FileExistsError(f"{folder / name} was not written by gaussmatch; {advice}")
    if not (folder / proof).is_file() or not listed.issuperset(names):
        write_json(folder / proof, sorted(listed.union(names)))


def claim_file(path: Path, mark: str) -> None:
    """Make sure that one file may be written: a new one, or one that holds ``mark``, as ours do.

    >>> import tempfile, pathlib
    >>> notes = pathlib.Path(tempfile.mkdtemp()) / "notes.json"
    >>> claim_file(notes, '"verdict"')
    >>> _ = notes.write_text("mine")
    >>> claim_file(notes, '"verdict"')  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    FileExistsError: ...notes.json was not written by gaussmatch; choose another name
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if os.path.lexists(path) and mark.encode() not in path.read_bytes():
        raise FileExistsError(f"{path} was not written by gaussmatch; choose another name")


@contextmanager
def locked(path: Path, busy: str, wait: float = 0) -> Iterator[None]:
    """Hold a lock file; raises ``BusyError(busy)`` if another process still holds it after ``wait``
    seconds. The end of the process releases it.

    The file stays: if it were removed, a third process could lock a new file of the same name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait
    with open(path, "a", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise BusyError(busy) from None
            time.sleep(random.uniform(0.005, 0.02))  # several that wait take turns
        yield


def open_below(folder: str | os.PathLike[str], name: str) -> FileIO:
    """A regular file below a folder, opened for reading. No link below the folder is followed: a
    name that was checked may be a link to another file a moment later, an open file stays what it
    is. Whatever does not fit is an ``OSError``."""
    *parents, last = name.split("/")
    if any(part in ("", ".", "..") for part in (*parents, last)) or "\0" in name:
        raise FileNotFoundError(errno.ENOENT, "not a name below the folder", name)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # or a named pipe would keep us waiting
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parents:
            below = os.open(part, flags | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        file = FileIO(os.open(last, flags, dir_fd=here))
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise FileNotFoundError(errno.ENOENT, "not a file", name)
    return file


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_LIST = "files.json"
"""What ``made_once`` leaves in a folder: the size and the SHA-256 of every file."""


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """``folder``, filled by ``make(work)`` unless it is there and whole.

    The work is done in a folder beside it, which takes its name in one step: a half-written folder
    is never visible. If it is interrupted, ``make`` is given the same work folder again, and may
    resume with what it finds there. Of several processes one makes the folder, and the others wait.
    A folder whose files do not match its list (a full disk, a damaged file) is made again with a
    warning.
    """
    if damage(folder) is None:
        return folder
    lock = folder.with_name(f".{folder.name}.lock")
    with locked(lock, f"{folder} is in use", wait=math.inf):
        fault = damage(folder)
        if fault is None:  # another process made it
            return folder
        if folder.exists():
            if not (folder / _LIST).exists():
                raise FileExistsError(
                    f"{folder} has no {_LIST}, so gaussmatch did not make it; move it elsewhere"
                )
            _log.warning("%s: %s; making it again", folder, fault)
            shutil.rmtree(folder)
        work = folder.with_name(f".{folder.name}.work")
        work.mkdir(exist_ok=True)
        for path in work.rglob(f".*{_PARTIAL}"):  # of a writer that was killed
            path.unlink()
        make(work)
        listed = {p.name: [p.stat().st_size, sha256(p)] for p in sorted(work.iterdir())}
        write_json(work / _LIST, listed)
        os.rename(work, folder)
        sync(folder.parent)
    return folder


def damage(folder: Path) -> str | None:
    """What is wrong with a folder of ``made_once``, if anything."""
    try:
        for name, (size, checksum) in read_json(folder / _LIST, dict).items():
            path = folder / plain_name(name, folder / _LIST)
            if path.stat().st_size != size or sha256(path) != checksum:
                return f"{name} is damaged"
    except (OSError, ValueError, TypeError) as error:
        return f"not whole ({error})"
    return None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    write_text(path, to_json(value))


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write safetensors atomically, with the permissions of the umask. (The library's ``save_file``
    makes them readable by their owner alone, and leaves ``.tmp…`` files when interrupted.)"""
    from safetensors.torch import save

    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic(path) as temporary:
        temporary.write_bytes(save(held))


def new_array(
    path: Path, shape: Sequence[int], dtype: type[np.floating[Any]] = np.float32
) -> np.ndarray:
    """A new ``.npy``, mapped for writing. Its place on disk is taken first: a disk that is full
    while one writes to a map ends the process."""
    array: np.ndarray = np.lib.format.open_memmap(path, "w+", dtype, tuple(shape))
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except (OSError, AttributeError) as error:  # not every system and file system can
            if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OSError(f"{path}: cannot be written ({error})") from error
    return array


def write_rows(
    path: Path, shape: Sequence[int], blocks: Iterable[np.ndarray], dtype: type[np.floating[Any]]
) -> None:
    """A ``.npy`` of many rows, atomically, with one block of them in memory at a time."""
    with atomic(path) as temporary:
        array, row = new_array(temporary, shape, dtype), 0
        for block in blocks:
            array[row : row + len(block)] = block
            row += len(block)
        array.flush()  # type: ignore[attr-defined]
        del array


def load_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read safetensors; an error names the file and what is wrong."""
    from safetensors.torch import load_file

    with _whole_tensors(path):
        return load_file(os.fspath(path))


def load_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The same as numpy arrays."""
    from safetensors.numpy import load_file

    with _whole_tensors(path):
        return load_file(os.fspath(path))


@contextmanager
def _whole_tensors(path: str | os.PathLike[str]) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise ValueError(
            f"{path}: not a complete safetensors file ({error}); copy it again or make it again"
        ) from error


def to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def read_json(path: str | os.PathLike[str], kind: type | None = None) -> Any:
    """Read JSON; an error names the file, the line and what is wrong.

    Args:
        kind: what it must hold, such as ``dict``.
    """
    content = parse_json(Path(path).read_bytes(), path)
    if kind is not None and not isinstance(content, kind):
        held = type(content).__name__
        raise ValueError(f"{path}: holds a {held}, but must hold a {kind.__name__}")
    return content


def parse_json(text: bytes, path: object) -> Any:
    """JSON of a file; an error names it."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})"
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


def write_csv(
    path: str | os.PathLike[str], fields: Sequence[str], rows: Iterable[Mapping[str, object]]
) -> None:
    """A table for people: a text that a spreadsheet would take for a formula gets an apostrophe in
    front, which ``read_csv`` takes away again. The page's Review exports in the same way."""
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _quoted(value) for name, value in row.items()})


def read_csv(path: str | os.PathLike[str], fields: Collection[str]) -> list[dict[str, str]]:
    """The rows of a table that has these columns."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if not set(fields) <= set(rows.fieldnames or ()):
            raise ValueError(f"{path}: needs the columns {', '.join(fields)}")
        return [{name: _unquoted(row[name] or "") for name in fields} for row in rows]


def _quoted(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _unquoted(text: str) -> str:
    return text[1:] if text[:1] == "'" and text[1:].startswith(_FORMULA) else text


def rendered(template: Path, **values: Any) -> str:
    """A Jinja template with these values; in a page (``.html.j2``) they are escaped."""
    with extra("report", "a report"):
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=template.name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_root() -> Path:
    """``$GAUSSMATCH_CACHE``, or ``~/.cache/gaussmatch``. What is in it is trusted, so it is made
    for its user alone, and one that others can write to is refused."""
    given = os.environ.get("GAUSSMATCH_CACHE")
    root = Path(given) if given else Path.home() / ".cache" / "gaussmatch"
    root.parent.mkdir(parents=True, exist_ok=True)
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.stat()
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise PermissionError(
            f"{root}: other users can write to this cache, but its contents are trusted; make it "
            f"yours alone (chmod 700 {root}), or name another folder in GAUSSMATCH_CACHE"
        )
    return root


def remember_folder(place: str, folder: str) -> None:
    """Note, for this user on this machine, the folder that something at a place was made from. What
    a copied index or set of shards says about its own folder is not trusted."""
    try:
        write_json(_memory(place), {"place": os.path.realpath(place), "folder": folder})
    except (OSError, RuntimeError) as error:  # no home, or one that is read-only
        warnings.warn(f"{folder} is not remembered as the folder of {place}: {error}", stacklevel=2)


def remembered_folder(place: str) -> str | None:
    """What ``remember_folder`` noted for a place."""
    try:
        return str(read_json(_memory(place))["folder"])
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return None


def _memory(place: str) -> Path:
    key = hashlib.sha256(os.path.realpath(place).encode("utf-8", "surrogateescape")).hexdigest()
    return cache_root() / "folders" / f"{key[:32]}.json"
