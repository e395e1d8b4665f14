"""The engine: everything that touches the index or the model.

Only the batcher calls it, one batch at a time: the queries of a batch are encoded together and
searched together, other jobs run one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from gaussmatch import __version__
from gaussmatch.apps.service.logs import LOGGER
from gaussmatch.apps.service.responses import (
    About,
    Albums,
    ApiError,
    BrowseResponse,
    FieldsResponse,
    ItemResponse,
    Limits,
    Map,
    Member,
    NamedResponse,
    OnMap,
    ReviewResponse,
    SearchResponse,
    Spots,
    Suggestions,
    Timeline,
    Uncertainty,
    describe_fields,
    dumps,
    finding_picture,
)
from gaussmatch.apps.service.settings import Settings
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.asked import Asked
from gaussmatch.data.fits import length_of
from gaussmatch.data.language import canonical, mostly_known
from gaussmatch.data.pictures import SUFFIXES
from gaussmatch.learn.projection import PlaneProjection
from gaussmatch.models.model import Model, UnknownWordsError
from gaussmatch.search import GALLERIES, Gallery, Hits, Index, Record, Where
from gaussmatch.search.catalog import Box, Catalog
from gaussmatch.search.exclude import Exclusion
from gaussmatch.search.hits import TRUNCATED
from gaussmatch.search.near import grouped
from gaussmatch.search.trust.calibration import IMAGE, Promise
from gaussmatch.search.where import UnknownFieldError, unknown_field

QueryType = Literal["text", "image", "item"]
SIDES: dict[QueryType, Gallery] = {"text": "captions", "image": "images", "item": "images"}

EVERYTHING = Where()
MAP_MEANS = 5000
"""How many means the axes of the map are fitted to."""
FIELD_ITEMS = 50_000
"""Items whose metadata is looked at for what they can be filtered by."""


@dataclass(frozen=True, slots=True)
class Query:
    """One search: by a text, a picture or the id of an image; a picture may have words with it.

    Args:
        value: a picture, or the id of one; for a text it is in ``asked``.
        asked: the words, read.
        like, unlike: ids of pictures that the results should be like too, or must not be like.
        groups: whether to say which results show nearly the same.
    """

    type: QueryType
    value: str | Image.Image
    k: int
    asked: Asked | None = None
    like: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    groups: bool = False
    where: Where = EVERYTHING
    on_map: bool = False
    gallery: Gallery = "images"
    sort: str = ""
    offset: int = 0
    exclude: tuple[str, ...] = ()
    guarantee: float | None = None
    promise: Promise = "recall"

    def group(self) -> tuple[Any, ...]:
        """What queries must have in common to be searched together."""
        own = (str(self.value),) if self.type == "item" else ()
        pictures = (*own, *self.like, *self.unlike) if self.gallery == "images" else ()
        not_there = tuple(part.means for part in self.asked.without) if self.asked else ()
        exclude, away = (*self.exclude, *pictures), (not_there, self.unlike)
        promised = self.guarantee, self.promise
        return SIDES[self.type], self.gallery, self.where, exclude, *promised, away

    @property
    def words(self) -> str:
        """What to look for."""
        return self.asked.words if self.asked else ""

    @property
    def joined(self) -> bool:
        """Whether it is one query of several."""
        return bool(self.like) or (self.type != "text" and bool(self.words))


class Encoded(NamedTuple):
    """A row of a batch of Gaussians, the words that the model does not know and those that were
    meant, whether the text is longer than it reads, and how familiar each row of the batch is."""

    batch: Gaussian
    row: int
    unknown: Sequence[str] = ()
    meant: Mapping[str, str] = MappingProxyType({})
    truncated: bool = False
    familiar: np.ndarray | None = None


Job = Query | Callable[[], Any]
"""A search, or anything else that needs the index."""


def light(job: Job) -> bool:
    """Whether it is a search that encodes no picture: brief, if the model is small."""
    return isinstance(job, Query) and job.type != "image"


class Engine:
    """An open index and its model.

    ``observe`` is called with the type and the percentile of every query.
    ``sizes`` of the galleries are those of the last reload, so that reading them costs no
    call to an index that may be on another machine.
    """

    def __init__(self, index: Index, settings: Settings) -> None:
        self.index, self.settings = index, settings
        self._reload_every = 5.0  # seconds between checks whether the index was changed
        self.observe: Callable[[QueryType, float], object] = lambda type, percentile: None
        self._checked = time.monotonic()
        self._cache: dict[str, Any] = {}
        self.sizes = self._count()
        self.review = None if settings.review is None else ReviewResponse.of(settings.review)

    @property
    def model(self) -> Model:
        """Of the index as it is now: another one may have taken its place."""
        return self.index.model

    def warm_up(self) -> None:
        """Load what the first request would have to wait for; a broken index fails here."""
        if self.model.example_text and self.sizes["images"]:
            asked = Asked(self.model.example_text, self.model.example_text)
            (answer,) = self.run([Query("text", "", 1, asked)])
            if isinstance(answer, Exception):
                raise answer
        self.about()

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """A result or an exception for each job: JSON for a query, else what the job returns."""
        self._reload()
        results: list[Any] = [None] * len(jobs)
        queries: dict[int, Query] = {}
        for at, job in enumerate(jobs):
            if isinstance(job, Query):
                queries[at] = job
            else:
                results[at] = attempt(job)
        for at, result in zip(queries, self._search(list(queries.values())), strict=True):
            results[at] = result
        return results

    def _reload(self) -> None:
        if time.monotonic() - self._checked > self._reload_every:
            self._checked = time.monotonic()
            try:
                changed, sizes = self.index.reload(), self._count()
            except Exception:  # go on with what is open
                LOGGER.exception("the index cannot be read again")
                return
            if changed or sizes != self.sizes:
                self._cache.clear()
                self.sizes = sizes

    def _count(self) -> dict[str, int]:
        return {gallery: self.index.size(gallery) for gallery in GALLERIES}

    def _cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Something that holds until the index changes."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    # ---- search ----

    def _search(self, queries: Sequence[Query]) -> list[bytes | Exception]:
        """Encode all queries, search in groups that share their options, and make the answers."""
        prepared = [attempt(self._prepared, q) for q in queries]
        lost: dict[int, Any] = {at: q for at, q in enumerate(prepared) if isinstance(q, Exception)}
        queries = [q if at in lost else prepared[at][0] for at, q in enumerate(queries)]
        listed = {
            at: attempt(self._listed, q, prepared[at][1])
            for at, q in enumerate(queries)
            if at not in lost and q.type == "text" and not (q.words or q.like)
        }
        left = [at for at in range(len(queries)) if at not in lost and at not in listed]
        results: list[Any] = [{**lost, **listed}.get(at) for at in range(len(queries))]
        for at, encoded in zip(left, self._encode([queries[at] for at in left]), strict=True):
            results[at] = encoded
        groups: dict[tuple[Any, ...], list[int]] = {}
        for at, (q, encoded) in enumerate(zip(queries, results, strict=True)):
            if isinstance(encoded, Encoded):
                groups.setdefault((*q.group(), id(encoded.batch)), []).append(at)
        for (side, gallery, where, exclude, guarantee, promise, *_), members in groups.items():
            rows: list[Encoded] = [results[at] for at in members]
            chosen, familiar = [encoded.row for encoded in rows], rows[0].familiar
            without = attempt(self._without, queries[members[0]])
            if isinstance(without, Exception):
                results = [without if at in members else one for at, one in enumerate(results)]
                continue
            found = attempt(
                self.index.search,
                rows[0].batch[chosen],
                max(queries[at].offset + queries[at].k for at in members),
                gallery=gallery,
                side=side,
                where=where,
                exclude=exclude,
                guarantee=guarantee,
                promise=promise,
                kinds=[kind(queries[at]) for at in members],
                familiar=None if familiar is None else familiar[chosen],
                without=without[0],
            )
            if isinstance(found, UnknownFieldError):
                found = ApiError(422, "bad_filter", f"where: {found}")
            elif guarantee is not None and isinstance(found, ValueError):
                found = ApiError(422, "no_guarantee", str(found))
            for place, at in enumerate(members):
                results[at] = found
                if not isinstance(found, Exception):
                    hits = found[place].remarked([*prepared[at][1], *without[1]])
                    results[at] = attempt(self._answer, queries[at], hits, rows[place])
        return results

    def _prepared(self, q: Query) -> tuple[Query, list[str]]:
        """A query with the dates that its words hold as conditions; and what to say about them."""
        if q.asked is None or not q.asked.dates:
            return q, []
        where, notes = self.index.conditions(q.asked, q.where, q.gallery)
        return replace(q, where=where), notes

    def _without(self, q: Query) -> tuple[list[Exclusion], list[str]]:
        """What must not be in the results; and what to say about it."""
        found, notes = ([], []) if q.asked is None else self.index.excluded(q.asked)
        if q.unlike:
            away = Gaussian.cat([self._gaussian(id) for id in q.unlike])
            found.append(Exclusion(away, q.unlike, "images"))
        return found, notes

    def _listed(self, q: Query, notes: Sequence[str]) -> bytes:
        """The answer to a query that names nothing to look for."""
        if not self.model.reads_text:
            raise no_words()
        if q.guarantee is not None:
            raise ApiError(422, "no_guarantee", "no guarantee for a search without words")
        assert q.asked is not None
        without, lost = self._without(q)
        found = self.index.everything(
            q.offset + q.k,
            q.asked,
            gallery=q.gallery,
            where=q.where,
            exclude=(*q.exclude, *q.unlike),
            without=without,
        )
        return self._answer(q, found.remarked([*notes, *lost]), None)

    def _answer(self, q: Query, found: Hits, encoded: Encoded | None) -> bytes:
        if found.percentile is not None:
            self.observe(q.type, found.percentile)
        if q.joined:
            found = found.unjudged()
        hits = found.part(q.offset, q.k)
        if q.sort:
            order = q.sort.removeprefix("-")
            hits = hits.sorted(order, descending=order != q.sort)
            if not any(order in hit.meta for hit in hits.hits):
                lost = unknown_field([order], self.index.fields(hits.gallery))
                hits = replace(hits, notes=[*hits.notes, *lost])
        if q.type == "text" and encoded is not None and q.asked is not None:
            hits = hits.for_text(q.asked, encoded.unknown, encoded.meant, encoded.truncated)
        elif encoded is not None and (q.asked is not None or encoded.truncated):
            notes = [*hits.notes, *([TRUNCATED] if encoded.truncated else [])]
            hits = replace(hits, unknown=encoded.unknown, notes=notes, asked=q.asked)
            hits = hits.remarked(q.asked.notes if q.asked else ())
        places = groups = None
        if (q.on_map or q.groups) and hits.hits and self.sizes["images"]:
            items = Gaussian.cat([self.index.gaussian(id, hits.gallery) for id in hits.ids])
            if q.groups:
                metas = [hit.meta for hit in hits.hits]
                groups = grouped(items.mean.double().numpy(), metas)
            if q.on_map:
                own = None if encoded is None else encoded.batch[encoded.row : encoded.row + 1]
                own = items[:1] if own is None else own
                query, *of_hits = self._plane()(Gaussian.cat([own, items]))
                places = OnMap(query, of_hits)
        return dumps(SearchResponse(hits, places, groups))

    # ---- encoding ----

    def _encode(self, queries: Sequence[Query]) -> list[Encoded | Exception]:
        """A row of a batch for each query, or what is wrong with it: texts of a batch are encoded
        together, and pictures together."""
        of: dict[QueryType, dict[int, Any]] = {"text": {}, "image": {}, "item": {}}
        for at, q in enumerate(queries):
            if q.type != "text" or q.words:
                of[q.type][at] = q.words if q.type == "text" else q.value
        found: dict[int, Encoded | Exception] = {}
        for at, id in of["item"].items():
            g = attempt(self._gaussian, id)
            found[at] = g if isinstance(g, Exception) else Encoded(g, 0)
        found |= self._encode_texts(of["text"]) | self._encode_images(of["image"])
        words = {at: q.words for at, q in enumerate(queries) if q.joined and q.type != "text"}
        texts = self._encode_texts({at: text for at, text in words.items() if text})
        for at, q in enumerate(queries):
            if q.joined:
                parts = [found.get(at), texts.get(at)]
                found[at] = attempt(self._together, q, [one for one in parts if one is not None])
        return [found[at] for at in range(len(queries))]

    def _together(self, q: Query, encoded: Sequence[Encoded | Exception]) -> Encoded:
        """Pictures and words as one query."""
        if q.guarantee is not None:
            raise ApiError(422, "no_guarantee", "no guarantee for a picture with words")
        parts = [self._gaussian(id) for id in q.like]
        said = Encoded(Gaussian.cat(parts), 0) if parts else None
        for one in encoded:
            if isinstance(one, Exception):
                raise one
            parts.append(one.batch[one.row : one.row + 1])
            said = one  # words come last
        assert said is not None
        both = self.index.together(parts, q.gallery)
        return Encoded(both, 0, said.unknown, said.meant, said.truncated)

    def _encode_texts(self, texts: Mapping[int, str]) -> dict[int, Encoded | Exception]:
        """Texts without any known word are left out, all others encoded together."""
        if not texts:
            return {}
        if not self.model.reads_text:
            return dict.fromkeys(texts, no_words())
        plain = [canonical(text) for text in texts.values()]
        read = dict(zip(texts, self.model.read(plain), strict=True))
        encoded = attempt(self.index.encode_texts, list(read.values()))
        if isinstance(encoded, UnknownWordsError):
            strange = {
                at: unknown_words(texts[at]) for at in map(list(texts).__getitem__, encoded.rows)
            }
            return strange | self._encode_texts(
                {at: texts[at] for at in texts if at not in strange}
            )
        if isinstance(encoded, Exception):
            return dict.fromkeys(texts, encoded)
        batch, familiar = encoded
        return {
            at: Encoded(batch, row, *self.index.words_of(read[at]), read[at].truncated, familiar)
            for row, at in enumerate(texts)
        }

    def _encode_images(self, pictures: Mapping[int, Image.Image]) -> dict[int, Encoded | Exception]:
        """Together; where one spoils the batch, one by one."""
        if not pictures:
            return {}
        encoded = attempt(self.index.encode_images, list(pictures.values()))
        if not isinstance(encoded, Exception):
            batch, familiar = encoded
            return {at: Encoded(batch, row, familiar=familiar) for row, at in enumerate(pictures)}
        alone = {at: attempt(self.index.encode_images, [p]) for at, p in pictures.items()}
        return {
            at: one if isinstance(one, Exception) else Encoded(one[0], 0, familiar=one[1])
            for at, one in alone.items()
        }

    def encode_texts(self, texts: Sequence[str]) -> Gaussian:
        """Captions; one without any known word is an error."""
        if not self.model.reads_text:
            raise no_words()
        try:
            return self.model.encode_texts(texts)
        except UnknownWordsError as error:
            raise unknown_words(texts[error.rows[0]]) from error

    # ---- everything else ----

    def about(self) -> About:
        def make() -> About:
            index, recipe, limits = self.index, self.model.recipe, Limits.__dataclass_fields__
            some = index.some(1)[0]
            return About(
                version=__version__,
                model=recipe.title or recipe.model.system,
                similarity=index.manifest.similarity,
                dimension=recipe.model.dim,
                probabilistic=recipe.model.has_variance,
                thumbnails=bool(some) and index.get(some[0].id).thumbnail is not None,
                originals=self._photos is not None,
                review=self.review is not None,
                images=self.sizes["images"],
                captions=self.sizes["captions"],
                examples=index.examples(),
                limits=Limits(**{name: getattr(self.settings, name) for name in limits}),
            )

        about: About = self._cached("about", make)
        return about

    def record(self, id: str, gallery: Gallery = "images") -> Record:
        """An item with its thumbnail."""
        try:
            return self.index.get(id, gallery)
        except ValueError as error:  # its message names files of the server
            raise ApiError(
                404, "no_item", f"there is no item {id!r} among the {gallery}"
            ) from error

    @property
    def _photos(self) -> Path | None:
        """The folder that the photos came from, if it is there and may be shown."""
        if not self.settings.originals:
            return None
        folder = self.settings.photos or self.index.own_folder
        return folder if folder is not None and folder.is_dir() else None

    def original(self, id: str) -> tuple[Path, str]:
        """The file of a picture: the folder that the index was made from, and a name below it that
        may be anything (``files.open_below``)."""
        folder, name = self._photos, self.record(id).meta.get("file")
        if folder is None or not isinstance(name, str) or Path(name).suffix.lower() not in SUFFIXES:
            raise no_picture(id)
        return folder, name

    def members(self, ids: Sequence[str]) -> list[Member]:
        """Pictures for a download."""
        found = []
        for id in ids:
            record = self.record(id)
            file = record.meta.get("file")
            usable = isinstance(file, str) and Path(file).suffix.lower() in SUFFIXES
            name = PurePosixPath(str(file) if usable else f"{id}.jpg").name
            shown = "".join(sign if sign.isprintable() else "_" for sign in name)
            folder = self._photos if usable else None
            found.append(Member(shown, folder, str(file), record.thumbnail))
        return found

    def fields(self) -> FieldsResponse:
        def make() -> FieldsResponse:
            some = islice(self.index.records(), FIELD_ITEMS)
            return FieldsResponse(describe_fields(record.meta for record in some))

        found: FieldsResponse = self._cached("fields", make)
        return found

    def findings(self) -> ReviewResponse:
        if self.review is None:
            raise ApiError(
                404, "no_review", "there is nothing to review; serve with --review AUDIT"
            )
        return self.review

    def finding_picture(self, number: int) -> bytes:
        """A picture of the data that was audited."""
        self.findings()
        assert self.settings.review is not None
        return finding_picture(self.settings.review, number)

    def _gaussian(self, id: str) -> Gaussian:
        self.record(id)
        return self.index.gaussian(id)

    def item(self, id: str, gallery: Gallery) -> ItemResponse:
        record = self.record(id, gallery)
        (item,) = self._items([record], self.index.gaussian(id, gallery), gallery)
        return item

    # ---- browsing ----

    @property
    def catalog(self) -> Catalog:
        """All pictures by date, folder, place and name."""
        found: Catalog = self._cached("catalog", lambda: Catalog(self.index.records()))
        return found

    def timeline(self, folder: str | None, box: Box | None) -> Timeline:
        rows = self.catalog.rows(folder, box)
        mark = str(self.index.manifest.generation)
        return Timeline(self.catalog.months(rows), len(rows), mark)

    def browse(self, offset: int, k: int, folder: str | None, box: Box | None) -> BrowseResponse:
        """Some pictures of the timeline."""
        catalog = self.catalog
        rows = catalog.rows(folder, box)[offset : offset + k].tolist()
        return BrowseResponse([catalog.ids[r] for r in rows], [catalog.taken[r] for r in rows])

    def albums(self) -> bytes:
        return bytes(self._cached("albums", lambda: dumps(Albums(self.catalog.albums()))))

    def spots(self) -> bytes:
        def make() -> bytes:
            return dumps(Spots(self.catalog.spots(self.settings.map_items)))

        return bytes(self._cached("spots", make))

    def named(self, text: str, k: int) -> NamedResponse:
        """Pictures whose names say what is searched for."""
        found = self.catalog.named(text, k)
        metas = [self.record(hit.id).meta for hit in found.hits]
        return NamedResponse(found, metas)

    def map(self, where: Where = EVERYTHING) -> bytes:
        def make() -> bytes:
            plane = self._plane()
            records, g = self.index.some(self.settings.map_items)
            assert g is not None
            kept = [at for at, record in enumerate(records) if where.holds(record.meta)]
            if len(kept) < len(records):
                records, g = [records[at] for at in kept], g[kept]
            places, sure = plane(g), self._uncertainty(g, "images")[1]
            columns: dict[str, Any] = {
                name: [getattr(place, name) for place in places]
                for name in ("x", "y", "a", "b", "angle")
            }
            if g.is_point:
                columns |= dict.fromkeys(("a", "b", "angle"))
            return dumps(
                Map(
                    ids=[record.id for record in records],
                    percentile=None if None in sure else [round(share, 1) for share in sure],
                    total=self.sizes["images"],
                    explained=plane.explained,
                    **columns,
                )
            )

        if where.conditions:
            return make()
        found: bytes = self._cached("map", make)
        return found

    def _plane(self) -> PlaneProjection:
        def make() -> PlaneProjection:
            _, g = self.index.some(MAP_MEANS)
            if g is None:
                raise ApiError(404, "empty", "the index holds no pictures yet; add some")
            return PlaneProjection.fit(g.mean)

        plane: PlaneProjection = self._cached("plane", make)
        return plane

    def _items(
        self, records: Sequence[Record], g: Gaussian | None, gallery: Gallery = "images"
    ) -> list[ItemResponse]:
        if g is None:
            return []
        known = zip(records, *self._uncertainty(g, gallery), strict=True)
        images = gallery == "images"
        ambiguity = self.index.calibration.ambiguity(g) if images else [{}] * len(g)
        return [
            ItemResponse(r.id, gallery, unsure, percentile, r.meta, gauges)
            for (r, unsure, percentile), gauges in zip(known, ambiguity, strict=True)
        ]

    def text_uncertainty(self, text: str) -> Uncertainty:
        """How vague a caption is, in the form in which it would be searched for. What the model
        mostly does not know is not called vague, as in a search."""
        if not self.model.reads_text:
            raise no_words()
        read = self.model.read([canonical(text)])
        try:
            g, familiar = self.index.encode_texts(read)
        except UnknownWordsError as error:
            raise unknown_words(text) from error
        found = self.uncertainty(g, "captions", familiar)
        if mostly_known(text, self.index.calibration.unknown_words(read[0])):
            return found
        return Uncertainty.of(found.uncertainty, None, "captions")

    def picture_uncertainty(self, picture: Image.Image) -> Uncertainty:
        """How ambiguous a picture is."""
        g, familiar = self.index.encode_images([picture])
        return self.uncertainty(g, "images", familiar)

    def uncertainty(
        self, g: Gaussian, side: Gallery, familiar: np.ndarray | None = None
    ) -> Uncertainty:
        """How vague one caption, or how ambiguous one picture is."""
        (unsure,), (percentile,) = self._uncertainty(g, side, familiar)
        known = percentile is not None and percentile == percentile
        return Uncertainty.of(unsure, percentile if known else None, side)

    def _uncertainty(
        self, g: Gaussian, side: Gallery, familiar: np.ndarray | None = None
    ) -> tuple[list[Any], list[Any]]:
        """Uncertainties and percentiles of Gaussians, ``None`` where there are none."""
        nothing = [None] * len(g)
        if g.is_point:
            return nothing, nothing
        unsure = g.uncertainty().double().numpy()
        percentile = self.index.calibration.percentile(side, unsure, familiar)
        return unsure.tolist(), nothing if percentile is None else percentile.tolist()

    def suggest(self, text: str, k: int) -> Suggestions:
        if not self.model.reads_text:
            raise no_words()
        try:
            return Suggestions(self.index.suggest(text, k))
        except UnknownWordsError as error:
            raise unknown_words(text) from error


def no_picture(id: str) -> ApiError:
    return ApiError(
        404, "no_picture", f"{id!r} is not here in full size; /api/thumbnail may have it"
    )


def kind(query: Query) -> str:
    """What kind of query it is, for what was learned of such."""
    return length_of(canonical(query.words)) if query.type == "text" else IMAGE


def unknown_words(text: str) -> ApiError:
    return ApiError(
        422,
        "unknown_words",
        f"the model knows no word of {text[:60]!r}; use words like those of its captions",
    )


def no_words() -> ApiError:
    return ApiError(
        422,
        "invalid",
        "this model was adapted to embeddings and reads no words: search with an item of the "
        "index, or adapt it again with --text-encoder NAME",
    )


def attempt(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What it returns, or the exception that it raises."""
    try:
        return work(*args, **options)
    except Exception as error:
        return error
