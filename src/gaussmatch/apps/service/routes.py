"""The API: one small function a route."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from io import FileIO
from itertools import islice
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from gaussmatch.apps.service import page, requests
from gaussmatch.apps.service.engine import Engine, SearchJob, no_picture
from gaussmatch.apps.service.requests import picture, read, read_body
from gaussmatch.apps.service.responses import (
    About,
    Albums,
    ApiError,
    BrowseResponse,
    EmbeddingsResponse,
    ErrorResponse,
    FieldsResponse,
    ItemResponse,
    Json,
    Map,
    NamedResponse,
    OpenFile,
    ReviewResponse,
    SearchResponse,
    Spots,
    Status,
    Suggestions,
    Timeline,
    Uncertainty,
    describe_fields,
    dumps,
    etag,
    finding_picture,
    unless_known,
    zipped,
)
from gaussmatch.data.decoder import sniffed
from gaussmatch.data.pictures import SHOWN, jpeg
from gaussmatch.files import open_below
from gaussmatch.search import Query
from gaussmatch.search.query import EVERYTHING, Scope

if TYPE_CHECKING:
    from gaussmatch.apps.service.app import Service

Endpoint = Callable[[Request], Awaitable[Response]]
FIELD_ITEMS = 50_000
"""Items whose metadata is looked at for what they can be filtered by."""

ERRORS = {
    400: "The request is malformed.",
    401: "The API key is missing or wrong.",
    403: "The request comes from a page elsewhere, which --cors does not allow.",
    404: "There is no such item.",
    413: "Too many bytes or pixels.",
    408: "The request did not arrive in time.",
    415: "The body is not a picture of a supported format.",
    421: "The service does not answer to this host name.",
    422: "A parameter is missing or wrong.",
    429: "Too many requests from this key or address.",
    431: "Headers or trailers are too long.",
    500: "The service failed; its log says why.",
    503: "Too many requests are waiting, or the service is stopping.",
    504: "The time limit was reached.",
}
ALWAYS = (400, 401, 403, 408, 413, 421, 422, 429, 431, 500, 503, 504)
"""Errors of every route below /api; others are named by the route."""

BINARY = {"type": "string", "format": "binary"}
FORM = {"type": "object", "required": ["image"], "properties": {"image": BINARY}}
IMAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"image/*": {"schema": BINARY}, "multipart/form-data": {"schema": FORM}},
    }
}
"""A picture is the body itself, or the file ``image`` of a form."""

ZIP = "application/zip"

api = APIRouter(prefix="/api")
probes = APIRouter(tags=["probes"])


Work = Callable[..., Any]


def route(
    method: str,
    path: str,
    tag: str,
    answer: type | Sequence[str],
    parameters: type[BaseModel] = requests.Nothing,
    errors: tuple[int, ...] = (),
    body: dict[str, Any] | None = None,
) -> Callable[[Work], Work]:
    """Register what answers, with all that OpenAPI says of it.

    A plain function is work for the engine: it is called with it and the parameters, in its turn. A
    coroutine is called with the service, the parameters and the request. What they return is sent
    as JSON, unless it is a response.

    Args:
        answer: the type of the JSON, or the media types of what is sent instead.
    """
    content: dict[int | str, dict[str, Any]] = {200: {"model": answer}}
    if not isinstance(answer, type):
        content = {200: {"content": {type: {"schema": BINARY} for type in answer}}}
        if method == "GET":
            content[304] = {"description": "The browser has it (If-None-Match)."}

    def register(work: Work) -> Work:
        for_engine = not inspect.iscoroutinefunction(work)

        async def endpoint(request: Request) -> Response:
            service = service_of(request)
            given = read(parameters, request, service.settings)
            if for_engine:
                made = await service.batcher(partial(work, service.engine, given))
            else:
                made = await work(service, given, request)
            if isinstance(made, Response):
                return made
            return Json(made if isinstance(made, bytes) else dumps(made))

        endpoint.__name__, endpoint.__doc__ = work.__name__, work.__doc__
        api.add_api_route(
            path,
            endpoint,
            methods=[method],
            tags=[tag],
            response_class=Json if isinstance(answer, type) else Response,
            responses={**content, **_errors(*errors)},
            openapi_extra={"parameters": _described(parameters), **(body or {})},
        )
        return work

    return register


def _errors(*more: int, always: Sequence[int] = ALWAYS) -> dict[int | str, dict[str, Any]]:
    return {
        status: {"model": ErrorResponse, "description": ERRORS[status]}
        for status in sorted({*always, *more})
    }


def _described(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Parameters of an address as OpenAPI describes them."""
    schema = model.model_json_schema()
    described = []
    for name, field in schema["properties"].items() if "properties" in schema else ():
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        if "description" in field:
            parameter["description"] = field["description"]
        described.append({**parameter, "schema": field})
    return described


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


# ---- search ----


@route("GET", "/search", "search", SearchResponse, requests.TextSearch, (404,))
async def search(service: Service, given: requests.TextSearch, request: Request) -> Any:
    """Search with words."""
    return await service.batcher(job(given))


@route("POST", "/search/image", "search", SearchResponse, requests.ImageSearch, (404, 415), IMAGE)
async def search_image(service: Service, given: requests.ImageSearch, request: Request) -> Any:
    """Search with a picture."""
    async with picture(request, service) as image:
        return await service.batcher(job(given, picture=image))


@route("GET", "/similar", "search", SearchResponse, requests.ItemSearch, (404,))
async def similar(service: Service, given: requests.ItemSearch, request: Request) -> Any:
    """More like a picture of the index."""
    return await service.batcher(job(given, item=given.id))


@route("GET", "/captions", "search", SearchResponse, requests.CaptionSearch, (404,))
async def captions(service: Service, given: requests.CaptionSearch, request: Request) -> Any:
    """The captions nearest to a picture of the index."""
    scope = Scope(given.k, "captions")
    return await service.batcher(SearchJob(Query(item=given.id), scope, given.k))


def job(given: requests.SearchOptions, **what: Any) -> SearchJob:
    """A search for words, with a picture or the id of one."""
    scope = Scope(
        given.offset + given.k,
        getattr(given, "gallery", "images"),
        given.where or EVERYTHING,
        given.exclude or (),
        given.guarantee,
        given.promise,
    )
    query = Query(given.text, like=given.like or (), unlike=given.unlike or (), **what)
    return SearchJob(query, scope, given.k, given.offset, given.sort, given.map, given.groups)


@route("GET", "/suggest", "search", Suggestions, requests.Suggest)
def suggest(engine: Engine, given: requests.Suggest) -> Suggestions:
    """Captions of the index that say the same more precisely."""
    with engine.reading(given.text):
        return Suggestions(engine.index.suggest(given.text, given.k))


# ---- items ----


@route("GET", "/about", "items", About)
def about(engine: Engine, given: requests.Nothing) -> About:
    """What is served here, and its limits."""
    return engine.about()


@route("GET", "/item", "items", ItemResponse, requests.GalleryItem, (404,))
def item(engine: Engine, given: requests.GalleryItem) -> ItemResponse:
    """An item of the index."""
    record = engine.record(given.id, given.gallery)
    g = engine.index.gaussian(given.id, given.gallery)
    (unsure,), (percentile,) = engine.uncertainties(g, given.gallery)
    gauges = engine.index.calibration.ambiguity(g)[0] if given.gallery == "images" else {}
    return ItemResponse(record.id, given.gallery, unsure, percentile, record.meta, gauges)


@route("GET", "/names", "search", NamedResponse, requests.Names)
def names(engine: Engine, given: requests.Names) -> NamedResponse:
    """Pictures whose folder, file name or caption has the words."""
    found = engine.catalog.named(given.text, given.k)
    return NamedResponse(found, [engine.record(hit.id).meta for hit in found.hits])


@route("GET", "/fields", "items", FieldsResponse)
def fields(engine: Engine, given: requests.Nothing) -> FieldsResponse:
    """The metadata that pictures can be filtered by."""

    def make() -> FieldsResponse:
        some = islice(engine.index.records(), FIELD_ITEMS)
        return FieldsResponse(describe_fields(record.meta for record in some))

    return engine.cached("fields", make)


# ---- browsing ----


@route("GET", "/timeline", "browse", Timeline, requests.Shelf)
def timeline(engine: Engine, given: requests.Shelf) -> Timeline:
    """How many pictures each month has: of all, of a folder, or of a place."""
    rows = engine.catalog.rows(given.folder, given.box)
    mark = str(engine.index.manifest.generation)
    return Timeline(engine.catalog.months(rows), len(rows), mark)


@route("GET", "/browse", "browse", BrowseResponse, requests.Browse)
def browse(engine: Engine, given: requests.Browse) -> BrowseResponse:
    """Some pictures of the timeline, newest first."""
    catalog, end = engine.catalog, given.offset + given.k
    rows = catalog.rows(given.folder, given.box)[given.offset : end].tolist()
    return BrowseResponse([catalog.ids[r] for r in rows], [catalog.taken[r] for r in rows])


@route("GET", "/albums", "browse", Albums)
def albums(engine: Engine, given: requests.Nothing) -> bytes:
    """The folders of the pictures."""
    return engine.cached("albums", lambda: dumps(Albums(engine.catalog.albums())))


@route("GET", "/places", "browse", Spots)
def places(engine: Engine, given: requests.Nothing) -> bytes:
    """Where pictures were taken."""
    most = engine.settings.map_items
    return engine.cached("spots", lambda: dumps(Spots(engine.catalog.spots(most))))


# ---- pictures ----


def sent(request: Request, content: bytes) -> Response:
    """A small picture."""

    def make(headers: Mapping[str, str]) -> Response:
        return Response(content, media_type="image/jpeg", headers=headers)

    return unless_known(request, etag(content), make)


@route("GET", "/thumbnail", "items", ["image/jpeg"], requests.ItemId, (404,))
async def thumbnail(service: Service, given: requests.ItemId, request: Request) -> Response:
    """The small picture of an item, as it is kept inside the index."""
    record = await service.batcher(partial(service.engine.record, given.id))
    if record.thumbnail is None:
        raise ApiError(404, "no_thumbnail", f"{given.id!r} has no thumbnail in the index")
    return sent(request, record.thumbnail)


@route("GET", "/picture", "items", list(SHOWN.values()), requests.ItemId, (404,))
async def full_picture(service: Service, given: requests.ItemId, request: Request) -> Response:
    """A picture in full size: its file, where that is still in the folder that the index was made
    from; as JPEG where browsers do not show its format."""
    folder, name = await service.batcher(partial(service.engine.original, given.id))
    try:
        async with AsyncExitStack() as stack:
            # one file is opened, looked at and sent: never a path that was looked at before
            # (nor in a decoder's thread: uploads that take long would keep it waiting)
            file = stack.enter_context(await asyncio.to_thread(open_below, folder, name))
            mark, format = await asyncio.to_thread(_looked_at, file)
            if request.headers.get("if-none-match") != mark and format not in SHOWN:
                image = await stack.enter_async_context(service.opened(file))
                data = await asyncio.to_thread(partial(jpeg, image, quality=90))

            def make(headers: Mapping[str, str]) -> Response:
                if format not in SHOWN:
                    return Response(data, media_type="image/jpeg", headers=headers)
                stack.pop_all()
                return OpenFile(file, SHOWN[format], headers)

            return unless_known(request, mark, make)
    except (OSError, ValueError) as error:
        raise no_picture(given.id) from error


def _looked_at(file: FileIO) -> tuple[str, str]:
    """The mark of an open picture, and its format."""
    mark = etag(file)
    file.seek(0)
    return mark, sniffed(os.pread(file.fileno(), 16, 0))


@route("POST", "/zip", "items", [ZIP], errors=(404,), body=requests.body(requests.IdsBody))
async def download(service: Service, given: requests.Nothing, request: Request) -> Response:
    """Several pictures as one file: the photos themselves where they are, else the small ones."""
    wanted = await read_body(requests.IdsBody, request, service.settings)
    ids, most = list(dict.fromkeys(wanted.ids)), service.settings.max_zip
    if len(ids) > most:
        raise ApiError(422, "too_many", f"at most {most:,} pictures are sent at once; choose fewer")
    members = await service.batcher(partial(service.engine.members, ids))
    headers = {"Content-Disposition": 'attachment; filename="pictures.zip"'}
    return StreamingResponse(zipped(members), media_type=ZIP, headers=headers)


# ---- review ----


@route("GET", "/review", "review", ReviewResponse, errors=(404,))
def review(engine: Engine, given: requests.Nothing) -> ReviewResponse:
    """What an audit found, for people to decide about."""
    if engine.review is None:
        raise ApiError(404, "no_review", "there is nothing to review; serve with --review AUDIT")
    return engine.review


@route("GET", "/review/picture", "items", ["image/jpeg"], requests.ImageNumber, (404,))
async def review_picture(
    service: Service, given: requests.ImageNumber, request: Request
) -> Response:
    """A picture of the data that was audited."""

    def found() -> bytes:
        review(service.engine, requests.Nothing())
        assert service.settings.review is not None
        return finding_picture(service.settings.review, given.image)

    return sent(request, await service.batcher(found))


# ---- Gaussians ----


@route(
    "POST", "/embed/text", "gaussians", EmbeddingsResponse, body=requests.body(requests.TextsBody)
)
async def embed_text(service: Service, given: requests.Nothing, request: Request) -> Any:
    """Captions → Gaussians."""
    texts = (await read_body(requests.TextsBody, request, service.settings)).texts

    def encoded() -> EmbeddingsResponse:
        with service.engine.reading(*texts):
            return EmbeddingsResponse.of(service.engine.model.encode_texts(texts))

    return await service.batcher(encoded)


@route("POST", "/embed/image", "gaussians", EmbeddingsResponse, errors=(415,), body=IMAGE)
async def embed_image(service: Service, given: requests.Nothing, request: Request) -> Any:
    """A picture → its Gaussian."""
    async with picture(request, service) as image:
        engine = service.engine
        return await service.batcher(
            lambda: EmbeddingsResponse.of(engine.model.encode_images([image]))
        )


@route("GET", "/uncertainty", "gaussians", Uncertainty, requests.Text)
def uncertainty(engine: Engine, given: requests.Text) -> Uncertainty:
    """How vague a caption is."""
    return engine.text_uncertainty(given.text)


@route("POST", "/uncertainty/image", "gaussians", Uncertainty, errors=(415,), body=IMAGE)
async def uncertainty_image(service: Service, given: requests.Nothing, request: Request) -> Any:
    """How ambiguous a picture is."""
    async with picture(request, service) as image:
        return await service.batcher(partial(service.engine.picture_uncertainty, image))


@route("GET", "/map", "gaussians", Map, requests.MapOptions, errors=(404,))
def embedding_map(engine: Engine, given: requests.MapOptions) -> bytes:
    """Pictures on the two principal axes of the means, their Gaussians as ellipses."""
    return engine.map(given.where or EVERYTHING)


# ---- probes and the page ----


@probes.get("/healthz", response_class=Json, responses={200: {"model": Status}})
async def healthz(request: Request) -> Response:
    """The process is alive."""
    return Json(dumps(Status("alive")))


@probes.get(
    "/readyz", response_class=Json, responses={200: {"model": Status}, **_errors(503, always=())}
)
async def readyz(request: Request) -> Response:
    """The index is open and answers, the model is loaded and has answered once."""
    if not service_of(request).ready:
        raise ApiError(503, "not_ready", "the service is starting or stopping; try again")
    backend = service_of(request).engine.index.backend
    if backend.remote and not await asyncio.to_thread(backend.alive):
        raise ApiError(503, "not_ready", "the server that keeps the index does not answer")
    return Json(dumps(Status("ready")))


@probes.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **_errors(401, 429, always=()),
    },
)
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


def endpoints() -> dict[tuple[str, str], Endpoint]:
    """Method and path → endpoint."""
    known = [r for r in (*api.routes, *probes.routes) if isinstance(r, APIRoute)]
    return {(method, r.path): r.endpoint for r in known for method in r.methods or ()}


def add_page(app: FastAPI) -> None:
    """One route for each file of the page; no other file has an address."""
    for path, file in page.load().items():
        app.add_route(path, sender(file), methods=["GET", "HEAD"], include_in_schema=False)


def sender(file: page.PageFile) -> Endpoint:
    """What sends a file of the page."""

    async def send(request: Request) -> Response:
        def make(headers: Mapping[str, str]) -> Response:
            return Response(file.content, media_type=file.media_type, headers=headers)

        return unless_known(request, file.etag, make)

    return send
