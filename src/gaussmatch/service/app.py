"""The app: an open index behind HTTP, with all its limits."""

from __future__ import annotations

import asyncio
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

from gaussmatch import __version__
from gaussmatch.index import GALLERIES, Index
from gaussmatch.service import facts, probes, routes
from gaussmatch.service.answers import Answers, Job
from gaussmatch.service.batcher import Batcher
from gaussmatch.service.errors import RefusalError
from gaussmatch.service.gate import Gate
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
        for gallery in GALLERIES:
            self.metrics.items.labels(gallery).set_function(partial(index.size, gallery))
        self.metrics.waiting.set_function(lambda: self.batcher.waiting if self.ready else 0)

    async def start(self) -> None:
        s = self.settings
        self.batcher = Batcher(
            self.answers.work,
            size=s.max_batch,
            wait=s.batch_wait,
            most=s.max_waiting,
            seen=self.metrics.batch.observe,
        )
        self.decoders = ThreadPoolExecutor(s.decoders, thread_name_prefix="gaussmatch-decode")
        self.ready = True
        LOGGER.info("ready")

    async def stop(self) -> None:
        self.ready = False
        await self.batcher.close()
        await asyncio.to_thread(self.decoders.shutdown)
        LOGGER.info("stopped")


def create_app(index: Index, settings: Settings | None = None) -> FastAPI:
    """The service of an index; run it with any ASGI server."""
    settings = settings or Settings()
    service = Service(index, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
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
    fast = {"/api/search": routes.search}
    app.add_middleware(Gate, settings=settings, metrics=service.metrics, fast=fast)
    if settings.cors:  # around the gate, so that refusals can be read too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key", "X-Request-ID"],
            expose_headers=["X-Request-ID"],
        )
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusalError)
    return error.response()


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
