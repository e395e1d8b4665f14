"""Folders that are made once: written completely or not at all, and checked before use."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from gaussmatch.files import plain_name, sha256

_log = logging.getLogger(__name__)
_LIST = "files.json"


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """``folder``, filled by ``make(empty folder)`` unless it exists and is complete.

    The work is done in a folder beside it, which is then renamed in one step: a half-written folder
    is never visible, and if two processes make it at once, the first wins. A folder whose files do
    not match its list (a full disk, a damaged file) is made again with a warning.
    """
    if folder.exists():
        fault = _fault(folder)
        if fault is None:
            return folder
        if not (folder / _LIST).exists():
            raise FileExistsError(
                f"{folder} has no {_LIST}, so gaussmatch did not make it; move it elsewhere"
            )
        _log.warning("%s: %s; making it again", folder, fault)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(work)
        listed = {p.name: [p.stat().st_size, sha256(p)] for p in sorted(work.iterdir())}
        (work / _LIST).write_text(json.dumps(listed), encoding="utf-8")
        _take_name(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _take_name(work: Path, folder: Path) -> None:
    try:
        os.rename(work, folder)
        return
    except OSError:  # a folder of that name exists
        if _fault(folder) is None:
            return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    os.rename(folder, old / "broken")
    shutil.rmtree(old, ignore_errors=True)
    try:
        os.rename(work, folder)
    except OSError:  # another process was faster
        if _fault(folder) is not None:
            raise


def _fault(folder: Path) -> str | None:
    """What is wrong with a folder, if anything."""
    try:
        listed = json.loads((folder / _LIST).read_text(encoding="utf-8"))
        for name, (size, checksum) in listed.items():
            path = folder / plain_name(name, folder / _LIST)
            if path.stat().st_size != size or sha256(path) != checksum:
                return f"{name} is damaged"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"not whole ({error})"
    return None
