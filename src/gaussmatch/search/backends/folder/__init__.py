"""An index in a folder: immutable segments, and one manifest that says which of them count."""

from __future__ import annotations

from gaussmatch.search.backends.folder.folder import Folder

__all__ = ["Folder"]
