"""Search with uncertainty: an index of images (and captions) as Gaussians.

The contract, which the command line, the service and the backends stand on:

**Items.** An index has two galleries, ``"images"`` and ``"captions"`` (which may be empty). An item
is a ``Gaussian`` and a ``Record``: an ``id`` that is unique in its gallery, ``meta`` (JSON: file,
caption, split, whatever the user wants to filter by), and for images a small JPEG ``thumbnail``
kept inside the index, so that nobody who shows results needs to read any other file.

**Making.** ``Index.create(place, run)`` copies the model into the index: it is self-contained (a
model on extracted photo features still needs the network that extracts them to take new
*pictures*). ``Index.open(place)`` loads nothing. ``add(gaussians, records, gallery)``,
``delete(ids, gallery)``, ``compact()``; ``merge`` joins indexes of one run; ``index_pairs`` and
``update`` fill one from a data set or a folder of photos.

**Searching.** ``search(queries, k, gallery=, where=, exclude=)`` takes Gaussians or typed queries
(``Query``: words, a picture, an item, or several of them as one); ``search_text(texts, k)``,
``search_image(pictures, k)`` and ``search_id(id, k)`` are short for it. They give ``Hits``: for
each hit id, score, match probability, uncertainty and its percentile, metadata; for the query its
uncertainty, its percentile and a ``phrase``, unknown words and ``notes``. What is not known is
``None``: a point model has no uncertainty, image-to-image search no match probability. A query
plays the part that the gallery does not: among images it is scored as a caption, also where it is
an image.

**Backends.** An ``Index`` holds a ``Backend``, chosen by the place: a folder, where every change is
all or nothing, also when killed, one process writes at a time (a second one waits) and any number
read; or Milvus (``milvus:…``). Both propose candidates by the similarity's own lift, and ``topk``
scores a shortlist again with the similarity itself; no backend has a formula of its own.
"""

from __future__ import annotations

from gaussmatch.search.backend import Backend, IndexBusyError
from gaussmatch.search.hits import SCHEMA, Hit, Hits, Level, level, phrase
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import GALLERIES, Gallery, IndexSettings, Record
from gaussmatch.search.merge import backup, merge
from gaussmatch.search.query import Query
from gaussmatch.search.sources import Changes, add_photos, index_pairs, thumbnail, update
from gaussmatch.search.suggest import Suggestion
from gaussmatch.search.where import Where

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
