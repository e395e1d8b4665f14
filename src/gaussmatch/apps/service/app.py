"""The apps: an open index behind HTTP, with all its limits; and the findings of an audit without an
index, decided about in the browser. Decisions are written beside the findings as they are made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from fastapi import FastAPI, Request
from PIL import Image
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gaussmatch import __version__
from gaussmatch.apps.service import page, requests, routes
from gaussmatch.apps.service.batcher import Batcher
from gaussmatch.apps.service.engine import Engine, Job, light
from gaussmatch.apps.service.logs import LOGGER, Metrics
from gaussmatch.apps.service.middleware import Middleware, failure
from gaussmatch.apps.service.requests import read
from gaussmatch.apps.service.responses import (
    ApiError,
    Json,
    ReviewResponse,
    dumps,
    finding_picture,
)
from gaussmatch.apps.service.settings import Budget, Settings
from gaussmatch.data.clean import Decision, read_decisions
from gaussmatch.data.pictures import Bounds, Decoders
from gaussmatch.files import claim_folder, write_csv
from gaussmatch.search import GALLERIES, Gallery, Index
from gaussmatch.search.trust.audit_report import FIELDS, Row, read_table

T = TypeVar("T")

DESCRIPTION = """Search with words or a picture, and learn how sure the answer is.

Every picture and every caption is a Gaussian. A result has a *match probability*; a query has an
*uncertainty* (log det Σ) and its *percentile* among the model's training items: "vague: more
general than 93 % of whole captions". For point models these are `null`.

Every error is `{"error": {"code", "message"}}`, and the message says what to do. Every response has
an `X-Request-ID`, which is in the log too.
"""


class Service:
    """What the routes share: engine, batcher, limits, metrics."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.engine = Engine(index, settings)
        self.engine.warm_up()  # a broken index is an error before the port is open
        self.engine.observe = self.metrics.query  # only what clients search for
        self.ready = False
        self.batcher: Batcher[Job, Any]
        self.pictures: Decoders
        self.decoders: ThreadPoolExecutor
        self.bodies: Budget
        self.decoding: Budget
        self._ticking: asyncio.Task[None] | None = None
        for gallery in GALLERIES:
            self.metrics.watch(self.metrics.items.labels(gallery), partial(self._size, gallery))
        self.metrics.watch(self.metrics.waiting, lambda: self.batcher.waiting if self.ready else 0)

    def _size(self, gallery: Gallery) -> int:
        return self.engine.sizes[gallery]

    async def start(self) -> None:
        s = self.settings
        brief = not self.engine.index.backend.remote  # a server elsewhere may keep us waiting
        self.batcher = Batcher(
            self.engine.run,
            size=s.max_batch,
            wait=s.batch_wait,
            most=s.max_waiting,
            light=light if brief else lambda job: False,
            seen=self.metrics.batch.observe,
        )
        bodies = max(2 * s.max_body, s.max_memory // 5)
        # for each of the two: long enough to outlast those that decode, with a second for a decoder
        # that starts anew, and to be decoded after them
        patience = max(s.timeout / 3, s.timeout - s.decode_timeout - 1)
        self.bodies = Budget(bodies, patience)
        self.decoding = Budget(s.max_memory - bodies, patience)
        each = int(self.decoding.most / (s.decoders + 0.5))  # the rest is for what was decoded
        self.pictures = Decoders(Bounds(each, s.decode_timeout, s.max_pixels))
        self.pictures.start(s.decoders)
        self.decoders = ThreadPoolExecutor(s.decoders, thread_name_prefix="gaussmatch-decode")
        if self.metrics.folder is not None:
            self.metrics.forget_the_dead()
            self._ticking = asyncio.create_task(self._tick())
        self.ready = True
        LOGGER.info("ready", extra={"pid": os.getpid()})

    async def decode(self, work: Callable[..., T], *args: Any) -> T:
        """Run something in a thread for decoding. Even if the request is cancelled this returns
        only when the thread is free, so that nothing is given back that is still in use; a picture
        takes at most ``decode_timeout``."""
        job = self.decoders.submit(work, *args)
        done = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            if not job.cancel():
                await asyncio.wait([done])
            raise
        finally:  # an error holds this frame, which must not hold the error's future and the body
            del job, done, args

    @asynccontextmanager
    async def opened(self, source: bytes | IO[bytes]) -> AsyncIterator[Image.Image]:
        """A decoded picture. Its share of the memory is reserved before it is opened; the decoder's
        part is given back when the decoder has ended, the rest with the picture."""
        async with self.decoding.take(self.pictures.bounds.memory) as keep:
            picture = (await self.decode(self.pictures.read, source)).picture
            await keep(4 * picture.width * picture.height)
            yield picture

    async def stop(self) -> None:
        self.ready = False
        await self.batcher.close()
        self.pictures.close()  # also those that are busy: a stop must not wait for a picture
        await asyncio.to_thread(self.decoders.shutdown)
        if self._ticking is not None:
            self._ticking.cancel()
        LOGGER.info("stopped", extra={"pid": os.getpid()})

    async def _tick(self) -> None:
        """Gauges of this worker for the others."""
        while True:
            self.metrics.refresh()
            await asyncio.sleep(1)


class App(FastAPI):
    """FastAPI behind our middleware, which calls the endpoints itself; FastAPI describes them."""

    outer: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.outer is None:
            service = self.state.service
            self.outer = Middleware(
                super().__call__, service.settings, service.metrics, routes.endpoints()
            )
        scope["app"] = self
        await self.outer(scope, receive, send)


def create_app(index: Index, settings: Settings | None = None) -> FastAPI:
    """The service of an index; run it with any ASGI server."""
    settings = settings or Settings()
    service = Service(index, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = App(
        title="gaussmatch",
        version=__version__,
        summary="Image–text retrieval that knows how sure it is.",
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        openapi_tags=[
            {"name": "search", "description": "Search with words, a picture, or an item."},
            {"name": "browse", "description": "All pictures by date, folder and place."},
            {"name": "items", "description": "What is in the index."},
            {"name": "gaussians", "description": "Embeddings, their uncertainty, and a map."},
            {"name": "review", "description": "The findings of an audit."},
            {"name": "probes", "description": "For those who run the service."},
        ],
    )
    app.state.service = service
    app.include_router(routes.api)
    app.include_router(routes.probes)
    routes.add_page(app)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    return failure(request.scope["request_id"]).response()


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = {
        404: ("not_found", "there is nothing at this address; see /openapi.json"),
        405: ("wrong_method", f"{request.method} is not supported here; see /openapi.json"),
    }.get(error.status_code, ("failure", str(error.detail)))
    return ApiError(error.status_code, code, message, error.headers).response()


DECISIONS = "decisions.csv"
"""What Review writes into the folder of an audit, for ``gaussmatch audit apply``."""


class Made(BaseModel):
    """A decision about the finding of a number."""

    finding: int
    decision: str
    fixed: str = ""


class AllMade(BaseModel):
    decisions: list[Made]


def create_review(folder: Path, settings: Settings) -> ASGIApp:
    """The page Review over the folder of an audit."""
    file = folder / DECISIONS
    rows = read_table(folder)
    claim_folder(folder, names=[DECISIONS])

    def decided() -> list[Row]:
        """The findings with what is written about them."""
        made = {_key(d): d for d in read_decisions(file)} if file.is_file() else {}
        return [_with(row, made.get(_key(row))) for row in rows]

    async def review(request: Request) -> Response:
        read(requests.Nothing, request)
        answer = ReviewResponse.of(folder, saves=file)
        return Json(dumps(replace(answer, findings=decided())))

    async def picture(request: Request) -> Response:
        number = read(requests.ImageNumber, request).image
        return Response(finding_picture(folder, number), media_type="image/jpeg")

    async def save(request: Request) -> Response:
        try:
            made = AllMade.model_validate_json(await request.body()).decisions
            chosen = {one.finding: one for one in made}
            for one in made:
                row = rows[one.finding] if 0 <= one.finding < len(rows) else None
                if row is None:
                    raise ValueError(f"there is no finding {one.finding}")
                Decision(**_fields(row), decision=one.decision, fixed=one.fixed)
        except (ValidationError, ValueError) as error:
            raise ApiError(422, "wrong_decision", str(error)) from error
        kept = (asdict(_with(row, chosen[n])) for n, row in enumerate(rows) if n in chosen)
        write_csv(file, FIELDS, kept)
        return Json(dumps({"written": str(file), "decisions": len(chosen)}))

    endpoints = {
        ("GET", "/api/review"): review,
        ("GET", "/api/review/picture"): picture,
        ("POST", "/api/review/decisions"): save,
    }
    return Middleware(Starlette(routes=_page()), settings, Metrics(), endpoints)


def _fields(row: Row) -> dict[str, str]:
    names = ("issue", "image", "caption", "text", "other", "other_caption")
    return {name: getattr(row, name) for name in names}


def _key(one: Row | Decision) -> tuple[str, ...]:
    return one.issue, one.image, one.caption, one.other, one.text


def _with(row: Row, made: Decision | Made | None) -> Row:
    return row if made is None else replace(row, decision=made.decision, fixed=made.fixed)


def _page() -> list[Route]:
    """The files that Review needs; it is the first page."""
    files = {path: file for path, file in page.load().items() if path != "/"}
    return [
        Route(path, routes.sender(file)) for path, file in {**files, "/": files["/review"]}.items()
    ]
