"""What every request passes: id, host, key, size, time; and headers, a log line and metrics."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gaussmatch.service import logs
from gaussmatch.service.deadlines import Deadlines
from gaussmatch.service.errors import RefusalError
from gaussmatch.service.metrics import Metrics
from gaussmatch.service.settings import Settings

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
    b"permissions-policy": b"camera=(), microphone=(), geolocation=()",
}
"""On every answer. The page may load nothing from anywhere else, and nobody may frame it."""

JSON = ((b"content-type", b"application/json"),)

GUARDED = ("/api", "/metrics")
"""Paths below these need the key, if there is one. The page itself holds no data and asks for it;
probes must work without."""

SANE_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")


Fast = Callable[[bytes], Awaitable[bytes]]
"""The query of an address → JSON, or a refusal."""


class Gate:
    """An ASGI middleware; one instead of six, because it stands in the way of every query.

    Args:
        fast: path → what answers GET requests to it at once, not through the app: where the work
            is short, finding the way to it takes longer.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        fast: Mapping[str, Fast] | None = None,
    ) -> None:
        self.app, self.settings, self.metrics, self.fast = app, settings, metrics, fast or {}
        self._hosts = frozenset(host.lower() for host in settings.hosts)
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._deadlines = Deadlines(settings.timeout)
        self._ids = itertools.count()
        self._run = secrets.token_hex(4)
        self._headers = list(HEADERS.items())
        if not settings.cors:
            self._headers.append((b"cross-origin-resource-policy", b"same-origin"))

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
        exchange = _Exchange(receive, send, self.settings.max_body, request_id, self._headers)
        fast = self.fast.get(scope["path"]) if scope["method"] == "GET" else None
        deadline = self._deadlines.start()
        self.metrics.in_flight += 1
        try:
            self._admit(scope, headers)
            if fast is None:
                await self.app(scope, exchange.receive, exchange.send)
            else:
                await exchange.answer(200, await fast(scope["query_string"]))
            if exchange.refusal is not None and not exchange.status:
                await exchange.refuse(exchange.refusal)
        except RefusalError as refusal:
            await exchange.refuse(refusal)
        except asyncio.CancelledError:
            if not deadline.reached():
                raise
            await exchange.refuse(
                RefusalError(
                    504,
                    "timeout",
                    f"no answer within {self.settings.timeout:g} s; ask for less or try later",
                )
            )
        except Exception:
            logs.LOGGER.exception("failure", extra={"id": request_id, "path": scope["path"]})
            await exchange.refuse(failure(request_id))
        finally:
            deadline.met()
            self.metrics.in_flight -= 1
            seconds = time.perf_counter() - started
            route = scope["path"]
            if fast is None:
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

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse what need not be looked at any further."""
        if self._hosts and _name(headers.get(b"host", b"")) not in self._hosts:
            raise RefusalError(
                421,
                "wrong_host",
                "this name is not served here; start with --allow-host NAME to serve it",
            )
        path: str = scope["path"]
        if self._key is not None and scope["method"] != "OPTIONS":
            guarded = any(path == p or path.startswith(f"{p}/") for p in GUARDED)
            if guarded and not self._knows_key(headers):
                raise RefusalError(
                    401,
                    "wrong_key",
                    "this service needs its API key in the header 'Authorization: Bearer KEY'",
                    {"WWW-Authenticate": "Bearer"},
                )
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or len(length) > 19 or int(length) > self.settings.max_body:
            raise too_large(self.settings.max_body)

    def _knows_key(self, headers: dict[bytes, bytes]) -> bool:
        assert self._key is not None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
        return hmac.compare_digest(given, self._key)


class _Exchange:
    """One request and its answer: bytes are counted on the way in, headers added on the way out."""

    def __init__(
        self,
        receive: Receive,
        send: Send,
        most: int,
        request_id: str,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> None:
        self._receive, self._send, self._most, self._bytes = receive, send, most, 0
        self._headers = [*headers, (b"x-request-id", request_id.encode())]
        self.status = 0
        self.refusal: RefusalError | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > self._most:
                self.refusal = too_large(self._most)
                raise self.refusal
        return message

    async def send(self, message: Message) -> None:
        if self.refusal is not None:  # whatever the app made of it, this is the reason
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._headers]
        await self._send(message)

    async def answer(
        self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send JSON."""
        self.status = status
        length = b"%d" % len(body)
        told = [*JSON, (b"content-length", length), *headers, *self._headers]
        await self._send({"type": "http.response.start", "status": status, "headers": told})
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, refusal: RefusalError) -> None:
        """Send a refusal, unless an answer is on its way already."""
        if not self.status:
            headers = ((k.lower().encode(), v.encode()) for k, v in refusal.headers.items())
            await self.answer(refusal.status, refusal.body(), headers)


def failure(request_id: str) -> RefusalError:
    """What is told of an error of the service: where to look it up."""
    return RefusalError(500, "failure", f"the service failed; its log tells more ({request_id})")


def too_large(most: int) -> RefusalError:
    return RefusalError(413, "too_large", f"at most {most:,} bytes are taken; send less")


def _name(host: bytes) -> str:
    """A Host header without its port.

    >>> _name(b"localhost:8000"), _name(b"[::1]:80"), _name(b"Photos.example.org")
    ('localhost', '::1', 'photos.example.org')
    """
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
