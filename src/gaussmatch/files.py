"""Atomic files: written beside the target, synced, then renamed. Locks, checksums and JSON."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError as error:
    raise ImportError(
        "gaussmatch needs the file locks of Linux and macOS; on Windows, run it in WSL"
    ) from error

_PARTIAL = ".gaussmatch-partial"
"""The suffix of unfinished files, which no other program uses."""


class BusyError(OSError):
    """Another process holds a lock."""


@contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; a clean exit renames it to ``path``.

    A kill or a power cut at any moment leaves either the old file or the new one: the content is
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


@contextmanager
def locked(path: Path, busy: str, wait: float = 0) -> Iterator[None]:
    """Hold a lock file; raises ``BusyError(busy)`` if another process still holds it after ``wait``
    seconds. A kill releases it.

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


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    write_text(path, to_json(value))


def to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read JSON; an error names the file, the line and what is wrong."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})"
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_root() -> Path:
    """``$GAUSSMATCH_CACHE``, or ``~/.cache/gaussmatch``."""
    root = os.environ.get("GAUSSMATCH_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "gaussmatch"
