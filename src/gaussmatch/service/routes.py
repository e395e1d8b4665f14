"""The API: one small function a question."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from gaussmatch import __version__
from gaussmatch.service import facts, schema
from gaussmatch.service.answers import Answers
from gaussmatch.service.asked import (
    Captions,
    ItemSearch,
    Search,
    TextSearch,
    checked_count,
    checked_options,
    checked_text,
    picture,
    read,
    taken,
)
from gaussmatch.service.encoding import Question
from gaussmatch.service.errors import Json, RefusalError, answered
from gaussmatch.service.schema import Gallery
from gaussmatch.service.sharpen import sharpen

ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": schema.Refused, "description": "The API key is missing or wrong."},
    413: {"model": schema.Refused, "description": "Too many bytes or pixels."},
    422: {"model": schema.Refused, "description": "Something in the request is wrong."},
    503: {"model": schema.Refused, "description": "Too many are waiting."},
    504: {"model": schema.Refused, "description": "It took too long."},
}
PICTURE: dict[str, Any] = {
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

router = APIRouter(prefix="/api", responses=ERRORS, default_response_class=Json)


def told(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model}}


# ---- search ----


@router.get(
    "/search", tags=["search"], responses=told(schema.Answer), openapi_extra=taken(TextSearch)
)
async def search(request: Request) -> Response:
    """Search in words."""
    return Json(await searched(request.app.state.service, request.scope["query_string"]))


async def searched(service: Any, query: bytes) -> bytes:
    """The answer to a search in words, from the query of its address."""
    asked = read(TextSearch, query)
    text = checked_text(asked.text, service.settings.max_text)
    question = Question("text", text, *checked_options(asked, service), asked.gallery)
    answer: bytes = await service.batcher(question)
    return answer


@router.post(
    "/search/image",
    tags=["search"],
    responses=told(schema.Answer),
    openapi_extra=taken(Search, **PICTURE),
)
async def search_image(request: Request) -> Response:
    """Search with a picture."""
    asked, service = read(Search, request.scope["query_string"]), request.app.state.service
    k, where, places = checked_options(asked, service)
    async with picture(request) as given:
        question = Question("image", given, k, where, places, asked.gallery)
        return Json(await service.batcher(question))


@router.get(
    "/similar", tags=["search"], responses=told(schema.Answer), openapi_extra=taken(ItemSearch)
)
async def similar(request: Request) -> Response:
    """More like a picture of the index."""
    asked, service = read(ItemSearch, request.scope["query_string"]), request.app.state.service
    return Json(await service.batcher(Question("item", asked.id, *checked_options(asked, service))))


@router.get(
    "/captions", tags=["search"], responses=told(schema.Answer), openapi_extra=taken(Captions)
)
async def captions(request: Request) -> Response:
    """The captions nearest to a picture of the index."""
    asked, service = read(Captions, request.scope["query_string"]), request.app.state.service
    k = checked_count(asked.k, service)
    question = Question("item", asked.id, k, gallery="captions")
    return Json(await service.batcher(question))


@router.get("/suggest", tags=["search"], responses=told(schema.Suggestions))
async def suggest(
    request: Request, text: Annotated[str, Query(min_length=1)], k: Annotated[int, Query(ge=1)] = 5
) -> Response:
    """Captions of the index that say the same more precisely."""
    service = request.app.state.service
    text, k = checked_text(text, service.settings.max_text), checked_count(k, service)

    def work() -> list[dict[str, Any]]:
        answers: Answers = service.answers
        found = sharpen(answers.index, text, answers.encode_texts([text]), k)
        return [vars(s) for s in found]

    return answered({"suggestions": await service.batcher(work)})


# ---- items ----


@router.get("/about", tags=["items"], responses=told(schema.About))
async def about(request: Request) -> Response:
    """What is served here, and its limits."""
    service = request.app.state.service
    told: dict[str, Any] = await service.batcher(partial(facts.described, service.answers))
    names = schema.Limits.model_fields
    limits = {name: getattr(service.settings, name) for name in names}
    return answered(told | {"version": __version__, "limits": limits})


@router.get("/item", tags=["items"], responses=told(schema.Item))
async def item(
    request: Request, id: Annotated[str, Query(min_length=1)], gallery: Gallery = "images"
) -> Response:
    """Everything known of an item."""
    service = request.app.state.service
    return answered(await service.batcher(partial(facts.item, service.answers, id, gallery)))


@router.get("/sample", tags=["items"], responses=told(schema.Items))
async def sample(request: Request, k: Annotated[int, Query(ge=1)] = 20) -> Response:
    """Some pictures of the index, evenly spread."""
    service = request.app.state.service
    most = checked_count(k, service)
    return answered(await service.batcher(partial(facts.sample, service.answers, most)))


@router.get(
    "/thumbnail",
    tags=["items"],
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}, 404: {"model": schema.Refused}},
)
async def thumbnail(request: Request, id: Annotated[str, Query(min_length=1)]) -> Response:
    """The small picture of an item, as it is kept inside the index."""
    service = request.app.state.service
    record = await service.batcher(partial(service.answers.record, id))
    if record.thumbnail is None:
        raise RefusalError(404, "no_thumbnail", f"{id!r} has no thumbnail in the index")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(record.thumbnail, media_type="image/jpeg", headers=headers)


# ---- Gaussians ----


@router.post("/embed/text", tags=["gaussians"], responses=told(schema.Embeddings))
async def embed_text(request: Request, asked: schema.Texts) -> Response:
    """Captions → Gaussians."""
    service = request.app.state.service
    if len(asked.texts) > service.settings.max_texts:
        most = service.settings.max_texts
        raise RefusalError(
            422, "too_many", f"at most {most} texts are taken at once; send them in parts"
        )
    texts = [checked_text(text, service.settings.max_text) for text in asked.texts]
    work = lambda: facts.embedded(service.answers.encode_texts(texts))  # noqa: E731
    return answered(await service.batcher(work))


@router.post(
    "/embed/image", tags=["gaussians"], responses=told(schema.Embeddings), openapi_extra=PICTURE
)
async def embed_image(request: Request) -> Response:
    """A picture → its Gaussian."""
    service = request.app.state.service
    async with picture(request) as given:
        work = lambda: facts.embedded(service.answers.encode_pictures([given]))  # noqa: E731
        return answered(await service.batcher(work))


@router.get("/uncertainty", tags=["gaussians"], responses=told(schema.Uncertainty))
async def uncertainty(request: Request, text: Annotated[str, Query(min_length=1)]) -> Response:
    """How vague a caption is."""
    service = request.app.state.service
    text = checked_text(text, service.settings.max_text)
    work = lambda: facts.vague(service.answers, service.answers.encode_texts([text]), "captions")  # noqa: E731
    return answered(await service.batcher(work))


@router.post(
    "/uncertainty/image",
    tags=["gaussians"],
    responses=told(schema.Uncertainty),
    openapi_extra=PICTURE,
)
async def uncertainty_image(request: Request) -> Response:
    """How ambiguous a picture is."""
    service = request.app.state.service
    async with picture(request) as given:
        encode = service.answers.encode_pictures
        work = lambda: facts.vague(service.answers, encode([given]), "images")  # noqa: E731
        return answered(await service.batcher(work))


@router.get("/map", tags=["gaussians"], responses=told(schema.Map))
async def embedding_map(request: Request) -> Response:
    """Pictures on the two principal axes of the means, their Gaussians as ellipses."""
    service = request.app.state.service
    work = partial(facts.embedding_map, service.answers, service.settings.map_items)
    return Json(await service.batcher(work))
