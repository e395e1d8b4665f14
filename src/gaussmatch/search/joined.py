"""Several indexes of one model, searched as one: a gallery cut into shards."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import numpy as np

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.model import Model, Pictures
from gaussmatch.search.hits import Hit, Hits, expected_matches
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import Gallery
from gaussmatch.search.trust.calibration import TOP, Calibration
from gaussmatch.search.where import Where, unknown_field


class JoinedIndex:
    """The k best of all are among the k best of each, so nothing is lost by searching each for k.

    An id that is in several shards counts once, where it scores best.
    """

    def __init__(self, shards: Sequence[Index]) -> None:
        if not shards:
            raise ValueError("no indexes to search")
        check_one_model(shards)
        self.shards = list(shards)

    @property
    def model(self) -> Model:
        return self.shards[0].model

    @property
    def calibration(self) -> Calibration:
        """The first that was learned: an index whose making was interrupted has none."""
        held = [shard.calibration for shard in self.shards]
        return next((one for one in held if one.about), held[0])

    def size(self, gallery: Gallery = "images") -> int:
        return sum(shard.size(gallery) for shard in self.shards)

    def fields(self, gallery: Gallery = "images") -> list[str]:
        return sorted({name for shard in self.shards for name in shard.fields(gallery)})

    def search(
        self, queries: Gaussian, k: int = 10, *, guarantee: float | None = None, **options: Any
    ) -> list[Hits]:
        """See ``Index.search``. What all shards found is judged together, as results of a gallery
        of their joint size: each alone would take itself for the whole."""
        wide = max(k, TOP)
        found = self._search_all(queries, wide, options)
        if guarantee is None:
            return [
                self._judged(hits, queries[q : q + 1]).part(0, k) for q, hits in enumerate(found)
            ]
        sets = self._search_all(queries, wide, {**options, "guarantee": guarantee})
        answers = []
        for q, (held, best) in enumerate(zip(sets, found, strict=True)):
            both = replace(join([held, best]), total=best.total)  # rivals that are not in the set
            part = self._judged(both, queries[q : q + 1]).part(0, len(held))
            answers.append(replace(part, guarantee=guarantee, total=len(held)))
        return answers

    def search_text(self, texts: Sequence[str], k: int = 10, **options: Any) -> list[Hits]:
        """See ``Index.search_text``."""
        return Index.search_text(cast(Index, self), texts, k, **options)

    def search_image(self, pictures: Pictures, k: int = 10, **options: Any) -> list[Hits]:
        """See ``Index.search_image``."""
        return Index.search_image(cast(Index, self), pictures, k, **options)

    def search_id(self, id: str, k: int = 10, **options: Any) -> Hits:
        """See ``Index.search_id``; the item is that of the first shard that holds it."""
        return Index.search_id(cast(Index, self), id, k, **options)

    def gaussian(self, id: str, gallery: Gallery = "images") -> Gaussian:
        """See ``Index.gaussian``."""
        for shard in self.shards:
            with suppress(ValueError):
                return shard.gaussian(id, gallery)
        raise ValueError(f"no item {id!r} among the {gallery} of {len(self.shards)} indexes")

    def _search_all(self, queries: Gaussian, k: int, options: Mapping[str, Any]) -> list[Hits]:
        """The best of all shards. How many items there are without those that several shards hold
        is judged by their share among the best."""
        found = zip(*(shard.search(queries, k, **options) for shard in self.shards), strict=True)
        joined = []
        for answers in found:
            best, held = join(answers), sum(map(len, answers))
            total = sum(answer.total or 0 for answer in answers)
            notes = [note for note in answers[0].notes if all(note in a.notes for a in answers)]
            if not total:
                fields = self.fields(options.get("gallery", "images"))
                notes += unknown_field(Where.of(options.get("where")).fields, fields)
            size = round(total * len(best) / held) if held else total
            joined.append(replace(best, total=size, notes=list(dict.fromkeys(notes))))
        return joined

    def _judged(self, hits: Hits, query: Gaussian) -> Hits:
        """With match probabilities, and whether there is any match, of the joint gallery."""
        if not len(hits):
            return hits
        known = [hit.uncertainty for hit in hits.hits if hit.uncertainty is not None]
        judged = self.calibration.judge(
            self.shards[0].similarity,
            query.detach().to("cpu"),
            hits.side,
            hits.gallery,
            np.array([[hit.score for hit in hits.hits]]),
            np.array([known]) if len(known) == len(hits) else None,
            hits.total or len(hits),
        )
        if judged.probability is None or judged.absent is None:
            return hits
        chances = [None if np.isnan(p) else float(p) for p in judged.probability[0]]
        likely = [replace(h, probability=p) for h, p in zip(hits.hits, chances, strict=True)]
        expected, absent = expected_matches(likely), float(judged.absent[0])
        return replace(hits, hits=likely, expected=expected, absent=absent)


def join(answers: Sequence[Hits]) -> Hits:
    """Several answers to one query as one, the best first, each item once."""
    found: dict[str, Hit] = {}
    for hit in heapq.merge(*(a.hits for a in answers), key=lambda hit: -hit.score):
        found.setdefault(hit.id, hit)
    return replace(answers[0], hits=list(found.values()))


def check_one_model(indexes: Sequence[Index]) -> None:
    """Refuse indexes whose Gaussians cannot be compared."""
    first, *others = indexes
    for other in others:
        a, b = ((i.manifest.run, i.manifest.similarity, i.manifest.form) for i in (first, other))
        if a[:2] != b[:2] or (a[2] and b[2] and a[2] != b[2]):
            raise ValueError(
                f"{other.place} was made with another model than {first.place}: their Gaussians "
                "cannot be compared; index its items again with one of the models"
            )
