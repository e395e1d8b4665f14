"""Requests: parameters, texts and pictures, each within its limit or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from gaussmatch.apps.service.responses import ApiError
from gaussmatch.apps.service.settings import Settings
from gaussmatch.data.decoder import TooLargeError, available
from gaussmatch.search import Gallery, Where
from gaussmatch.search.manifest import encodable
from gaussmatch.search.trust.calibration import Promise


class Parameters(BaseModel):
    """What stands in the query of an address."""

    model_config = ConfigDict(extra="forbid")


class SearchOptions(Parameters):
    text: str | None = Field(
        None,
        min_length=1,
        description="Words too: picture and words are one query, the product of their Gaussians.",
        examples=["at night"],
    )
    k: int = Field(20, ge=1, description="How many results.")
    where: str | None = Field(
        None,
        description='Conditions on metadata, as JSON: {"split": "test", "year": {"gte": 2010}}.',
        max_length=4000,
    )
    sort: str = Field(
        "",
        description="A field of the metadata to order the results by; -FIELD: the last first.",
        max_length=200,
    )
    map: bool = Field(False, description="Return where query and results are on the map.")
    offset: int = Field(0, ge=0, le=10_000, description="Results to skip: the pages before.")
    exclude: str | None = Field(
        None, description='Ids that must not be found, as JSON: ["dog.jpg"].', max_length=8000
    )
    like: str | None = Field(
        None,
        description="Ids of pictures that the results should be like too, as JSON: one query.",
        max_length=8000,
    )
    unlike: str | None = Field(
        None,
        description="Ids of pictures that the results must not be like, as JSON.",
        max_length=8000,
    )
    groups: bool = Field(False, description="Say which results show nearly the same.")
    guarantee: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Only the set that keeps a promise to this degree; `total` is its size. For "
        "words among pictures, or a picture among captions.",
    )
    promise: Promise = Field(
        "recall",
        description="What is promised: recall, that the set holds this share of all that fits; "
        "one, that it holds the item that is meant with this probability.",
    )


class Gallerywide(SearchOptions):
    gallery: Gallery = Field("images", description="What is searched.")


class TextSearch(Gallerywide):
    text: str = Field(min_length=1, examples=["two dogs in the snow"])


class ImageSearch(Gallerywide):
    """With a picture, and words if there are any."""


class ItemSearch(SearchOptions):
    id: str = Field(min_length=1, description="Of a picture in the index.")


class CaptionSearch(Parameters):
    id: str = Field(min_length=1, description="Of a picture in the index.")
    k: int = Field(10, ge=1)


class Suggest(Parameters):
    text: str = Field(min_length=1)
    k: int = Field(5, ge=1)


class Text(Parameters):
    text: str = Field(min_length=1)


class MapOptions(Parameters):
    where: str | None = Field(None, description="Conditions, as for a search.", max_length=4000)


class Shelf(Parameters):
    """Which pictures to browse."""

    folder: str | None = Field(None, description="Of this folder and those below it.")
    box: str | None = Field(
        None,
        description="Taken between these degrees: south,west,north,east.",
        examples=["48.8,2.2,48.9,2.4"],
        max_length=200,
    )


class Browse(Shelf):
    offset: int = Field(0, ge=0)
    k: int = Field(200, ge=1)


class Names(Parameters):
    text: str = Field(min_length=1, examples=["2019 holiday"])
    k: int = Field(20, ge=1)


class ItemId(Parameters):
    id: str = Field(min_length=1)


class GalleryItem(ItemId):
    gallery: Gallery = "images"


class ImageNumber(Parameters):
    image: int = Field(ge=0, description="The position of an image that a finding names.")


class Nothing(Parameters):
    """No parameters."""


class IdsBody(BaseModel):
    """Pictures to download."""

    model_config = ConfigDict(extra="forbid")

    ids: list[str] = Field(min_length=1, examples=[["dog.jpg", "cat.jpg"]])


class TextsBody(BaseModel):
    """Captions to embed."""

    model_config = ConfigDict(extra="forbid")

    texts: list[str] = Field(min_length=1, examples=[["a dog", "two dogs in the snow"]])


Model = TypeVar("Model", bound=BaseModel)


def body(model: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of a body that is JSON."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


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


def checked_ids(name: str, given: str | None, most: int | None = None) -> tuple[str, ...]:
    if given is None:
        return ()
    try:
        ids = orjson.loads(given)
    except orjson.JSONDecodeError as error:
        raise ApiError(422, "invalid", f"{name}: not JSON: {error}") from error
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise ApiError(422, "invalid", f"{name}: give a JSON list of ids")
    if most is not None and len(ids) > most:
        raise ApiError(422, "too_many", f"{name}: at most {most} pictures; name fewer")
    return tuple(ids)


def checked_box(given: str | None) -> tuple[float, float, float, float] | None:
    if given is None:
        return None
    try:
        south, west, north, east = map(float, given.split(","))
    except ValueError as error:
        raise ApiError(422, "invalid", "box: give south,west,north,east in degrees") from error
    return south, west, north, east


# ---- pictures ----


@asynccontextmanager
async def picture(request: Request, service: Any) -> AsyncIterator[Image.Image]:
    """Read and decode a picture.

    What uploads hold together is bounded twice: the bytes of their bodies, reserved before they are
    read, and the memory of decoding, reserved before anything is opened. The first is never waited
    for while holding the second, so that nobody waits in a circle.
    """
    length = 2 * _length(request, service.settings)  # what came, and what the decoder reads
    async with service.bodies.take(length), AsyncExitStack() as held:
        data, refused = await uploaded(request), None
        try:
            image: Image.Image = await held.enter_async_context(service.opened(data))
        except TooLargeError as error:
            refused = ApiError(413, "too_many_pixels", f"the picture is too large: {error}")
        except ValueError:
            said = f"this cannot be read as a picture; send {', '.join(available())}"
            refused = ApiError(415, "not_an_image", said)
        del data  # before anything is raised: the frames of an error would hold the body
        if refused is not None:
            raise refused
        yield image


def _length(request: Request, settings: Settings) -> int:
    """Bytes of a body, by its head; the most that is allowed where it does not say."""
    length = request.headers.get("content-length", "")
    return min(int(length) if length.isdigit() else settings.max_body, settings.max_body)


async def uploaded(request: Request) -> bytes:
    """The picture of a request: its body, or the field ``image`` of a form."""
    content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if content_type != "multipart/form-data":
        data = b"".join([part async for part in request.stream()])  # body() would keep it
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
