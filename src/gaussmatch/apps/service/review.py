"""Review without an index: the findings of an audit, decided about in the browser; decisions are
written beside the findings as they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gaussmatch.apps.service import page, requests
from gaussmatch.apps.service.metrics import Metrics
from gaussmatch.apps.service.middleware import Middleware
from gaussmatch.apps.service.requests import read
from gaussmatch.apps.service.responses import (
    ApiError,
    Json,
    ReviewResponse,
    dumps,
    finding_picture,
    unless_known,
)
from gaussmatch.apps.service.settings import Settings
from gaussmatch.data.clean import Decision, read_decisions
from gaussmatch.files import claim_folder, write_csv
from gaussmatch.search.trust.audit_report import FIELDS, Row, read_table

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
        write_csv(
            file,
            FIELDS,
            (
                {**asdict(row), "decision": chosen[n].decision, "fixed": chosen[n].fixed}
                for n, row in enumerate(rows)
                if n in chosen
            ),
        )
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


def _with(row: Row, made: Decision | None) -> Row:
    return row if made is None else replace(row, decision=made.decision, fixed=made.fixed)


def _page() -> list[Route]:
    """The files that Review needs; it is the first page."""
    files = {path: file for path, file in page.load().items() if path != "/"}
    return [Route(path, _sender(file)) for path, file in {**files, "/": files["/review"]}.items()]


def _sender(file: page.PageFile) -> Any:
    async def send(request: Request) -> Response:
        def make(headers: Mapping[str, str]) -> Response:
            return Response(file.content, media_type=file.media_type, headers=headers)

        return unless_known(request, file.etag, make)

    return send
