"""Questions to the index, many at a time, and their answers as JSON.

Everything that touches the index or the model happens here, in the batcher's one thread: queries
of a batch are encoded together and searched together; other work is done one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import orjson
from PIL import Image

from gaussmatch.gaussian import Gaussian
from gaussmatch.index import Gallery, Hit, Hits, Index, Record, Where, phrase
from gaussmatch.service.errors import RefusalError
from gaussmatch.service.projection import Projection

Kind = Literal["text", "image", "item"]
KINDS: dict[Kind, Gallery] = {"text": "captions", "image": "images", "item": "images"}

MAP_MEANS = 5000
"""Means that the axes of the map are taken from."""


@dataclass(frozen=True)
class Question:
    """One search: a text, a picture or the id of an image."""

    kind: Kind
    value: str | Image.Image
    k: int
    where: Where = field(default_factory=Where)
    places: bool = False
    gallery: Gallery = "images"


@dataclass(frozen=True)
class Known:
    """What is said of an item everywhere."""

    meta: Mapping[str, Any]
    uncertainty: float | None
    percentile: float | None


Job = Question | Callable[[], Any]
"""A search, or anything else that needs the index."""


class Answers:
    """An open index that answers.

    Args:
        reload_every: seconds after which it looks whether somebody has changed the index.
    """

    def __init__(self, index: Index, map_items: int = 600, reload_every: float = 5.0) -> None:
        self.index, self.model = index, index.model
        self._map_items, self._reload_every = map_items, reload_every
        self._looked = time.monotonic()
        self._kept: dict[str, Any] = {}
        self.seen: Callable[[Kind, float], object] = lambda kind, percentile: None
        some = index.some(1)[0]
        self._thumbnails = bool(some) and index.get(some[0].id).thumbnail is not None

    def work(self, jobs: list[Job]) -> list[Any]:
        """An answer or an exception for each job: bytes of JSON for a question, else what it
        returns."""
        self._look()
        answers: list[Any] = [None] * len(jobs)
        asked = [at for at, job in enumerate(jobs) if isinstance(job, Question)]
        for at, job in enumerate(jobs):
            if not isinstance(job, Question):
                answers[at] = _tried(job)
        if asked:
            questions: list[Any] = [jobs[at] for at in asked]
            for at, answer in zip(asked, self._ask(questions), strict=True):
                answers[at] = answer
        return answers

    def _look(self) -> None:
        if time.monotonic() - self._looked > self._reload_every:
            self._looked = time.monotonic()
            if self.index.reload():
                self._kept.clear()

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that holds as long as the index does not change."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    # ---- searches ----

    def _ask(self, questions: Sequence[Question]) -> list[bytes | Exception]:
        """Encode all, search those together that may be, and tell each what was found."""
        encoded = self._encode(questions)
        answers: dict[int, bytes | Exception] = {
            at: g for at, g in enumerate(encoded) if isinstance(g, Exception)
        }
        groups: dict[tuple[Kind, Gallery, Where, str | None], list[int]] = {}
        for at, q in enumerate(questions):
            if at not in answers:
                own = str(q.value) if q.kind == "item" else None
                groups.setdefault((q.kind, q.gallery, q.where, own), []).append(at)
        for (kind, gallery, where, own), members in groups.items():
            g = encoded[members[0]].batch[[encoded[at].row for at in members]]
            found = _tried(
                self.index.search,
                g,
                max(questions[at].k for at in members),
                gallery=gallery,
                kind=KINDS[kind],
                where=where,
                exclude=(own,) if own is not None and gallery == "images" else (),
            )
            for place, at in enumerate(members):
                answers[at] = found
                if not isinstance(found, Exception):
                    answers[at] = _tried(self._told, questions[at], found[place], g, place)
        return [answers[at] for at in range(len(questions))]

    def _encode(self, questions: Sequence[Question]) -> list[Any]:
        """A row of a batch for each question, or what is wrong with it.

        Texts are encoded together and pictures together; where some spoil that, each alone and
        then those that are left together. So all rows of a kind are in one batch.
        """
        encoded: dict[int, Any] = {}
        for kind, encode in (("text", self.encode_texts), ("image", self.encode_pictures)):
            together = [at for at, q in enumerate(questions) if q.kind == kind]
            if not together:
                continue
            batch = _tried(encode, [questions[at].value for at in together])
            if isinstance(batch, Exception):
                alone = {at: _tried(encode, [questions[at].value]) for at in together}
                encoded |= {at: g for at, g in alone.items() if isinstance(g, Exception)}
                together = [at for at in together if at not in encoded]
                batch = Gaussian.cat([alone[at] for at in together]) if together else None
            encoded |= {at: _Row(batch, row) for row, at in enumerate(together)}
        for at, q in enumerate(questions):
            if q.kind == "item":
                g = _tried(self.gaussian, q.value)
                encoded[at] = g if isinstance(g, Exception) else _Row(g, 0)
        return [encoded[at] for at in range(len(questions))]

    def _told(self, q: Question, found: Hits, g: Gaussian, row: int) -> bytes:
        if found.percentile is not None:
            self.seen(q.kind, found.percentile)
        best = found.hits[: q.k]
        hits = [self.told(h.id, h, q.gallery, h.score, h.probability) for h in best]
        query: dict[str, Any] = {
            "kind": q.kind,
            **vagueness(found.uncertainty, found.percentile, found.kind),
            "unknown_words": self.model.vocabulary.unknown(str(q.value))
            if q.kind == "text"
            else [],
            "notes": found.notes,
            "place": None,
        }
        if q.places and best:
            own = g[row : row + 1]
            shown = Gaussian.cat([own, *(self.index.gaussian(h.id, q.gallery) for h in best)])
            query["place"], *places = self.plane()(shown).rows()
            for hit, place in zip(hits, places, strict=True):
                hit["place"] = place
        return orjson.dumps({"gallery": q.gallery, "query": query, "hits": hits})

    # ---- what else is known ----

    def encode_texts(self, texts: Sequence[str]) -> Gaussian:
        """Captions; one without any known word is refused."""
        try:
            return self.model.encode_texts(texts)
        except ValueError as error:
            if len(texts) == 1:
                raise RefusalError(422, "unknown_words", _unknown(texts[0])) from error
            raise

    def encode_pictures(self, pictures: Sequence[Image.Image]) -> Gaussian:
        return self.model.encode_images(pictures)

    def gaussian(self, id: str) -> Gaussian:
        self.record(id)
        return self.index.gaussian(id)

    def record(self, id: str, gallery: Gallery = "images") -> Record:
        """An item with its thumbnail; the index is not asked what its files are called."""
        try:
            return self.index.get(id, gallery)
        except ValueError as error:
            raise RefusalError(
                404, "no_item", f"there is no item {id!r} among the {gallery}"
            ) from error

    def told(
        self, id: str, of: Known | Hit, gallery: Gallery, *scored: float | None
    ) -> dict[str, Any]:
        """An item as the API shows it, and as a result with score and probability."""
        shown = gallery == "images" and self._thumbnails
        item = {
            "id": id,
            "uncertainty": of.uncertainty,
            "percentile": of.percentile,
            "text": None if gallery == "images" else of.meta.get("caption"),
            "thumbnail": address(id) if shown else None,
            "metadata": of.meta,
        }
        if scored:
            item["score"], item["probability"] = scored
        return item

    def plane(self) -> Projection:
        def make() -> Projection:
            _, g = self.index.some(MAP_MEANS)
            if g is None:
                raise RefusalError(404, "empty", "the index holds no pictures yet; add some")
            return Projection.fit(g.mean)

        plane: Projection = self.kept("plane", make)
        return plane

    def about(self, gallery: Gallery, g: Gaussian) -> tuple[list[Any], list[Any]]:
        """Uncertainties and percentiles of items, or ``None`` for each."""
        if g.is_point:
            return [None] * len(g), [None] * len(g)
        unsure = g.uncertainty().double().numpy()
        share = self.index.calibration.percentile(gallery, unsure)
        return unsure.tolist(), [None] * len(g) if share is None else share.tolist()


class _Row(NamedTuple):
    batch: Gaussian
    row: int


@lru_cache(100_000)
def address(id: str) -> str:
    """Of a thumbnail, relative to the root of the service."""
    return f"api/thumbnail?id={quote(id, safe='')}"


def vagueness(
    uncertainty: float | None, percentile: float | None, kind: Gallery
) -> dict[str, float | str | None]:
    """An uncertainty in numbers and words."""
    level = None
    if percentile is not None:
        level = "vague" if percentile >= 75 else "specific" if percentile <= 25 else "ordinary"
    return {
        "uncertainty": uncertainty,
        "percentile": percentile,
        "level": level,
        "phrase": None if percentile is None else phrase(min(max(percentile, 1), 99), kind),
    }


def _unknown(text: str) -> str:
    return f"the model knows no word of {text[:60]!r}; use words like those of its captions"


def _tried(work: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What it returns, or the exception that it raises."""
    try:
        return work(*given, **options)
    except Exception as error:
        return error
