"""Refusals: a status, a short code for programs, a sentence for people that says what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


class RefusalError(Exception):
    """A request that cannot be answered, and why.

    >>> RefusalError(413, "too_large", "send less").body()
    b'{"error":{"code":"too_large","message":"send less"}}'
    """

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return orjson.dumps({"error": {"code": self.code, "message": self.message}})

    def response(self) -> Response:
        return Json(self.body(), self.status, self.headers)


class Json(Response):
    """Bytes that are JSON already."""

    media_type = "application/json"


def dumps(value: Any) -> bytes:
    """JSON of anything that was JSON. orjson is fast, but refuses whole numbers beyond 64 bits and
    deep nesting, both of which metadata may hold.

    >>> dumps({"id": 10**20})
    b'{"id": 100000000000000000000}'
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        return json.dumps(value, allow_nan=False).encode()


def answered(value: Any) -> Json:
    return Json(dumps(value))
