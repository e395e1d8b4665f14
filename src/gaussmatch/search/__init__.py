"""Search with uncertainty: an index of images (and captions) as Gaussians.

**Items.** An index has two galleries, ``"images"`` and ``"captions"`` (which may be empty). An item
is a ``Gaussian`` and a ``Record``: an ``id`` that is unique in its gallery, ``meta`` (JSON: file,
caption, whatever the user wants to filter by), and for images a small JPEG ``thumbnail``, so that
nobody who shows results needs any other file.

**Searching.** What is not known of a hit or a query is ``None``: a point model has no uncertainty,
image-to-image search no match probability. A query plays the part that the gallery does not: among
images it is scored as a caption, also if it is an image.

**Backends.** An ``Index`` holds a ``Backend``, chosen by the place: a folder, where every change is
all or nothing, one process writes at a time (a second one waits) and any number read; Milvus
(``milvus:…``); or PostgreSQL (``postgresql:…``). All propose candidates by the similarity's own
lift, and ``topk`` scores a shortlist again with the similarity itself; no backend has a formula.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gaussmatch.lazy import exported
from gaussmatch.search.backend import Backend, IndexBusyError
from gaussmatch.search.hits import SCHEMA, Hit, Hits, Level, level, phrase
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import GALLERIES, Gallery, IndexSettings, Record
from gaussmatch.search.merge import backup, merge
from gaussmatch.search.query import Query
from gaussmatch.search.suggest import Suggestion
from gaussmatch.search.where import Where

if TYPE_CHECKING:
    from gaussmatch.search.sources import Changes, add_photos, index_pairs, thumbnail, update

__getattr__ = exported(__name__, "sources")
__all__ = [
    "GALLERIES",
    "SCHEMA",
    "Backend",
    "Changes",
    "Gallery",
    "Hit",
    "Hits",
    "Index",
    "IndexBusyError",
    "IndexSettings",
    "Level",
    "Query",
    "Record",
    "Suggestion",
    "Where",
    "add_photos",
    "backup",
    "index_pairs",
    "level",
    "merge",
    "phrase",
    "thumbnail",
    "update",
]
