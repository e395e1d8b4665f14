"""For those who run the service: is it alive, is it ready, how does it do; and the page."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from gaussmatch.service import page
from gaussmatch.service.errors import Json, RefusalError, answered
from gaussmatch.service.metrics import CONTENT_TYPE_LATEST
from gaussmatch.service.schema import Refused

router = APIRouter(tags=["probes"])


class Status(BaseModel):
    status: str


@router.get("/healthz", responses={200: {"model": Status}}, response_class=Json)
async def healthz() -> Response:
    """The process is alive."""
    return answered({"status": "alive"})


@router.get(
    "/readyz",
    responses={200: {"model": Status}, 503: {"model": Refused}},
    response_class=Json,
)
async def readyz(request: Request) -> Response:
    """The index is open, the model is loaded and has answered once."""
    if not request.app.state.service.ready:
        raise RefusalError(503, "not_ready", "the service is starting or stopping; try again")
    return answered({"status": "ready"})


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    text = request.app.state.service.metrics.text()
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def add_page(app: FastAPI) -> None:
    """One route for each file of the page; there is no way to name any other file."""
    for path, file in page.load().items():

        async def serve(request: Request, file: page.PageFile = file) -> Response:
            headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
            if request.headers.get("if-none-match") == file.etag:
                return Response(status_code=304, headers=headers)
            return Response(file.content, media_type=file.media_type, headers=headers)

        app.add_route(path, serve, methods=["GET", "HEAD"], include_in_schema=False)
