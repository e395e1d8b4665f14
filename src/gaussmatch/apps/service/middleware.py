"""The middleware: id, host, origin, key, size and time limit of a request; headers, log line and
metrics of its response."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gaussmatch.apps.service import logs
from gaussmatch.apps.service.logs import Metrics
from gaussmatch.apps.service.responses import NOT_CACHED, ApiError, Json
from gaussmatch.apps.service.settings import RateLimit, Settings

POLICY = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS: dict[bytes, bytes] = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"x-frame-options": b"DENY",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=()",
}
"""On every answer. The page may load nothing from anywhere else, and nobody may frame it."""

FOREIGN = (b"cross-site", b"same-site")
"""What ``Sec-Fetch-Site`` says of a request that a page elsewhere makes, also on another port."""
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, X-API-Key, X-Request-ID",
    "Access-Control-Max-Age": "600",
}

GUARDED = ("/api", "/metrics")
"""Paths below these need the key, if there is one. The page holds no data and prompts for it;
probes must work without."""

SANE_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")


Endpoints = Mapping[tuple[str, str], Callable[[Request], Awaitable[Response]]]
"""Method and path → what answers."""


class Middleware:
    """One ASGI middleware instead of six, because every query goes through it.

    Args:
        endpoints: called directly. Paths of the API have no parameters, so a dictionary finds them;
            FastAPI's layers take longer than a search: through them a query costs 1.5 times the
            library's processor time, and 1.2 times without. Everything else goes to ``app``.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, metrics: Metrics, endpoints: Endpoints | None = None
    ) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self._endpoints = endpoints or {}
        self._hosts = frozenset(host.lower() for host in settings.hosts)
        self._keys = [key.encode() for key in settings.api_keys]
        self._rate = RateLimit(settings.rate) if settings.rate else None
        self._ids = itertools.count()
        self._run = secrets.token_hex(4)
        self._origins = frozenset(origin.encode() for origin in settings.cors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = (
            given.decode() if SANE_ID.fullmatch(given) else f"{self._run}-{next(self._ids)}"
        )
        scope["request_id"] = request_id
        exchange = _Exchange(receive, send, self.settings.max_body, request_id)
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        limit = asyncio.timeout(self.settings.timeout)
        self.metrics.in_flight += 1
        try:
            async with limit:
                self._check_sender(scope, headers, exchange)
                self._check(scope, headers)
                answer: ASGIApp = self.app
                if scope["method"] == "OPTIONS" and headers.get(b"origin") in self._origins:
                    answer = Json(b"{}", headers=PREFLIGHT)
                elif endpoint is not None:
                    answer = await endpoint(Request(scope, exchange.receive))
                await answer(scope, exchange.receive, exchange.send)
            if exchange.error is not None:
                raise exchange.error
        except Exception as error:
            told = self._told(error, scope, limit.expired())
            if not exchange.status:  # else an answer has begun
                exchange.error = None
                await told.response()(scope, exchange.receive, exchange.send)
        finally:
            self.metrics.in_flight -= 1
            seconds = time.perf_counter() - started
            route = scope["path"]
            if endpoint is None:
                route = getattr(scope.get("route"), "path", "unmatched")
            self.metrics.answered(route, exchange.status, seconds)
            client = scope.get("client")
            logs.request(
                id=request_id,
                method=scope["method"],
                path=scope["path"],
                status=exchange.status,
                ms=round(seconds * 1000, 2),
                client=client[0] if client else None,
            )

    def _told(self, error: Exception, scope: Scope, late: bool) -> ApiError:
        """The message of an error, as a client sees it."""
        if isinstance(error, ApiError):
            return error
        if late:
            allowed = self.settings.timeout
            message = f"no answer within {allowed:g} s; request less or try later"
            return ApiError(504, "timeout", message)
        about = {"id": scope["request_id"], "path": scope["path"]}
        logs.LOGGER.error("failure", extra=about, exc_info=error)
        return failure(scope["request_id"])

    def _check_sender(self, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange) -> None:
        """Refuse other names of this machine, and pages elsewhere: they could make the browser of
        somebody who may search send requests here. Following a link to here is harmless."""
        host, names = headers.get(b"host", b""), [name for name, _ in scope["headers"]]
        if names.count(b"host") > 1:
            raise ApiError(400, "bad_request", "the request has two Host headers; send one")
        if self._hosts and _name(host) not in self._hosts:
            raise ApiError(
                421,
                "wrong_host",
                "this name is not served here; start with --allow-host NAME to serve it",
            )
        if self._origins:
            exchange.headers.append((b"vary", b"Origin"))
        origin = headers.get(b"origin")
        if origin in self._origins:
            exchange.headers += [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"X-Request-ID"),
            ]
            return
        foreign = headers.get(b"sec-fetch-site") in FOREIGN
        link = (
            scope["method"] in ("GET", "HEAD")
            and headers.get(b"sec-fetch-mode") == b"navigate"
            and headers.get(b"sec-fetch-dest") == b"document"
        )
        if origin is None and (link or not foreign):
            return
        if origin and host and origin.partition(b"://")[2].lower() == host.lower():
            return
        raise ApiError(
            403,
            "foreign_origin",
            "pages elsewhere may not call this service; start with --cors ORIGIN to allow one",
        )

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse what needs no further look."""
        path: str = scope["path"]
        guarded = any(path == p or path.startswith(f"{p}/") for p in GUARDED)
        if guarded and scope["method"] != "OPTIONS":
            address = (scope.get("client") or ("",))[0]
            guesses = f"guesses {address}"
            if self._keys:
                self._check_rate(guesses, cost=0)
            key = _key(headers)
            known = [hmac.compare_digest(key, own) for own in self._keys]  # all, in equal time
            if self._keys and not any(known):
                self._check_rate(guesses)
                raise ApiError(
                    401,
                    "wrong_key",
                    "this service needs an API key in the header 'Authorization: Bearer KEY'",
                    {"WWW-Authenticate": "Bearer"},
                )
            self._check_rate(f"key {known.index(True)}" if self._keys else address)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 19 or int(length) > self.settings.max_body:
            raise too_large(self.settings.max_body)

    def _check_rate(self, client: str, cost: int = 1) -> None:
        wait = self._rate.wait(client, time.monotonic(), cost) if self._rate is not None else 0
        if wait:
            assert self._rate is not None
            raise ApiError(
                429,
                "too_many_requests",
                f"more than {self._rate.rate:g} requests a second; try again in {wait:.1f} s",
                {"Retry-After": str(math.ceil(wait))},
            )


def _key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key that a request gives."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


class _Exchange:
    """One request and its response: bytes in are counted, headers are added on the way out."""

    def __init__(self, receive: Receive, send: Send, most: int, request_id: str) -> None:
        self._receive, self._send, self._most, self._bytes = receive, send, most, 0
        self.headers = [*HEADERS.items(), (b"x-request-id", request_id.encode())]
        self.status = 0
        self.error: ApiError | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > self._most:
                self.error = too_large(self._most)
                raise self.error
        return message

    async def send(self, message: Message) -> None:
        if self.error is not None:  # whatever the app made of it, this is the reason
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = list(message.get("headers", ()))
            cached = b"cache-control" in [name.lower() for name, _ in own]
            message["headers"] = [*own, *self.headers, *(() if cached else (NOT_CACHED,))]
        await self._send(message)


def failure(request_id: str) -> ApiError:
    """What a client may know of an error of the service: where to look it up."""
    return ApiError(500, "failure", f"the service failed; its log says why ({request_id})")


def too_large(most: int) -> ApiError:
    return ApiError(413, "too_large", f"at most {most:,} bytes are allowed; send less")


def _name(host: bytes) -> str:
    """A Host header without its port.

    >>> _name(b"localhost:8000"), _name(b"[::1]:80"), _name(b"Photos.example.org")
    ('localhost', '::1', 'photos.example.org')
    """
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
