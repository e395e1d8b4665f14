"""What the service sends: one type for each answer, from which the OpenAPI schema is generated."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from io import FileIO, RawIOBase
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.decoder import sniffed
from gaussmatch.files import open_below, sha256
from gaussmatch.learn.plot import Place
from gaussmatch.search import SCHEMA, Gallery, Hits, Level, Suggestion, level, phrase
from gaussmatch.search.catalog import Album, Month, NameHits, Spot
from gaussmatch.search.trust.audit import ISSUES
from gaussmatch.search.trust.audit_report import PICTURES, TABLE, Row, apply_command, read_table

DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?.*)?")
CHOICES = 100
"""Different values up to which a text is something to choose from."""


class Answer:
    """The base of all answers."""

    __slots__ = ()
    __pydantic_config__ = SCHEMA


@dataclass(frozen=True, slots=True)
class OnMap(Answer):
    """A query and its results on the map."""

    query: Place
    hits: Sequence[Place]
    """In the order of the hits."""


@dataclass(frozen=True, slots=True)
class SearchResponse(Answer):
    """What the index returns for a query."""

    results: Hits
    map: OnMap | None
    """Where query and results are on the map; null unless requested."""
    groups: Sequence[int] | None = None
    """For each result the position of the first that shows nearly the same, its own if there is
    none; null unless requested."""


@dataclass(frozen=True, slots=True)
class ItemResponse(Answer):
    """An item of the index."""

    id: str
    gallery: Gallery
    uncertainty: float | None
    """log det Σ; null for a point model."""
    percentile: float | None
    """The share (0–100) of the model's training items of its side that are surer."""
    meta: Mapping[str, Any]
    """What was stored with the item."""
    ambiguity: Mapping[str, float] = field(default_factory=dict)
    """How ambiguous an image is, as shares (0–100) of training images that are less so:
    ``fits_many`` captions, can be described in ``many_ways``. Only what a probe has confirmed."""


@dataclass(frozen=True, slots=True)
class Timeline(Answer):
    """All pictures by month, newest first; those without a date last."""

    months: Sequence[Month]
    total: int
    mark: str
    """Changes when the index does."""


@dataclass(frozen=True, slots=True)
class BrowseResponse(Answer):
    """Some pictures of the timeline, as columns."""

    ids: Sequence[str]
    taken: Sequence[str]
    """Empty if it is not known."""


@dataclass(frozen=True, slots=True)
class Albums(Answer):
    albums: Sequence[Album]


@dataclass(frozen=True, slots=True)
class Spots(Answer):
    """Where pictures were taken; those near each other are one spot."""

    spots: Sequence[Spot]


@dataclass(frozen=True, slots=True)
class NamedResponse(Answer):
    """Pictures whose folder, file or caption has the words."""

    results: NameHits
    metas: Sequence[Mapping[str, Any]]
    """What was stored with each hit."""


@dataclass(frozen=True, slots=True)
class Map(Answer):
    """Pictures of the index on the two principal axes of the means, as columns: thousands of them
    are small enough for a telephone."""

    ids: Sequence[str]
    x: Sequence[float]
    y: Sequence[float]
    a: Sequence[float] | None
    """Semi-major axes of the ellipses one standard deviation wide; null for a point model."""
    b: Sequence[float] | None
    """Semi-minor axes."""
    angle: Sequence[float] | None
    """Of the major axes against x, in radians."""
    percentile: Sequence[float] | None
    """The share (0–100) of training images that are surer; null where it means nothing."""
    total: int
    """Pictures in the index, which may be more than are on the map."""
    explained: float
    """The share of the variance of the means that the two axes explain."""


@dataclass(frozen=True, slots=True)
class FieldResponse(Answer):
    """Metadata that items can be filtered by."""

    name: str
    type: Literal["text", "number", "date", "truth"]
    """A date is a text that begins like 2023-05-17."""
    values: Sequence[str | bool]
    """What there is to choose from; empty for numbers and dates."""
    least: float | str | None
    """The smallest number, or the first day; null for other types."""
    most: float | str | None
    """The greatest number, or the last day."""


@dataclass(frozen=True, slots=True)
class FieldsResponse(Answer):
    fields: Sequence[FieldResponse]


def describe_fields(metas: Iterable[Mapping[str, Any]]) -> list[FieldResponse]:
    """Fields in which items differ, by name; a text with a value of its own for nearly every item
    (a file name, a caption) does not.

    >>> metas = [{"folder": "ab"[n > 2], "file": f"{n}.jpg"} for n in range(6)]
    >>> [(f.name, f.type, f.values) for f in describe_fields(metas)]
    [('folder', 'text', ['a', 'b'])]
    >>> describe_fields([{"taken": "2023-05-17T10:22:31"}, {"taken": "2024-01-02T08:00:00"}])
    [FieldResponse(name='taken', type='date', values=[], least='2023-05-17', most='2024-01-02')]
    """
    found: dict[str, Counter[str | float | bool]] = {}
    for meta in metas:
        for name, value in meta.items():
            if isinstance(value, str | int | float | bool):
                found.setdefault(name, Counter())[value] += 1
    described = (_described(name, values) for name, values in sorted(found.items()))
    return [field for field in described if field is not None]


def _described(name: str, values: Counter[Any]) -> FieldResponse | None:
    if len(values) < 2 or '"' in name or "\\" in name:
        return None
    known = list(values)
    if all(isinstance(v, bool) for v in known):
        return FieldResponse(name, "truth", [False, True], None, None)
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in known):
        return FieldResponse(name, "number", [], min(known), max(known))
    if not all(isinstance(v, str) for v in known):
        return None
    if all(DATE.fullmatch(v) for v in known):
        return FieldResponse(name, "date", [], min(known)[:10], max(known)[:10])
    if len(known) > CHOICES or len(known) > values.total() / 2 + 1:
        return None
    return FieldResponse(name, "text", sorted(known), None, None)


@dataclass(frozen=True, slots=True)
class ReviewResponse(Answer):
    """The findings of an audit, issue by issue, worst first."""

    mark: str
    """Changes when the findings do."""
    issues: Mapping[str, str]
    """Issue → what it means."""
    findings: Sequence[Row]
    """Each with the decision that was made about it before, if any."""
    saves: str | None
    """The file that decisions are written to; null if they stay in the browser."""
    apply: str
    """The command that makes a cleaned copy; empty if it is not known where the data are."""

    @staticmethod
    def of(place: Path, saves: Path | None = None) -> ReviewResponse:
        """Read the folder that ``gaussmatch audit --out`` wrote, or the table in it."""
        table = place / TABLE if place.is_dir() else place
        findings, written = read_table(table), None if saves is None else str(saves)
        command = apply_command(place, saves)
        return ReviewResponse(sha256(table)[:16], ISSUES, findings, written, command)


def finding_picture(place: Path, number: int) -> bytes:
    """A picture of the data that was audited."""
    path = (place if place.is_dir() else place.parent) / PICTURES / f"{number}.jpg"
    if not path.is_file():
        raise ApiError(404, "no_picture", f"the audit has no picture of image {number}")
    return path.read_bytes()


@dataclass(frozen=True, slots=True)
class Suggestions(Answer):
    suggestions: Sequence[Suggestion]


@dataclass(frozen=True, slots=True)
class EmbeddingResponse(Answer):
    """A Gaussian."""

    mean: Sequence[float]
    log_variance: Sequence[float] | None
    """ln σ² by dimension, one number for a sphere, null for a point model."""


@dataclass(frozen=True, slots=True)
class EmbeddingsResponse(Answer):
    dimension: int
    embeddings: Sequence[EmbeddingResponse]

    @staticmethod
    def of(g: Gaussian) -> EmbeddingsResponse:
        log_vars = [None] * len(g) if g.log_var is None else g.log_var.tolist()
        return EmbeddingsResponse(g.dim, list(map(EmbeddingResponse, g.mean.tolist(), log_vars)))


@dataclass(frozen=True, slots=True)
class Uncertainty(Answer):
    """How vague a caption or how ambiguous a picture is."""

    uncertainty: float | None
    """log det Σ; null for a point model."""
    percentile: float | None
    """The share (0–100) of the model's training items of its side that are surer."""
    level: Level | None
    """vague from the 75th percentile, specific up to the 25th."""
    phrase: str
    """The percentile in words."""

    @staticmethod
    def of(uncertainty: float | None, percentile: float | None, side: Gallery) -> Uncertainty:
        return Uncertainty(uncertainty, percentile, level(percentile), phrase(percentile, side))


@dataclass(frozen=True, slots=True)
class Limits(Answer):
    """What a request may hold."""

    max_body: int
    max_pixels: int
    max_text: int
    max_texts: int
    max_results: int


@dataclass(frozen=True, slots=True)
class About(Answer):
    """What is served, and its limits."""

    version: str
    model: str
    similarity: str
    dimension: int
    probabilistic: bool
    """Whether items are Gaussians rather than points."""
    thumbnails: bool
    """Whether /api/thumbnail has pictures."""
    originals: bool
    """Whether /api/picture has them in full size."""
    review: bool
    """Whether /api/review has findings of an audit."""
    images: int
    captions: int
    examples: Sequence[str]
    """Captions to try, from vague to specific."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class Status(Answer):
    status: str


@dataclass(frozen=True, slots=True)
class Error(Answer):
    code: str
    """For programs."""
    message: str
    """For people: what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class ErrorResponse(Answer):
    """The body of every error."""

    error: Error


class ApiError(Exception):
    """A request that is answered with an error: a status, a code for programs, and a message that
    says what to do.

    >>> ApiError(413, "too_large", "send less").body()
    b'{"error":{"code":"too_large","message":"send less"}}'
    """

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return dumps(ErrorResponse(Error(self.code, self.message)))

    def response(self) -> Response:
        return Json(self.body(), self.status, self.headers)


NOT_CACHED = (b"cache-control", b"no-store")
"""Unless an answer says otherwise: the page and pictures may be kept."""


class Json(JSONResponse):
    """Bytes that are JSON already."""

    def __init__(
        self, content: bytes, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Written out, as every query goes through it."""
        self.status_code, self.body, self.background = status_code, content, None
        self.raw_headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", b"application/json"),
            *((k.lower().encode(), v.encode()) for k, v in (headers or {}).items()),
        ]


class OpenFile(Response):
    """A file that is open already, sent a piece at a time and then closed. (Starlette's own opens a
    path, which may be a link to another file by then.)"""

    PIECE = 256 * 1024

    def __init__(self, file: FileIO, media_type: str, headers: Mapping[str, str]) -> None:
        self._file, self._size = file, os.fstat(file.fileno()).st_size
        super().__init__(None, 200, {**headers, "Content-Length": str(self._size)}, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200}
        with self._file as file:
            await send({**start, "headers": self.raw_headers})
            for at in range(0, self._size, self.PIECE):
                data = await asyncio.to_thread(os.pread, file.fileno(), self.PIECE, at)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body"})


@dataclass(frozen=True, slots=True)
class Member:
    """A picture of a download: its name there, and its file below a folder, or the small one."""

    name: str
    folder: Path | None
    file: str
    small: bytes | None


class _Pieces(RawIOBase):
    """What was written since it was last taken."""

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._held = b"".join(self._held), []
        return data


def _photo(member: Member) -> FileIO | None:
    """The file of a picture, open, if it is there and is a picture."""
    if member.folder is None:
        return None
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_below(member.folder, member.file))
            sniffed(os.pread(file.fileno(), 16, 0))
        except (OSError, ValueError):
            return None
        stack.pop_all()
        return file


def zipped(members: Sequence[Member]) -> Iterator[bytes]:
    """A zip file, a piece at a time: never more than one piece is in memory. A file that has gone
    is left out."""
    out, used = _Pieces(), set[str]()
    with zipfile.ZipFile(cast(IO[bytes], out), "w") as archive:
        for member in members:
            name, number = member.name, 2
            while name.lower() in used:  # two folders may have one name
                path = PurePosixPath(member.name)
                name, number = str(path.with_stem(f"{path.stem} ({number})")), number + 1
            used.add(name.lower())
            source = _photo(member)
            if source is None and member.small is None:
                continue
            with archive.open(name, "w", force_zip64=True) as target:
                if source is None:
                    target.write(member.small or b"")
                    continue
                with source:
                    while piece := source.read(OpenFile.PIECE):
                        target.write(piece)
                        yield out.take()
            yield out.take()
    yield out.take()


def etag(content: bytes | FileIO) -> str:
    """The mark of some content, which browsers keep beside it."""
    if isinstance(content, bytes):
        found = hashlib.sha256(content)
    else:
        found = hashlib.file_digest(content, "sha256")
    return f'"{found.hexdigest()[:32]}"'


def unless_known(
    request: Request, mark: str, make: Callable[[Mapping[str, str]], Response]
) -> Response:
    """What ``make`` gives with the headers of a browser's cache; 304 if the browser has it. It asks
    each time: under the same address another index may have something else. (Starlette answers so
    for its own static files only.)"""
    headers = {"ETag": mark, "Cache-Control": "private, no-cache"}
    known = request.headers.get("if-none-match", "").split(",")
    if mark in [each.strip().removeprefix("W/") for each in known]:
        return Response(status_code=304, headers=headers)
    return make(headers)


def dumps(value: Any) -> bytes:
    """JSON of an answer. orjson is fast, but refuses integers beyond 64 bits and deep nesting, both
    of which metadata may hold.

    >>> dumps({"id": 10**20})
    b'{"id": 100000000000000000000}'
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        return json.dumps(value, allow_nan=False, default=_as_dict).encode()


def _as_dict(answer: Any) -> dict[str, Any]:
    return {field.name: getattr(answer, field.name) for field in fields(answer)}
