"""Requests: parameters, texts and pictures, each within its limit or refused."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from PIL import Image, ImageOps
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from gaussmatch.index import Gallery, Where
from gaussmatch.index.record import encodable
from gaussmatch.service.responses import ApiError
from gaussmatch.service.settings import Settings

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
"""Raster formats whose size stands in the header; nothing that runs a program (EPS) or reads
another file."""


class Parameters(BaseModel):
    """What stands in the query of an address."""

    model_config = ConfigDict(extra="forbid")


class Options(Parameters):
    k: int = Field(20, ge=1, description="How many results.")
    where: str | None = Field(
        None,
        description='Conditions on metadata, as JSON: {"split": "test", "year": {"gte": 2010}}.',
        max_length=4000,
    )
    map: bool = Field(False, description="Return where query and results are on the map.")


class ImageSearch(Options):
    gallery: Gallery = Field("images", description="What is searched.")


class TextSearch(ImageSearch):
    text: str = Field(min_length=1, examples=["two dogs in the snow"])


class ItemSearch(Options):
    id: str = Field(min_length=1, description="Of a picture in the index.")


class CaptionSearch(Parameters):
    id: str = Field(min_length=1, description="Of a picture in the index.")
    k: int = Field(10, ge=1)


class Suggest(Parameters):
    text: str = Field(min_length=1)
    k: int = Field(5, ge=1)


class Text(Parameters):
    text: str = Field(min_length=1)


class Sample(Parameters):
    k: int = Field(20, ge=1)


class ItemId(Parameters):
    id: str = Field(min_length=1)


class GalleryItem(ItemId):
    gallery: Gallery = "images"


class Nothing(Parameters):
    """No parameters."""


class Texts(BaseModel):
    """Captions to embed."""

    model_config = ConfigDict(extra="forbid")

    texts: list[str] = Field(min_length=1, examples=[["a dog", "two dogs in the snow"]])


Model = TypeVar("Model", bound=BaseModel)


def read(model: type[Model], request: Request) -> Model:
    """The parameters of a request. FastAPI's own way takes as long as a whole search."""
    return _valid(model, parameters(request.scope["query_string"]))


async def read_body(model: type[Model], request: Request) -> Model:
    """The body of a request, which is JSON."""
    try:
        value = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise ApiError(422, "invalid", f"the body is not JSON: {error}") from error
    return _valid(model, value)


def _valid(model: type[Model], value: Any) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "the body"
        raise ApiError(422, "invalid", f"{name}: {first['msg']}") from error


def parameters(query: bytes) -> dict[str, str]:
    """The query of an address; of a name that comes twice, the last. In half the time of
    ``urllib.parse.parse_qsl``.

    >>> parameters(b"text=two+dogs%21&k=3&map")
    {'text': 'two dogs!', 'k': '3', 'map': ''}
    """
    found = {}
    for part in query.replace(b"+", b" ").split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            found[_text(name)] = _text(value)
    return found


def _text(quoted: bytes) -> str:
    return (unquote_to_bytes(quoted) if b"%" in quoted else quoted).decode("utf-8", "replace")


# ---- checks ----


def checked_text(text: str, settings: Settings) -> str:
    if not encodable(text):
        raise ApiError(422, "invalid", "the text is not Unicode: it holds half a surrogate pair")
    if not text.strip():
        raise ApiError(422, "empty", "the text is empty; say what you are looking for")
    if len(text) > settings.max_text:
        raise ApiError(
            422,
            "text_too_long",
            f"the text has {len(text):,} characters, the limit is {settings.max_text:,}",
        )
    return text


def checked_count(k: int, settings: Settings) -> int:
    if k > settings.max_results:
        raise ApiError(422, "too_many", f"k is {k:,}, the limit is {settings.max_results:,}")
    return k


def checked_where(where: str | None) -> Where:
    if where is None:
        return Where()
    try:
        spec = orjson.loads(where)
        if not isinstance(spec, dict):
            raise ValueError("filter: give a JSON object")
        return Where.of(spec)
    except ValueError as error:
        raise ApiError(422, "bad_filter", f"where: {error}") from error


# ---- pictures ----


@asynccontextmanager
async def picture(request: Request, service: Any) -> AsyncIterator[Image.Image]:
    """Read and decode. A small file may be a picture of 150 MB, so the pixels of all pictures that
    are not answered yet are bounded too."""
    loop = asyncio.get_running_loop()
    data, most = await uploaded(request), service.settings.max_pixels
    pixels = await loop.run_in_executor(service.decoders, measure, data, most)
    async with service.pixels.take(pixels):
        yield await loop.run_in_executor(service.decoders, decode, data, most)


async def uploaded(request: Request) -> bytes:
    """The picture of a request: its body, or the field ``image`` of a form."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "multipart/form-data":
        data = await request.body()
    else:
        try:
            async with request.form(max_files=1, max_fields=4) as form:
                field = form.get("image")
                if field is None or isinstance(field, str):
                    raise ApiError(422, "no_image", "the form has no file in the field 'image'")
                data = await field.read()
        except (MultiPartException, HTTPException) as error:
            detail = getattr(error, "message", None) or getattr(error, "detail", "")
            raise ApiError(400, "bad_form", f"the form cannot be read: {detail}") from error
    if not data:
        raise ApiError(422, "no_image", "the request holds no picture; send one as its body")
    return data


def measure(data: bytes, max_pixels: int) -> int:
    """The pixels of a picture, by its header."""
    with _opened(data, max_pixels) as image:
        return image.width * image.height


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """An upright RGB picture. The number of pixels is checked before any is decoded."""
    with _opened(data, max_pixels) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


@contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """A picture of which no pixel is decoded yet; whatever is wrong with it is an ``ApiError``."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise ApiError(
                    413,
                    "too_many_pixels",
                    f"the picture has {image.width} × {image.height} pixels and at most "
                    f"{max_pixels:,} are taken; send a smaller one",
                )
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ApiError(
            413, "too_many_pixels", f"at most {max_pixels:,} pixels are taken; send a smaller one"
        ) from error
    except ApiError:
        raise
    except Exception as error:  # decoders raise whatever they like on damaged files
        raise ApiError(
            415,
            "not_an_image",
            f"this cannot be read as a picture; send {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
        ) from error
