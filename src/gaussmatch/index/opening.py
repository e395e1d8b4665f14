"""One word for an index, wherever it is: a folder, or an address of Milvus."""

from __future__ import annotations

import os
from typing import Any

from gaussmatch.index.index import Index


def open_index(where: str | os.PathLike[str]) -> Index:
    """An index in a folder, or in Milvus (``milvus:demo.db``, ``milvus:http://host:19530``)."""
    return _kind(where).open(where)


def create_index(
    where: str | os.PathLike[str], run: str | os.PathLike[str] | None = None, **options: Any
) -> Index:
    """A new, empty index, see ``Index.create``."""
    return _kind(where).create(where, run, **options)


def _kind(where: str | os.PathLike[str]) -> type[Index]:
    if not os.fspath(where).startswith("milvus:"):
        return Index
    from gaussmatch.index.milvus import MilvusIndex

    return MilvusIndex
