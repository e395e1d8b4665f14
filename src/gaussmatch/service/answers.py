"""Questions to the index, many at a time, and their answers as JSON.

Everything that touches the index or the model happens here, called by the batcher, never twice at a
time: queries of a batch are encoded together and searched together; other work is done one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from gaussmatch.gaussian import Gaussian
from gaussmatch.index import GALLERIES, Gallery, Hits, Index, Record, Where
from gaussmatch.service import telling
from gaussmatch.service.encoding import Kind, Question, Row, encode, no_known_word, tried
from gaussmatch.service.errors import RefusalError, dumps
from gaussmatch.service.logs import LOGGER
from gaussmatch.service.projection import Projection

KINDS: dict[Kind, Gallery] = {"text": "captions", "image": "images", "item": "images"}

MAP_MEANS = 5000
"""Means that the axes of the map are taken from."""

Job = Question | Callable[[], Any]
"""A search, or anything else that needs the index."""


def light(job: Job) -> bool:
    """Whether it is a search that encodes no picture: brief, if the model is small."""
    return isinstance(job, Question) and job.kind != "image"


class Answers:
    """An open index that answers.

    ``sizes`` of the galleries are as of the last look; whoever wants them asks no index, which may
    be elsewhere.

    Args:
        reload_every: seconds after which it looks whether somebody has changed the index.
    """

    def __init__(self, index: Index, map_items: int = 600, reload_every: float = 5.0) -> None:
        self.index, self.model = index, index.model
        self._map_items, self._reload_every = map_items, reload_every
        self._looked = time.monotonic()
        self._kept: dict[str, Any] = {}
        self.seen: Callable[[Kind, float], object] = lambda kind, percentile: None
        self.sizes = self._count()

    def work(self, jobs: list[Job]) -> list[Any]:
        """An answer or an exception for each job: bytes of JSON for a question, else what it
        returns."""
        self._look()
        answers: list[Any] = [None] * len(jobs)
        asked: dict[int, Question] = {}
        for at, job in enumerate(jobs):
            if isinstance(job, Question):
                asked[at] = job
            else:
                answers[at] = tried(job)
        for at, answer in zip(asked, self._ask(list(asked.values())), strict=True):
            answers[at] = answer
        return answers

    def _look(self) -> None:
        if time.monotonic() - self._looked > self._reload_every:
            self._looked = time.monotonic()
            try:
                changed, sizes = self.index.reload(), self._count()
            except Exception:  # go on with what is open
                LOGGER.exception("the index cannot be read again")
                return
            if changed or sizes != self.sizes:
                self._kept.clear()
                self.sizes = sizes

    def _count(self) -> dict[str, int]:
        return {gallery: self.index.size(gallery) for gallery in GALLERIES}

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that holds as long as the index does not change."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def thumbnails(self) -> bool:
        """Whether pictures have some, as the first has or has not."""

        def make() -> bool:
            some = self.index.some(1)[0]
            return bool(some) and self.index.get(some[0].id).thumbnail is not None

        found: bool = self.kept("thumbnails", make)
        return found

    # ---- searches ----

    def _ask(self, questions: Sequence[Question]) -> list[bytes | Exception]:
        """Encode all, search those together that may be, and tell each what was found."""
        answers: list[Any] = encode(questions, self.model, self.gaussian)
        groups: dict[tuple[Kind, Gallery, Where, str | None], list[int]] = {}
        for at, (q, encoded) in enumerate(zip(questions, answers, strict=True)):
            if isinstance(encoded, Row):
                own = str(q.value) if q.kind == "item" else None
                groups.setdefault((q.kind, q.gallery, q.where, own), []).append(at)
        for (kind, gallery, where, own), members in groups.items():
            rows: list[Row] = [answers[at] for at in members]
            g = rows[0].batch[[row.row for row in rows]]
            found = tried(
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
                    told = questions[at], found[place], rows[place]
                    answers[at] = tried(self._told, *told)
        return answers

    def _told(self, q: Question, found: Hits, encoded: Row) -> bytes:
        if found.percentile is not None:
            self.seen(q.kind, found.percentile)
        best = found.hits[: q.k]
        shown = self.thumbnails()
        hits = [telling.result(hit, q.gallery, shown) for hit in best]
        query: dict[str, Any] = {
            "kind": q.kind,
            **telling.vagueness(found.uncertainty, found.percentile, found.kind),
            "unknown_words": encoded.unknown,
            "notes": found.notes,
            "place": None,
        }
        if q.places and best:
            own = encoded.batch[encoded.row : encoded.row + 1]
            all_ = Gaussian.cat([own, *(self.index.gaussian(h.id, q.gallery) for h in best)])
            query["place"], *places = self.plane()(all_).rows()
            for hit, place in zip(hits, places, strict=True):
                hit["place"] = place
        return dumps({"gallery": q.gallery, "query": query, "hits": hits})

    # ---- what else is known ----

    def encode_texts(self, texts: Sequence[str]) -> Gaussian:
        """Captions; one without any known word is refused."""
        read = self.model.read(texts)
        for reading in read:
            if not reading.known:
                raise no_known_word(reading.text)
        return self.model.encode_texts(read)

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

    def told(self, id: str, of: telling.Known, gallery: Gallery) -> dict[str, Any]:
        """An item as the API shows it."""
        return telling.item(id, of, gallery, self.thumbnails()) | {"gallery": gallery}

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
