"""The HTTP connection: bounds on its head, trailers, time and number; errors that are JSON.

uvicorn's protocol has none of these: a client could fill memory with trailer lines, or keep a
thousand half-sent heads open for ever. Granian (2.8, hyper) was tried in place of this module and
``server``. It is as fast (85 % of the library against 88 %), and bounds heads, header lines and
trailers by itself. It does not keep these promises, which is why this is made by hand:

- 600 half-sent heads from one address keep everybody out until they time out: it has no limit by
  address, and closes nobody to make room (``_make_room``)
- 11 to 14 of 20 clients on kept connections lose a request when it stops; here none does
- what is not HTTP, too long or too slow is refused without JSON
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gaussmatch.apps.service.logs import LOGGER
from gaussmatch.apps.service.middleware import HEADERS
from gaussmatch.apps.service.responses import NOT_CACHED, ApiError
from gaussmatch.apps.service.settings import Settings

MAX_HEAD = 64 * 1024
"""Bytes of the address and the headers of a request, and of anything else that is not its body,
such as trailers, in one piece."""
PIECE = MAX_HEAD // 4
"""Bytes that are parsed at a time, and that a count may be wrong by."""
MAX_HEADERS = 100
"""Header lines of a request."""
DRAIN = 0.5
"""Seconds that an idle connection stays open when the service stops: a request may be on its
way."""


class Protocol(HttpToolsProtocol):
    """One connection. ``protocol`` makes a class whose connections share these:

    Args:
        addresses: open connections by address.
        closed: connections that were refused or closed early since the last log line, by reason
            and address.
        stopping: whether the service stops: each answer is then the last of its connection.
    """

    settings: Settings
    addresses: Counter[str]
    closed: Counter[tuple[str, str]]
    stopping: bool = False

    _pending: int | None = None  # bytes of a request since its start or since its body's last part
    _in_body = _refused = False
    _due: float | None = None  # when the client must have sent what is expected of it

    # ---- the connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.addresses[self._address] += 1
        self._expect(self.settings.head_timeout)
        s = self.settings
        if len(self.connections) > s.max_connections:
            self._make_room(self.connections, too_many("the service"))
        elif self.addresses[self._address] > s.max_connections_per_address:
            every: set[Any] = self.connections
            own = [c for c in every if c._address == self._address]
            self._make_room(own, too_many("your address"))
        if self.stopping:
            self.shutdown()

    def _make_room(self, connections: Iterable[Any], error: ApiError) -> None:
        """Close the connection that has been waited for the longest: one that has not sent a head
        yet, or else an idle one. If all are being answered, there is no room for this one."""
        waiting = (c for c in connections if c is not self and not c._active() and not c._refused)
        longest = min(waiting, key=lambda c: (c.cycle is not None, c._due or 0), default=self)
        longest.refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            if self._refused or self.transport.is_closing():
                return
            piece = data[start : start + PIECE]
            self._pending = None if self._pending is None else self._pending + len(piece)
            super().data_received(piece)
            if self._pending is not None and self._pending > MAX_HEAD and not self._refused:
                self.refuse(too_long())

    def shutdown(self) -> None:
        """The service stops: answer what has arrived, then close."""
        if self._active():
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(DRAIN, self._close_if_idle)

    def _active(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close_if_idle(self) -> None:
        if not self._active():
            self.transport.close()

    # ---- requests ----

    def on_message_begin(self) -> None:
        self._pending, self._in_body, self._lines = 0, False, 0
        self._expect(self.settings.head_timeout)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # a trailer: nobody reads it
            return
        self._lines += 1
        if self._lines <= MAX_HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._pending, self._in_body = 0, True
        self._expect(self.settings.body_timeout)
        if self._lines > MAX_HEADERS:
            self.refuse(too_long())
            return
        super().on_headers_complete()
        if self.stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._pending = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending = self._due = None
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._pending is None:
            self._expect(self.settings.idle_timeout)

    # ---- time ----

    def _expect(self, seconds: float) -> None:
        self._due = self.loop.time() + seconds

    def close_if_overdue(self, now: float) -> None:
        """Close the connection of a client that has not sent in time what is expected of it."""
        if self._due is None or now < self._due or self._refused:
            return
        self._due = None
        if self._pending is None and self.cycle is not None:
            self.transport.close()  # idle
        else:
            part = "body" if self._in_body else "head"
            message = f"the {part} of the request did not arrive in time; send it again"
            self.refuse(ApiError(408, f"slow_{part}", message))

    # ---- errors ----

    def send_400_response(self, msg: str) -> None:
        self.refuse(ApiError(400, "bad_request", "this is not valid HTTP; see /openapi.json"))

    def refuse(self, error: ApiError) -> None:
        """Answer without the app, and close."""
        self._refused, response = True, error.response()
        self.closed[error.code, self._address] += 1
        answered = self.cycle is not None and self.cycle.response_started and self._active()
        if self._active():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not answered and not self.transport.is_closing():
            own = (*response.raw_headers, NOT_CACHED, (b"connection", b"close"))
            lines = b"".join(b"%s: %s\r\n" % pair for pair in (*own, *HEADERS.items()))
            self.transport.write(STATUS_LINE[error.status] + lines + b"\r\n" + response.body)
        self.transport.close()


def too_long() -> ApiError:
    return ApiError(
        431,
        "head_too_long",
        f"headers and trailers may have {MAX_HEAD:,} bytes and {MAX_HEADERS} lines; send fewer",
    )


def too_many(whose: str) -> ApiError:
    return ApiError(
        503,
        "too_many_connections",
        f"{whose} has too many connections; try again later",
        {"Retry-After": "5"},
    )


def protocol(settings: Settings) -> type[Protocol]:
    """The protocol of a server with these settings."""
    shared: dict[str, Any] = {"settings": settings, "addresses": Counter(), "closed": Counter()}
    return type("BoundProtocol", (Protocol,), shared)


def close_overdue(protocol: type[Protocol], connections: Iterable[Any], now: float) -> None:
    """Close the connections of slow clients; one log line for each reason and address."""
    for connection in list(connections):
        connection.close_if_overdue(now)
    for (reason, client), count in protocol.closed.items():
        LOGGER.warning("closed", extra={"reason": reason, "client": client, "count": count})
    protocol.closed.clear()
