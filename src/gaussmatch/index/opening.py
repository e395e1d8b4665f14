"""One word for an index, wherever it is: a folder, or an address of Milvus."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gaussmatch.index.index import Index
from gaussmatch.index.layout import MANIFEST

Place = str | os.PathLike[str]
MILVUS = "milvus:"


def place(text: str) -> Place:
    """What a user types; an address is no path, or its slashes would be joined."""
    return text if text.startswith(MILVUS) else Path(text)


def in_milvus(where: Place) -> bool:
    return os.fspath(where).startswith(MILVUS)


def open_index(where: Place) -> Index:
    """An index in a folder, or in Milvus (``milvus:demo.db``, ``milvus:http://host:19530``)."""
    return _kind(where).open(where)


def create_index(where: Place, run: Place | None = None, **options: Any) -> Index:
    """A new, empty index, see ``Index.create``."""
    return _kind(where).create(where, run, **options)


def existing_index(where: Place) -> Index | None:
    """The index, if there is one."""
    if _kind(where) is Index:
        return Index.open(where) if (Path(where) / MANIFEST).exists() else None
    try:
        return open_index(where)
    except FileNotFoundError:
        return None


def _kind(where: Place) -> type[Index]:
    if not in_milvus(where):
        return Index
    from gaussmatch.index.milvus import MilvusIndex

    return MilvusIndex
