"""Where an index can be kept: a folder, or an address of Milvus or PostgreSQL."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from gaussmatch.search.backend import Backend

Place = str | os.PathLike[str]

SCHEMES = {
    "milvus:": "gaussmatch.search.backends.milvus:Milvus",
    "postgresql:": "gaussmatch.search.backends.postgres:Postgres",
}
"""How a place begins → the backend that keeps it, loaded when first needed; else it is a folder."""
FOLDER = "gaussmatch.search.backends.folder:Folder"


def place(text: str) -> Place:
    """What a user types; an address is not a path: its slashes must stay."""
    return text if text.startswith(tuple(SCHEMES)) else Path(text)


def backend_of(where: Place) -> type[Backend]:
    """The class that keeps indexes at such a place."""
    text = os.fspath(where)
    found = next((name for start, name in SCHEMES.items() if text.startswith(start)), FOLDER)
    module, _, name = found.partition(":")
    backend: type[Backend] = getattr(import_module(module), name)
    return backend
