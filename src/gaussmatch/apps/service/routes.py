"""The API: one small function a route."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from gaussmatch.apps.service import page, requests
from gaussmatch.apps.service.engine import SearchJob, no_picture
from gaussmatch.apps.service.requests import (
    checked_box,
    checked_count,
    checked_ids,
    checked_text,
    checked_where,
    picture,
    read,
)
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
    dumps,
    etag,
    unless_known,
    zipped,
)
from gaussmatch.data.decoder import sniffed
from gaussmatch.data.pictures import SHOWN, jpeg
from gaussmatch.files import open_below
from gaussmatch.search import Query
from gaussmatch.search.query import Scope

if TYPE_CHECKING:
    from gaussmatch.apps.service.app import Service

Endpoint = Callable[[Request], Awaitable[Response]]
MOST_PICTURES = 16
"""Pictures that a search may be like, and as many that it must not be like."""

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

IMAGE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {"image": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}
"""A picture is the body itself, or the file ``image`` of a form."""

ZIP = "application/zip"

api = APIRouter(prefix="/api")
probes = APIRouter(tags=["probes"])


def route(
    method: str,
    path: str,
    tag: str,
    answer: type,
    parameters: type[BaseModel] = requests.Nothing,
    errors: tuple[int, ...] = (),
    body: dict[str, Any] | None = None,
) -> Callable[[Endpoint], Endpoint]:
    """Register an endpoint with all that OpenAPI says of it."""
    return api.api_route(
        path,
        methods=[method],
        tags=[tag],
        response_class=Json,
        responses={200: {"model": answer}, **_errors(*errors)},
        openapi_extra={"parameters": _described(parameters), **(body or {})},
    )


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


async def run(request: Request, job: Callable[[], Any]) -> Response:
    """What a job of the engine returns, as JSON."""
    return Json(dumps(await service_of(request).batcher(job)))


# ---- search ----


@route("GET", "/search", "search", SearchResponse, requests.TextSearch, (404,))
async def search(request: Request) -> Response:
    """Search with words."""
    service = service_of(request)
    return Json(await service.batcher(checked(service, read(requests.TextSearch, request))()))


@route("POST", "/search/image", "search", SearchResponse, requests.ImageSearch, (404, 415), IMAGE)
async def search_image(request: Request) -> Response:
    """Search with a picture."""
    service = service_of(request)
    job = checked(service, read(requests.ImageSearch, request))
    async with picture(request, service) as image:
        return Json(await service.batcher(job(picture=image)))


@route("GET", "/similar", "search", SearchResponse, requests.ItemSearch, (404,))
async def similar(request: Request) -> Response:
    """More like a picture of the index."""
    service, given = service_of(request), read(requests.ItemSearch, request)
    return Json(await service.batcher(checked(service, given)(item=given.id)))


@route("GET", "/captions", "search", SearchResponse, requests.CaptionSearch, (404,))
async def captions(request: Request) -> Response:
    """The captions nearest to a picture of the index."""
    service, given = service_of(request), read(requests.CaptionSearch, request)
    k = checked_count(given.k, service.settings)
    return Json(await service.batcher(SearchJob(Query(item=given.id), Scope(k, "captions"), k)))


def checked(service: Service, given: requests.SearchOptions) -> Callable[..., SearchJob]:
    """A search with what all searches have in common; it takes a picture, or the id of one."""
    k, text = checked_count(given.k, service.settings), given.text
    words = None if text is None else checked_text(text, service.settings)
    like = checked_ids("like", given.like, MOST_PICTURES)
    unlike = checked_ids("unlike", given.unlike, MOST_PICTURES)
    scope = Scope(
        given.offset + k,
        getattr(given, "gallery", "images"),
        checked_where(given.where),
        checked_ids("exclude", given.exclude),
        given.guarantee,
        given.promise,
    )

    def job(**what: Any) -> SearchJob:
        query = Query(words, like=like, unlike=unlike, **what)
        return SearchJob(query, scope, k, given.offset, given.sort, given.map, given.groups)

    return job


@route("GET", "/suggest", "search", Suggestions, requests.Suggest)
async def suggest(request: Request) -> Response:
    """Captions of the index that say the same more precisely."""
    service, given = service_of(request), read(requests.Suggest, request)
    text = checked_text(given.text, service.settings)
    k = checked_count(given.k, service.settings)
    return await run(request, partial(service.engine.suggest, text, k))


# ---- items ----


@route("GET", "/about", "items", About)
async def about(request: Request) -> Response:
    """What is served here, and its limits."""
    read(requests.Nothing, request)
    return await run(request, service_of(request).engine.about)


@route("GET", "/item", "items", ItemResponse, requests.GalleryItem, (404,))
async def item(request: Request) -> Response:
    """An item of the index."""
    given = read(requests.GalleryItem, request)
    return await run(request, partial(service_of(request).engine.item, given.id, given.gallery))


@route("GET", "/names", "search", NamedResponse, requests.Names)
async def names(request: Request) -> Response:
    """Pictures whose folder, file name or caption has the words."""
    service, given = service_of(request), read(requests.Names, request)
    text = checked_text(given.text, service.settings)
    k = checked_count(given.k, service.settings)
    return await run(request, partial(service.engine.named, text, k))


# ---- browsing ----


@route("GET", "/timeline", "browse", Timeline, requests.Shelf)
async def timeline(request: Request) -> Response:
    """How many pictures each month has: of all, of a folder, or of a place."""
    given = read(requests.Shelf, request)
    box = checked_box(given.box)
    return await run(request, partial(service_of(request).engine.timeline, given.folder, box))


@route("GET", "/browse", "browse", BrowseResponse, requests.Browse)
async def browse(request: Request) -> Response:
    """Some pictures of the timeline, newest first."""
    service, given = service_of(request), read(requests.Browse, request)
    k, box = checked_count(given.k, service.settings), checked_box(given.box)
    return await run(request, partial(service.engine.browse, given.offset, k, given.folder, box))


@route("GET", "/albums", "browse", Albums)
async def albums(request: Request) -> Response:
    """The folders of the pictures."""
    read(requests.Nothing, request)
    service = service_of(request)
    return Json(await service.batcher(service.engine.albums))


@route("GET", "/places", "browse", Spots)
async def places(request: Request) -> Response:
    """Where pictures were taken."""
    read(requests.Nothing, request)
    service = service_of(request)
    return Json(await service.batcher(service.engine.spots))


@route("GET", "/fields", "items", FieldsResponse)
async def fields(request: Request) -> Response:
    """The metadata that pictures can be filtered by."""
    read(requests.Nothing, request)
    return await run(request, service_of(request).engine.fields)


def picture_route(
    path: str, parameters: type[BaseModel], types: Iterable[str] = ("image/jpeg",)
) -> Callable[[Endpoint], Endpoint]:
    """An endpoint that gives a picture, with all that OpenAPI says of it."""
    content = {type: {"schema": {"type": "string", "format": "binary"}} for type in types}
    return api.get(
        path,
        tags=["items"],
        response_class=Response,
        responses={
            200: {"content": content},
            304: {"description": "The browser has it (If-None-Match)."},
            **_errors(404),
        },
        openapi_extra={"parameters": _described(parameters)},
    )


def sent(request: Request, content: bytes) -> Response:
    """A small picture."""

    def make(headers: Mapping[str, str]) -> Response:
        return Response(content, media_type="image/jpeg", headers=headers)

    return unless_known(request, etag(content), make)


@picture_route("/thumbnail", requests.ItemId)
async def thumbnail(request: Request) -> Response:
    """The small picture of an item, as it is kept inside the index."""
    service, id = service_of(request), read(requests.ItemId, request).id
    record = await service.batcher(partial(service.engine.record, id))
    if record.thumbnail is None:
        raise ApiError(404, "no_thumbnail", f"{id!r} has no thumbnail in the index")
    return sent(request, record.thumbnail)


@picture_route("/picture", requests.ItemId, SHOWN.values())
async def full_picture(request: Request) -> Response:
    """A picture in full size: its file, where that is still in the folder that the index was made
    from; as JPEG where browsers do not show its format."""
    service, id = service_of(request), read(requests.ItemId, request).id
    folder, name = await service.batcher(partial(service.engine.original, id))
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
        raise no_picture(id) from error


@api.post(
    "/zip",
    tags=["items"],
    response_class=Response,
    responses={
        200: {"content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}},
        **_errors(404),
    },
    openapi_extra=requests.body(requests.IdsBody),
)
async def download(request: Request) -> Response:
    """Several pictures as one file: the photos themselves where they are, else the small ones."""
    service = service_of(request)
    read(requests.Nothing, request)
    ids = list(dict.fromkeys((await requests.read_body(requests.IdsBody, request)).ids))
    if len(ids) > service.settings.max_zip:
        most = service.settings.max_zip
        raise ApiError(422, "too_many", f"at most {most:,} pictures are sent at once; choose fewer")
    members = await service.batcher(partial(service.engine.members, ids))
    headers = {"Content-Disposition": 'attachment; filename="pictures.zip"'}
    return StreamingResponse(zipped(members), media_type=ZIP, headers=headers)


def _looked_at(file: FileIO) -> tuple[str, str]:
    """The mark of an open picture, and its format."""
    mark = etag(file)
    file.seek(0)
    return mark, sniffed(os.pread(file.fileno(), 16, 0))


# ---- review ----


@route("GET", "/review", "review", ReviewResponse, errors=(404,))
async def review(request: Request) -> Response:
    """What an audit found, for people to decide about."""
    read(requests.Nothing, request)
    return await run(request, service_of(request).engine.findings)


@picture_route("/review/picture", requests.ImageNumber)
async def review_picture(request: Request) -> Response:
    """A picture of the data that was audited."""
    service, number = service_of(request), read(requests.ImageNumber, request).image
    return sent(request, await service.batcher(partial(service.engine.finding_picture, number)))


# ---- Gaussians ----


@route(
    "POST", "/embed/text", "gaussians", EmbeddingsResponse, body=requests.body(requests.TextsBody)
)
async def embed_text(request: Request) -> Response:
    """Captions → Gaussians."""
    service = service_of(request)
    read(requests.Nothing, request)
    given = await requests.read_body(requests.TextsBody, request)
    most = service.settings.max_texts
    if len(given.texts) > most:
        raise ApiError(422, "too_many", f"at most {most} texts are taken at once; send fewer")
    texts = [checked_text(text, service.settings) for text in given.texts]
    return await run(request, lambda: EmbeddingsResponse.of(service.engine.encode_texts(texts)))


@route("POST", "/embed/image", "gaussians", EmbeddingsResponse, errors=(415,), body=IMAGE)
async def embed_image(request: Request) -> Response:
    """A picture → its Gaussian."""
    service = service_of(request)
    read(requests.Nothing, request)
    async with picture(request, service) as image:
        return await run(
            request, lambda: EmbeddingsResponse.of(service.engine.model.encode_images([image]))
        )


@route("GET", "/uncertainty", "gaussians", Uncertainty, requests.Text)
async def uncertainty(request: Request) -> Response:
    """How vague a caption is."""
    service = service_of(request)
    text = checked_text(read(requests.Text, request).text, service.settings)
    return await run(request, partial(service.engine.text_uncertainty, text))


@route("POST", "/uncertainty/image", "gaussians", Uncertainty, errors=(415,), body=IMAGE)
async def uncertainty_image(request: Request) -> Response:
    """How ambiguous a picture is."""
    engine = service_of(request).engine
    read(requests.Nothing, request)
    async with picture(request, service_of(request)) as image:
        return await run(request, lambda: engine.picture_uncertainty(image))


@route("GET", "/map", "gaussians", Map, requests.MapOptions, errors=(404,))
async def embedding_map(request: Request) -> Response:
    """Pictures on the two principal axes of the means, their Gaussians as ellipses."""
    service, given = service_of(request), read(requests.MapOptions, request)
    return Json(await service.batcher(partial(service.engine.map, checked_where(given.where))))


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
