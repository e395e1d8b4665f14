"""The API: one small function a question."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

import orjson
from fastapi import APIRouter, Query, Request
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from gaussmatch import __version__
from gaussmatch.gaussian import Gaussian
from gaussmatch.index import Where
from gaussmatch.service import schema
from gaussmatch.service.answers import Answers, Known, Question, vagueness
from gaussmatch.service.errors import Json, RefusalError, json
from gaussmatch.service.schema import Gallery
from gaussmatch.service.sharpen import examples, sharpen
from gaussmatch.service.uploads import decode, uploaded

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


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    k: int = Field(20, ge=1, description="How many results.")
    where: str | None = Field(
        None,
        description='Conditions on metadata, as JSON: {"split": "test", "year": {"gte": 2010}}.',
        max_length=4000,
    )
    places: bool = Field(
        False, description="Tell where the question and the results are on the map."
    )


class Search(Options):
    gallery: Gallery = Field("images", description="What is searched.")


class TextSearch(Search):
    text: str = Field(min_length=1, examples=["two dogs in the snow"])


class ItemSearch(Options):
    id: str = Field(min_length=1, description="Of a picture in the index.")


class Captions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, description="Of a picture in the index.")
    k: int = Field(10, ge=1)


Model = TypeVar("Model", bound=BaseModel)


def read(model: type[Model], request: Request) -> Model:
    """The parameters of a request. FastAPI's own way takes as long as a whole search."""
    given = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise RefusalError(422, "invalid", f"{name}: {first['msg']}") from error


def taken(model: type[BaseModel], **more: Any) -> dict[str, Any]:
    """The parameters of ``read`` as OpenAPI describes them."""
    schema = model.model_json_schema()
    described = []
    for name, field in schema["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        if "description" in field:
            parameter["description"] = field["description"]
        described.append({**parameter, "schema": field})
    return {"parameters": described, **more}


def told(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model}}


# ---- search ----


@router.get(
    "/search", tags=["search"], responses=told(schema.Answer), openapi_extra=taken(TextSearch)
)
async def search(request: Request) -> Response:
    """Search in words."""
    asked, service = read(TextSearch, request), request.app.state.service
    text = _text(asked.text, service.settings.max_text)
    question = Question("text", text, *_options(asked, service), asked.gallery)
    return Json(await service.batcher(question))


@router.post(
    "/search/image",
    tags=["search"],
    responses=told(schema.Answer),
    openapi_extra=taken(Search, **PICTURE),
)
async def search_image(request: Request) -> Response:
    """Search with a picture."""
    asked, service = read(Search, request), request.app.state.service
    k, where, places = _options(asked, service)
    picture = await _picture(request)
    return Json(await service.batcher(Question("image", picture, k, where, places, asked.gallery)))


@router.get(
    "/similar", tags=["search"], responses=told(schema.Answer), openapi_extra=taken(ItemSearch)
)
async def similar(request: Request) -> Response:
    """More like a picture of the index."""
    asked, service = read(ItemSearch, request), request.app.state.service
    return Json(await service.batcher(Question("item", asked.id, *_options(asked, service))))


@router.get(
    "/captions", tags=["search"], responses=told(schema.Answer), openapi_extra=taken(Captions)
)
async def captions(request: Request) -> Response:
    """The captions nearest to a picture of the index."""
    asked, service = read(Captions, request), request.app.state.service
    k = _count(asked.k, service)
    question = Question("item", asked.id, k, gallery="captions")
    return Json(await service.batcher(question))


@router.get("/suggest", tags=["search"], responses=told(schema.Suggestions))
async def suggest(
    request: Request, text: Annotated[str, Query(min_length=1)], k: Annotated[int, Query(ge=1)] = 5
) -> Response:
    """Captions of the index that say the same more precisely."""
    service = request.app.state.service
    text, k = _text(text, service.settings.max_text), _count(k, service)

    def work() -> list[dict[str, Any]]:
        answers: Answers = service.answers
        found = sharpen(answers.index, text, answers.encode_texts([text]), k)
        return [vars(s) for s in found]

    return json({"suggestions": await service.batcher(work)})


# ---- items ----


@router.get("/about", tags=["items"], responses=told(schema.About))
async def about(request: Request) -> Response:
    """What is served here, and its limits."""
    service = request.app.state.service
    told: dict[str, Any] = await service.batcher(partial(_about, service.answers))
    names = schema.Limits.model_fields
    limits = {name: getattr(service.settings, name) for name in names}
    return json(told | {"version": __version__, "limits": limits})


@router.get("/item", tags=["items"], responses=told(schema.Item))
async def item(
    request: Request, id: Annotated[str, Query(min_length=1)], gallery: Gallery = "images"
) -> Response:
    """Everything known of an item."""
    service = request.app.state.service
    return json(await service.batcher(partial(_item, service.answers, id, gallery)))


@router.get("/sample", tags=["items"], responses=told(schema.Items))
async def sample(request: Request, k: Annotated[int, Query(ge=1)] = 20) -> Response:
    """Some pictures of the index, evenly spread."""
    service = request.app.state.service
    return json(await service.batcher(partial(_sample, service.answers, _count(k, service))))


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
    texts = [_text(text, service.settings.max_text) for text in asked.texts]
    return json(await service.batcher(lambda: _embedded(_texts(service.answers, texts))))


@router.post(
    "/embed/image", tags=["gaussians"], responses=told(schema.Embeddings), openapi_extra=PICTURE
)
async def embed_image(request: Request) -> Response:
    """A picture → its Gaussian."""
    service, picture = request.app.state.service, await _picture(request)
    work = lambda: _embedded(service.answers.encode_pictures([picture]))  # noqa: E731
    return json(await service.batcher(work))


@router.get("/uncertainty", tags=["gaussians"], responses=told(schema.Uncertainty))
async def uncertainty(request: Request, text: Annotated[str, Query(min_length=1)]) -> Response:
    """How vague a caption is."""
    service = request.app.state.service
    text = _text(text, service.settings.max_text)
    work = lambda: _vague(service.answers, service.answers.encode_texts([text]), "captions")  # noqa: E731
    return json(await service.batcher(work))


@router.post(
    "/uncertainty/image",
    tags=["gaussians"],
    responses=told(schema.Uncertainty),
    openapi_extra=PICTURE,
)
async def uncertainty_image(request: Request) -> Response:
    """How ambiguous a picture is."""
    service, picture = request.app.state.service, await _picture(request)
    work = lambda: _vague(service.answers, service.answers.encode_pictures([picture]), "images")  # noqa: E731
    return json(await service.batcher(work))


@router.get("/map", tags=["gaussians"], responses=told(schema.Map))
async def embedding_map(request: Request) -> Response:
    """Pictures on the two principal axes of the means, their Gaussians as ellipses."""
    service = request.app.state.service
    return Json(await service.batcher(partial(_map, service.answers, service.settings.map_items)))


# ---- reading requests ----


def _text(text: str, most: int) -> str:
    if not text.strip():
        raise RefusalError(422, "empty", "the text is empty; say what you are looking for")
    if len(text) > most:
        raise RefusalError(
            422,
            "text_too_long",
            f"the text has {len(text):,} characters, at most {most:,} are taken",
        )
    return text


def _count(k: int, service: Any) -> int:
    most = service.settings.max_results
    if k > most:
        raise RefusalError(422, "too_many", f"k is {k:,}, at most {most:,} results are given")
    return k


def _options(asked: Options, service: Any) -> tuple[int, Where, bool]:
    where = Where()
    if asked.where is not None:
        try:
            spec = orjson.loads(asked.where)
            if not isinstance(spec, dict):
                raise ValueError("filter: give a JSON object")
            where = Where.of(spec)
        except ValueError as error:
            raise RefusalError(422, "bad_filter", f"where: {error}") from error
    return _count(asked.k, service), where, asked.places


async def _picture(request: Request) -> Image.Image:
    """Read and decode, not more than a few pictures at a time."""
    service = request.app.state.service
    data = await uploaded(request)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(service.decoders, decode, data, service.settings.max_pixels)


# ---- working, in the batcher's thread ----


def warm_up(answers: Answers) -> None:
    """Load what the first question would have to wait for."""
    words = [w for w in answers.model.vocabulary.words if w.isalpha()]
    if words and answers.index.size():
        (told,) = answers.work([Question("text", words[0], 1)])
        if isinstance(told, Exception):
            raise told
    _about(answers)


def _about(answers: Answers) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        index, recipe = answers.index, answers.model.recipe
        form = index.manifest.form or {}
        return {
            "model": recipe.title or recipe.model.system,
            "similarity": index.manifest.similarity,
            "dimension": recipe.model.dim,
            "probabilistic": recipe.model.probabilistic,
            "images": index.size("images"),
            "captions": index.size("captions"),
            "examples": examples(index) if form else [],
        }

    found: dict[str, Any] = answers.kept("about", make)
    return found


def _item(answers: Answers, id: str, gallery: Gallery) -> dict[str, Any]:
    record = answers.record(id, gallery)
    unsure, share = answers.about(gallery, answers.index.gaussian(id, gallery))
    known = Known(record.meta, unsure[0], share[0])
    return answers.told(id, known, gallery) | {"gallery": gallery}


def _sample(answers: Answers, most: int) -> dict[str, Any]:
    return {"items": _some(answers, most)[0], "total": answers.index.size()}


def _some(answers: Answers, most: int) -> tuple[list[dict[str, Any]], Gaussian | None]:
    """Pictures as the API shows them, and their Gaussians."""
    records, g = answers.index.some(most)
    if g is None:
        return [], None
    unsure, share = answers.about("images", g)
    known = zip(records, unsure, share, strict=True)
    items = [answers.told(r.id, Known(r.meta, u, p), "images") for r, u, p in known]
    return [item | {"gallery": "images"} for item in items], g


def _map(answers: Answers, most: int) -> bytes:
    def make() -> bytes:
        plane = answers.plane()
        items, g = _some(answers, most)
        assert g is not None
        placed = [item | place for item, place in zip(items, plane(g).rows(), strict=True)]
        total = answers.index.size()
        return orjson.dumps({"items": placed, "total": total, "explained": plane.explained})

    found: bytes = answers.kept("map", make)
    return found


def _texts(answers: Answers, texts: list[str]) -> Gaussian:
    for text in texts:
        if not answers.model.vocabulary.known(text):
            answers.encode_texts([text])  # refuses it by name
    return answers.encode_texts(texts)


def _embedded(g: Gaussian) -> dict[str, Any]:
    log_var = [None] * len(g) if g.log_var is None else g.log_var.tolist()
    pairs = zip(g.mean.tolist(), log_var, strict=True)
    return {
        "dimension": g.dim,
        "embeddings": [{"mean": mean, "log_variance": v} for mean, v in pairs],
    }


def _vague(answers: Answers, g: Gaussian, kind: Gallery) -> dict[str, Any]:
    unsure, share = answers.about(kind, g)
    return vagueness(unsure[0], share[0], kind)
