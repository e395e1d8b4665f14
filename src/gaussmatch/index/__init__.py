"""Search with uncertainty: an index on disk of images (and captions) as Gaussians.

The contract, which the command line, the service and other backends stand on:

**Items.** An index has two galleries, ``"images"`` and ``"captions"`` (which may be empty). An item
is a ``Gaussian`` and a ``Record``: an ``id`` that is unique in its gallery, ``meta`` (JSON: file,
caption, split, whatever the user wants to filter by), and for images a small JPEG ``thumbnail``
kept inside the index, so that nobody who shows results needs to read any other file.

**Making.** ``Index.create(path, run)`` copies recipe, vocabulary and weights of the run into the
index: it is self-contained (a model on extracted photo features still needs the network that
extracts them to take new *pictures*). ``Index.open(path)`` maps memory and loads nothing.
``add(gaussians, records, gallery)``, ``delete(ids, gallery)``, ``compact()``; ``merge`` joins
indexes of one run; ``index_pairs`` and ``update`` fill one from a data set or a folder.
Every change is all or nothing, also when killed; one process writes at a time
(``IndexBusyError``), any number read, and see changes after ``reload()``.

**Asking.** ``search_text(texts, k)``, ``search_image(pictures, k)``, ``search_id(id, k)`` and
``search(gaussian, k, gallery=, kind=, where=, exclude=)`` give ``Hits``: for each hit id, score,
match probability, uncertainty and its percentile, metadata; for the query its uncertainty, its
percentile and a ``phrase``, unknown words and ``notes``. What is not known is ``None``: a point
model has no uncertainty, image-to-image search no match probability. A query plays the part that
the gallery does not: among images it is scored as a caption, also where it is an image.

**Structures.** ``Settings(kind=…)`` chooses how segments are searched: ``flat`` (exact), ``hnsw``
or ``compressed``. All go by the similarity's own lift and score a shortlist again with the
similarity itself; the index has no formula of its own. Similarities without a lift are scanned.
"""

from __future__ import annotations

from gaussmatch.index.fill import Changes, index_pairs, thumbnail, update
from gaussmatch.index.hits import SCHEMA, Hit, Hits, Level, level, phrase
from gaussmatch.index.index import Index
from gaussmatch.index.items import Record
from gaussmatch.index.layout import GALLERIES, Gallery, IndexBusyError
from gaussmatch.index.merge import merge
from gaussmatch.index.settings import Settings
from gaussmatch.index.where import Where

__all__ = [
    "GALLERIES",
    "SCHEMA",
    "Changes",
    "Gallery",
    "Hit",
    "Hits",
    "Index",
    "IndexBusyError",
    "Level",
    "Record",
    "Settings",
    "Where",
    "index_pairs",
    "level",
    "merge",
    "phrase",
    "thumbnail",
    "update",
]
