"""The engine: everything that touches the index or the model.

Only the batcher calls it, one batch at a time: the queries of a batch are encoded together and
searched together, other jobs run one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path, PureWindowsPath
from typing import Any, Literal, TypeVar

import numpy as np
from PIL import Image

from gaussmatch import __version__
from gaussmatch.apps.service.logs import LOGGER
from gaussmatch.apps.service.responses import (
    About,
    ApiError,
    Limits,
    Map,
    Member,
    OnMap,
    ReviewResponse,
    SearchResponse,
    Uncertainty,
    dumps,
)
from gaussmatch.apps.service.settings import Settings
from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.data.language import canonical, mostly_known
from gaussmatch.data.pictures import SUFFIXES
from gaussmatch.learn.plot import PlaneProjection
from gaussmatch.models.model import Model, UnknownWordsError
from gaussmatch.search import GALLERIES, Gallery, Index, Query, Record, Where
from gaussmatch.search.catalog import Catalog
from gaussmatch.search.manifest import UnknownItemError
from gaussmatch.search.near import grouped, sketch_in
from gaussmatch.search.query import EVERYTHING, Scope, Searched, run
from gaussmatch.search.where import UnknownFieldError, unknown_field

T = TypeVar("T")
QueryType = Literal["text", "image", "item"]

MAP_MEANS = 5000
"""How many means the axes of the map are fitted to."""
SKETCHES = 20_000
"""Pictures whose details are kept."""


@dataclass(slots=True, eq=False)
class SearchJob(Searched):
    """A search of a client, and what to show of it.

    Args:
        k, offset: a page of the results, which are in the scope.
        on_map: whether to say where query and results are on the map.
        groups: whether to say which results show nearly the same.
    """

    k: int = 10
    offset: int = 0
    sort: str = ""
    on_map: bool = False
    groups: bool = False

    @property
    def type(self) -> QueryType:
        if self.query.item is not None:
            return "item"
        return "text" if self.query.picture is None else "image"


Job = SearchJob | Callable[[], Any]
"""A search, or anything else that needs the index."""


def light(job: Job) -> bool:
    """Whether it is a search that encodes no picture: brief, if the model is small."""
    return isinstance(job, SearchJob) and job.query.picture is None


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
        self._sketch = lru_cache(SKETCHES)(self._sketched)
        self.sizes = self._count()
        self.review = None if settings.review is None else ReviewResponse.of(settings.review)

    @property
    def model(self) -> Model:
        """Of the index as it is now: another one may have taken its place."""
        return self.index.model

    def warm_up(self) -> None:
        """Load what the first request would have to wait for; a broken index fails here."""
        if self.model.example_text and self.sizes["images"]:
            (answer,) = self.run([SearchJob(Query(self.model.example_text), Scope(k=1))])
            if isinstance(answer, Exception):
                raise answer
        self.about()

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """A result or an exception for each job: JSON for a query, else what the job returns."""
        self._reload()
        searches = [job for job in jobs if isinstance(job, SearchJob)]
        for job in searches:
            if job.query.asked is not None and not self.model.reads_text:
                job.result = no_words()
        run(self.index, searches)
        return [
            attempt(self._answer, job) if isinstance(job, SearchJob) else attempt(job)
            for job in jobs
        ]

    def _reload(self) -> None:
        if time.monotonic() - self._checked > self._reload_every:
            self._checked = time.monotonic()
            try:
                changed, sizes = self.index.reload(), self._count()
            except Exception:  # keep what is open
                LOGGER.exception("the index cannot be read again")
                return
            if changed or sizes != self.sizes:
                self._cache.clear()
                self._sketch.cache_clear()
                self.sizes = sizes

    def _count(self) -> dict[str, int]:
        return {gallery: self.index.size(gallery) for gallery in GALLERIES}

    def cached(self, name: str, make: Callable[[], T]) -> T:
        """Something that holds until the index changes."""
        if name not in self._cache:
            self._cache[name] = make()
        found: T = self._cache[name]
        return found

    # ---- search ----

    def _answer(self, job: SearchJob) -> bytes:
        """The page of the results that a client has asked for."""
        if isinstance(job.result, Exception):
            raise refusal(job.result, job)
        hits = job.hits
        if hits.percentile is not None:
            self.observe(job.type, hits.percentile)
        hits = hits.part(job.offset, job.k)
        if job.sort:
            order = job.sort.removeprefix("-")
            hits = hits.sorted(order, descending=order != job.sort)
            if not any(order in hit.meta for hit in hits.hits):
                lost = unknown_field([order], self.index.fields(hits.gallery))
                hits = replace(hits, notes=[*hits.notes, *lost])
        places = groups = None
        if (job.on_map or job.groups) and hits.hits and self.sizes["images"]:
            items = Gaussian.cat([self.index.gaussian(id, hits.gallery) for id in hits.ids])
            if job.groups:
                metas = [hit.meta for hit in hits.hits]
                sketched = partial(self._sketch, gallery=hits.gallery)
                means = items.mean.double().numpy()
                groups = grouped(means, metas, lambda at: sketched(hits.ids[at]))
            if job.on_map:
                own = items[:1] if job.gaussian is None else job.gaussian
                query, *of_hits = self._plane()(Gaussian.cat([own, items]))
                places = OnMap(query, of_hits)
        return dumps(SearchResponse(hits, places, groups))

    @contextmanager
    def reading(self, *texts: str) -> Iterator[None]:
        """For work that reads words: a model that reads none, or knows none of them, is said."""
        if not self.model.reads_text:
            raise no_words()
        try:
            yield
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

        return self.cached("about", make)

    def record(self, id: str, gallery: Gallery = "images") -> Record:
        """An item with its thumbnail."""
        try:
            return self.index.get(id, gallery)
        except UnknownItemError as error:  # its message names files of the server
            raise no_item(error) from error

    def _sketched(self, id: str, gallery: Gallery) -> np.ndarray | None:
        return sketch_in(self.index.get(id, gallery).thumbnail)

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
        folder, name = self._photos, photo_name(self.record(id))
        if folder is None or name is None:
            raise no_picture(id)
        return folder, name

    def members(self, ids: Sequence[str]) -> list[Member]:
        """Pictures for a download."""
        found = []
        for id in ids:
            record = self.record(id)
            file = photo_name(record)
            # none that leaves a folder, also if "\\" is "/"
            name = PureWindowsPath(file or f"{id}.jpg").name
            shown = "".join(sign if sign.isprintable() else "_" for sign in name)
            folder = self._photos if file else None
            found.append(Member(shown, folder, file or "", record.thumbnail))
        return found

    # ---- browsing ----

    @property
    def catalog(self) -> Catalog:
        """All pictures by date, folder, place and name."""
        return self.cached("catalog", lambda: Catalog(self.index.records()))

    def map(self, where: Where = EVERYTHING) -> bytes:
        def make() -> bytes:
            plane = self._plane()
            records, g = self.index.some(self.settings.map_items)
            assert g is not None
            kept = [at for at, record in enumerate(records) if where.holds(record.meta)]
            if len(kept) < len(records):
                records, g = [records[at] for at in kept], g[kept]
            places, sure = plane(g), self.uncertainties(g, "images")[1]
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

        return make() if where.conditions else self.cached("map", make)

    def _plane(self) -> PlaneProjection:
        def make() -> PlaneProjection:
            _, g = self.index.some(MAP_MEANS)
            if g is None:
                raise ApiError(404, "empty", "the index holds no pictures yet; add some")
            return PlaneProjection.fit(g.mean)

        return self.cached("plane", make)

    def text_uncertainty(self, text: str) -> Uncertainty:
        """How vague a caption is, in the form in which it would be searched for. What the model
        mostly does not know is not called vague, as in a search."""
        with self.reading(text):
            read = self.model.read([canonical(text)])
            g, familiar = self.index.encode_texts(read)
        known = mostly_known(text, self.index.calibration.unknown_words(read[0]))
        return self.uncertainty(g, "captions", familiar, known)

    def picture_uncertainty(self, picture: Image.Image) -> Uncertainty:
        """How ambiguous a picture is."""
        g, familiar = self.index.encode_images([picture])
        return self.uncertainty(g, "images", familiar)

    def uncertainty(
        self,
        g: Gaussian | ArrayGaussian,
        side: Gallery,
        familiar: np.ndarray | None = None,
        known: bool = True,
    ) -> Uncertainty:
        """How vague one caption, or how ambiguous one picture is; a percentile only if the model
        knows such."""
        (unsure,), (percentile,) = self.uncertainties(g, side, familiar)
        said = known and percentile is not None and percentile == percentile
        return Uncertainty.of(unsure, percentile if said else None, side)

    def uncertainties(
        self, g: Gaussian | ArrayGaussian, side: Gallery, familiar: np.ndarray | None = None
    ) -> tuple[list[Any], list[Any]]:
        """Uncertainties and percentiles of Gaussians, ``None`` where there are none."""
        nothing = [None] * len(g)
        if g.is_point:
            return nothing, nothing
        own = g.numpy() if isinstance(g, Gaussian) else g
        unsure = own.uncertainty().astype(np.float64)
        percentile = self.index.calibration.percentile(side, unsure, familiar)
        return unsure.tolist(), nothing if percentile is None else percentile.tolist()


def photo_name(record: Record) -> str | None:
    """The file of a picture below the folder of its index, if it has a name that one may have."""
    name = record.meta.get("file")
    known = isinstance(name, str) and Path(name).suffix.lower() in SUFFIXES
    return name if known else None


def no_item(error: UnknownItemError) -> ApiError:
    return ApiError(404, "no_item", f"there is no item {error.id!r} among the {error.gallery}")


def no_picture(id: str) -> ApiError:
    return ApiError(
        404, "no_picture", f"{id!r} is not here in full size; /api/thumbnail may have it"
    )


def refusal(error: Exception, job: SearchJob) -> Exception:
    """What a client is told of a search that failed; an error of the service stays what it is."""
    if isinstance(error, UnknownWordsError):
        return unknown_words(job.query.words)
    if isinstance(error, UnknownItemError):
        return no_item(error)
    if isinstance(error, UnknownFieldError):
        return ApiError(422, "bad_filter", f"where: {error}")
    if isinstance(error, ValueError) and job.scope.guarantee is not None:
        return ApiError(422, "no_guarantee", str(error))
    return error


def unknown_words(text: str) -> ApiError:
    return ApiError(
        422,
        "unknown_words",
        f"the model does not know any word of {text[:60]!r}; use words that captions use",
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
