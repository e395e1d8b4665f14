"""Reading requests: parameters, texts and pictures, each within its limit or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from fastapi import Request
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gaussmatch.index import Where
from gaussmatch.index.items import encodable
from gaussmatch.service.errors import RefusalError
from gaussmatch.service.schema import Gallery
from gaussmatch.service.uploads import decode, measure, uploaded


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


def read(model: type[Model], query: bytes) -> Model:
    """The parameters of a request. FastAPI's own way takes as long as a whole search."""
    try:
        return model.model_validate(parameters(query))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise RefusalError(422, "invalid", f"{name}: {first['msg']}") from error


def parameters(query: bytes) -> dict[str, str]:
    """The query of an address; of a name that comes twice, the last. In half the time of
    ``urllib.parse.parse_qsl``.

    >>> parameters(b"text=two+dogs%21&k=3&places")
    {'text': 'two dogs!', 'k': '3', 'places': ''}
    """
    found = {}
    for part in query.replace(b"+", b" ").split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            found[_text(name)] = _text(value)
    return found


def _text(quoted: bytes) -> str:
    return (unquote_to_bytes(quoted) if b"%" in quoted else quoted).decode("utf-8", "replace")


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


def checked_text(text: str, most: int) -> str:
    if not encodable(text):
        raise RefusalError(422, "invalid", "the text is no Unicode: it holds half a character")
    if not text.strip():
        raise RefusalError(422, "empty", "the text is empty; say what you are looking for")
    if len(text) > most:
        raise RefusalError(
            422,
            "text_too_long",
            f"the text has {len(text):,} characters, at most {most:,} are taken",
        )
    return text


def checked_count(k: int, service: Any) -> int:
    most = service.settings.max_results
    if k > most:
        raise RefusalError(422, "too_many", f"k is {k:,}, at most {most:,} results are given")
    return k


def checked_options(asked: Options, service: Any) -> tuple[int, Where, bool]:
    where = Where()
    if asked.where is not None:
        try:
            spec = orjson.loads(asked.where)
            if not isinstance(spec, dict):
                raise ValueError("filter: give a JSON object")
            where = Where.of(spec)
        except ValueError as error:
            raise RefusalError(422, "bad_filter", f"where: {error}") from error
    return checked_count(asked.k, service), where, asked.places


@asynccontextmanager
async def picture(request: Request) -> AsyncIterator[Image.Image]:
    """Read and decode. A small file may be a picture of 150 MB, so the pixels of all that are not
    answered yet are bounded too."""
    service, loop = request.app.state.service, asyncio.get_running_loop()
    data, most = await uploaded(request), service.settings.max_pixels
    pixels = await loop.run_in_executor(service.decoders, measure, data, most)
    async with service.pixels.take(pixels):
        yield await loop.run_in_executor(service.decoders, decode, data, most)
