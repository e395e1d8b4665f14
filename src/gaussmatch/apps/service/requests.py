"""Requests: parameters, texts and pictures, each within its limit or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from PIL import Image
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    ValidationError,
    ValidationInfo,
)
from pydantic_core.core_schema import str_schema
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from gaussmatch.apps.service.responses import ApiError
from gaussmatch.apps.service.settings import Settings
from gaussmatch.data.decoder import TooLargeError, available
from gaussmatch.search import Gallery, Where
from gaussmatch.search.catalog import Box
from gaussmatch.search.manifest import encodable
from gaussmatch.search.trust.calibration import Promise

MOST_PICTURES = 16
"""Pictures that a search may be like, and as many that it must not be like."""

# ---- checks: what a value must be like beside its type; the context is the settings ----


def _settings(info: ValidationInfo) -> Settings:
    assert isinstance(info.context, Settings)
    return info.context


def _text(text: str, info: ValidationInfo) -> str:
    most = _settings(info).max_text
    if not encodable(text):
        raise ApiError(422, "invalid", "the text is not Unicode: it holds half a surrogate pair")
    if not text.strip():
        raise ApiError(422, "empty", "the text is empty; say what you are looking for")
    if len(text) > most:
        message = f"the text has {len(text):,} characters, the limit is {most:,}"
        raise ApiError(422, "text_too_long", message)
    return text


def _texts(texts: list[str], info: ValidationInfo) -> list[str]:
    most = _settings(info).max_texts
    if len(texts) > most:
        raise ApiError(422, "too_many", f"at most {most} texts per request are allowed; send fewer")
    return [_text(text, info) for text in texts]


def _count(k: int, info: ValidationInfo) -> int:
    most = _settings(info).max_results
    if k > most:
        raise ApiError(422, "too_many", f"k is {k:,}, the limit is {most:,}")
    return k


def _where(text: str) -> Where:
    try:
        spec = orjson.loads(text)
        if not isinstance(spec, dict):
            raise ValueError("filter: give a JSON object")
        return Where.of(spec)
    except ValueError as error:
        raise ApiError(422, "bad_filter", f"where: {error}") from error


def _ids(text: str, info: ValidationInfo) -> tuple[str, ...]:
    try:
        ids = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ApiError(422, "invalid", f"{info.field_name}: not JSON: {error}") from error
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise ApiError(422, "invalid", f"{info.field_name}: give a JSON list of ids")
    return tuple(ids)


def _few(ids: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if len(ids) > MOST_PICTURES:
        message = f"{info.field_name}: at most {MOST_PICTURES} pictures; name fewer"
        raise ApiError(422, "too_many", message)
    return ids


def _box(text: str) -> Box:
    try:
        south, west, north, east = map(float, text.split(","))
    except ValueError as error:
        raise ApiError(422, "invalid", "box: give south,west,north,east in degrees") from error
    return south, west, north, east


def _written(most: int) -> GetPydanticSchema:
    """A value that a client writes as text of a limited length."""
    return GetPydanticSchema(lambda source, handler: str_schema(max_length=most))


Words = Annotated[str, Field(min_length=1), AfterValidator(_text)]
Count = Annotated[int, Field(ge=1), AfterValidator(_count)]
Conditions = Annotated[Where, _written(4000), AfterValidator(_where)]
Ids = Annotated[tuple[str, ...], _written(8000), AfterValidator(_ids)]
FewIds = Annotated[Ids, AfterValidator(_few)]
Degrees = Annotated[Box, _written(200), AfterValidator(_box)]
Id = Annotated[str, Field(min_length=1)]

# ---- what each route takes ----


class Parameters(BaseModel):
    """What stands in the query of an address, or in a body that is JSON."""

    model_config = ConfigDict(extra="forbid")


class SearchOptions(Parameters):
    text: Words | None = Field(
        None,
        description="Words too: picture and words are one query, the product of their Gaussians.",
        examples=["at night"],
    )
    k: Count = Field(20, description="How many results.")
    where: Conditions | None = Field(
        None,
        description='Conditions on metadata, as JSON: {"split": "test", "year": {"gte": 2010}}.',
    )
    sort: str = Field(
        "",
        description="A field of the metadata to order the results by; -FIELD: the last first.",
        max_length=200,
    )
    map: bool = Field(False, description="Return where query and results are on the map.")
    offset: int = Field(0, ge=0, le=10_000, description="Results to skip: the pages before.")
    exclude: Ids | None = Field(
        None, description='Ids that must not be found, as JSON: ["dog.jpg"].'
    )
    like: FewIds | None = Field(
        None,
        description="Ids of pictures that the results should be like too, as JSON: one query.",
    )
    unlike: FewIds | None = Field(
        None, description="Ids of pictures that the results must not be like, as JSON."
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


class ImageSearch(SearchOptions):
    """With a picture, and words if there are any."""

    gallery: Gallery = Field("images", description="What is searched.")


class TextSearch(ImageSearch):
    """With words alone."""

    text: Words = Field(examples=["two dogs in the snow"])


class ItemSearch(SearchOptions):
    id: Id = Field(description="Of a picture in the index.")


class CaptionSearch(Parameters):
    id: Id = Field(description="Of a picture in the index.")
    k: Count = 10


class Text(Parameters):
    text: Words


class Suggest(Text):
    k: Count = 5


class MapOptions(Parameters):
    where: Conditions | None = Field(None, description="Conditions, as for a search.")


class Shelf(Parameters):
    """Which pictures to browse."""

    folder: str | None = Field(None, description="Of this folder and those below it.")
    box: Degrees | None = Field(
        None,
        description="Taken between these degrees: south,west,north,east.",
        examples=["48.8,2.2,48.9,2.4"],
    )


class Browse(Shelf):
    offset: int = Field(0, ge=0)
    k: Count = 200


class Names(Parameters):
    text: Words = Field(examples=["2019 holiday"])
    k: Count = 20


class ItemId(Parameters):
    id: Id


class GalleryItem(ItemId):
    gallery: Gallery = "images"


class ImageNumber(Parameters):
    image: int = Field(ge=0, description="The position of an image that a finding names.")


class Nothing(Parameters):
    """No parameters."""


class IdsBody(Parameters):
    """Pictures to download."""

    ids: list[str] = Field(min_length=1, examples=[["dog.jpg", "cat.jpg"]])


class TextsBody(Parameters):
    """Captions to embed."""

    texts: Annotated[list[str], AfterValidator(_texts)] = Field(
        min_length=1, examples=[["a dog", "two dogs in the snow"]]
    )


Model = TypeVar("Model", bound=BaseModel)


def body(model: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of a body that is JSON."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def read(model: type[Model], request: Request, settings: Settings | None = None) -> Model:
    """The parameters of a request. FastAPI's own way takes as long as a whole search."""
    return _valid(model, parameters(request.scope["query_string"]), settings)


async def read_body(model: type[Model], request: Request, settings: Settings) -> Model:
    """The body of a request, which is JSON."""
    try:
        value = orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise ApiError(422, "invalid", f"the body is not JSON: {error}") from error
    return _valid(model, value, settings)


def _valid(model: type[Model], value: Any, settings: Settings | None) -> Model:
    try:
        return model.model_validate(value, context=settings)
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
            found[_decoded(name)] = _decoded(value)
    return found


def _decoded(quoted: bytes) -> str:
    return (unquote_to_bytes(quoted) if b"%" in quoted else quoted).decode("utf-8", "replace")


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
