"""Several indexes of one model, searched as one: a gallery cut into shards."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.hits import Hit, Hits
from gaussmatch.index.index import Index
from gaussmatch.index.manifest import Gallery
from gaussmatch.model import Model, Pictures


class JoinedIndex:
    """The k best of all are among the k best of each, so nothing is lost by searching each for k.

    An id that is in several shards counts once, where it scores best.
    """

    def __init__(self, shards: Sequence[Index]) -> None:
        if not shards:
            raise ValueError("no indexes to search")
        first, *others = shards
        for other in others:
            a, b = ((i.manifest.run, i.manifest.similarity) for i in (first, other))
            if a != b:
                raise ValueError(
                    f"{other.place} was made with another model than {first.place}: their scores "
                    "cannot be compared"
                )
        self.shards = list(shards)

    @property
    def model(self) -> Model:
        return self.shards[0].model

    def size(self, gallery: Gallery = "images") -> int:
        return sum(shard.size(gallery) for shard in self.shards)

    def fields(self, gallery: Gallery = "images") -> list[str]:
        return sorted({name for shard in self.shards for name in shard.fields(gallery)})

    def search(self, queries: Gaussian, k: int = 10, **options: Any) -> list[Hits]:
        """See ``Index.search``."""
        return self._search_all(lambda shard: shard.search(queries, k, **options), k)

    def search_text(self, texts: Sequence[str], k: int = 10, **options: Any) -> list[Hits]:
        """See ``Index.search_text``."""
        return self._search_all(lambda shard: shard.search_text(texts, k, **options), k)

    def search_image(self, pictures: Pictures, k: int = 10, **options: Any) -> list[Hits]:
        """See ``Index.search_image``."""
        return self._search_all(lambda shard: shard.search_image(pictures, k, **options), k)

    def search_id(self, id: str, k: int = 10, *, of: Gallery = "images", **options: Any) -> Hits:
        """See ``Index.search_id``; the item is that of the first shard that holds it."""
        for shard in self.shards:
            try:
                item = shard.gaussian(id, of)
            except ValueError:
                continue
            gallery = options.setdefault("gallery", of)
            if gallery == of:
                options["exclude"] = [*options.get("exclude", ()), id]
            return self.search(item, k, side=of, **options)[0]
        raise ValueError(f"no item {id!r} among the {of} of {len(self.shards)} indexes")

    def _search_all(self, search: Callable[[Index], list[Hits]], k: int) -> list[Hits]:
        found = [search(shard) for shard in self.shards]
        return [join(answers, k) for answers in zip(*found, strict=True)]


def join(answers: Sequence[Hits], k: int) -> Hits:
    """The best k of several answers to one query; or all of them, where they are guaranteed sets:
    thresholds do not depend on the gallery, so together they are the set of all."""
    found: dict[str, Hit] = {}
    most = k if answers[0].guarantee is None else sum(map(len, answers))
    for hit in heapq.merge(*(a.hits for a in answers), key=lambda hit: -hit.score):
        found.setdefault(hit.id, hit)
        if len(found) == most:
            break
    hits = list(found.values())
    total = sum(a.total or 0 for a in answers) if answers[0].guarantee is None else len(hits)
    return replace(answers[0], hits=hits, total=total).part(0, most)
