"""The app: an open index behind HTTP, with all its limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gaussmatch import __version__
from gaussmatch.index import GALLERIES, Gallery, Index
from gaussmatch.index.opening import in_milvus
from gaussmatch.service import facts, probes, routes
from gaussmatch.service.answers import Answers, Job, light
from gaussmatch.service.batcher import Batcher
from gaussmatch.service.budget import Budget
from gaussmatch.service.errors import RefusalError
from gaussmatch.service.gate import Gate, failure
from gaussmatch.service.logs import LOGGER
from gaussmatch.service.metrics import Metrics
from gaussmatch.service.settings import Settings

DESCRIPTION = """Ask in words or with a picture, and be told how sure the answer is.

Every picture and every caption is a Gaussian. A result has a *match probability*; a question has
an *uncertainty* (log det Σ) and its *percentile* among what the model was trained on: "vague: more
general than 93 % of captions". Point models have none, and say `null`.

Every error is `{"error": {"code", "message"}}`, and the message says what to do. Every answer has
an `X-Request-ID`, which is in the log too.
"""


class Service:
    """What the routes share: the index, its batcher, limits, counters."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.answers = Answers(index, settings.map_items)
        facts.warm_up(self.answers)  # a broken index is told before the port is open
        self.answers.seen = self.metrics.asked
        self.ready = False
        self.batcher: Batcher[Job, Any]
        self.decoders: ThreadPoolExecutor
        self.pixels: Budget
        self._ticking: asyncio.Task[None] | None = None
        for gallery in GALLERIES:
            self.metrics.watch(self.metrics.items.labels(gallery), partial(self._size, gallery))
        self.metrics.watch(self.metrics.waiting, lambda: self.batcher.waiting if self.ready else 0)

    def _size(self, gallery: Gallery) -> int:
        return self.answers.sizes[gallery]

    async def start(self) -> None:
        s = self.settings
        brief = not in_milvus(self.answers.index.place)  # a server elsewhere may keep us waiting
        self.batcher = Batcher(
            self.answers.work,
            size=s.max_batch,
            wait=s.batch_wait,
            most=s.max_waiting,
            light=light if brief else lambda job: False,
            seen=self.metrics.batch.observe,
        )
        self.pixels = Budget(s.max_pixels * s.decoders)
        self.decoders = ThreadPoolExecutor(s.decoders, thread_name_prefix="gaussmatch-decode")
        if self.metrics.folder is not None:
            self.metrics.forget_the_dead()
            self._ticking = asyncio.create_task(self._tick())
        self.ready = True
        LOGGER.info("ready", extra={"pid": os.getpid()})

    async def stop(self) -> None:
        self.ready = False
        await self.batcher.close()
        await asyncio.to_thread(self.decoders.shutdown)
        if self._ticking is not None:
            self._ticking.cancel()
        LOGGER.info("stopped", extra={"pid": os.getpid()})

    async def _tick(self) -> None:
        """Gauges of this worker for the others."""
        while True:
            self.metrics.refresh()
            await asyncio.sleep(1)


class GatedApp(FastAPI):
    """An app behind its gate: FastAPI's own layers come after it."""

    gate: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.gate or super().__call__)(scope, receive, send)

    def shut(self, service: Service) -> None:
        """Put the gate up."""
        settings, fast = service.settings, {"/api/search": partial(routes.searched, service)}
        self.gate = Gate(super().__call__, settings, service.metrics, fast)
        if settings.cors:  # around the gate, so that refusals can be read too
            self.gate = CORSMiddleware(
                self.gate,
                allow_origins=list(settings.cors),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-ID"],
                expose_headers=["X-Request-ID"],
            )


def create_app(index: Index, settings: Settings | None = None) -> FastAPI:
    """The service of an index; run it with any ASGI server."""
    settings = settings or Settings()
    service = Service(index, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = GatedApp(
        title="gaussmatch",
        version=__version__,
        summary="Image–text retrieval that knows how sure it is.",
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        openapi_tags=[
            {"name": "search", "description": "Ask in words, with a picture, or with an item."},
            {"name": "items", "description": "What is in the index."},
            {"name": "gaussians", "description": "Embeddings, their uncertainty, and a map."},
            {"name": "probes", "description": "For those who run the service."},
        ],
    )
    app.state.service = service
    app.include_router(routes.router)
    app.include_router(probes.router)
    probes.add_page(app)
    app.add_exception_handler(RefusalError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)
    app.shut(service)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return error.response()


async def _failed(request: Request, error: Exception) -> Response:
    return failure(request.scope["request_id"]).response()


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
    return RefusalError(422, "invalid", f"{where}: {first['msg']}").response()


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = {
        404: ("not_found", "there is nothing at this address; see /openapi.json"),
        405: ("wrong_method", f"{request.method} is not answered here; see /openapi.json"),
    }.get(error.status_code, ("failure", str(error.detail)))
    return RefusalError(error.status_code, code, message, error.headers).response()
