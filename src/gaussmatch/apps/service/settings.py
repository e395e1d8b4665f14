"""What the service allows, in one place, and the limits on what requests ask for and hold together.
An error message names the limit that it is about."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gaussmatch.apps.service.responses import ApiError


def _limit(default: float, help: str) -> Any:
    """A field that is an option of ``gaussmatch serve`` too."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Settings:
    """Limits and options of the service.

    >>> Settings().max_results
    200
    >>> Settings(max_batch=0)
    Traceback (most recent call last):
    ValueError: max_batch is 0, it must be at least 1
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)  #: one is required below /api
    cors: tuple[str, ...] = ()  #: origins whose pages may call; none by default
    hosts: tuple[str, ...] = ()  #: Host headers that are answered; empty means all
    originals: bool = True  #: whether photos are sent in full size, where they are
    photos: Path | None = None  #: their folder; else the one that the index was made from here
    review: Path | None = None  #: what ``gaussmatch audit`` wrote, to be reviewed
    max_texts: int = 256  #: captions in one call of embed
    max_zip: int = 1000  #: pictures in one download
    decoders: int = 2  #: pictures decoded at a time

    max_body: int = _limit(20 * 2**20, "bytes of a request")
    max_pixels: int = _limit(200_000_000, "pixels of a picture")
    max_memory: int = _limit(400 * 2**20, "bytes that uploads and their decoding hold together")
    max_text: int = _limit(1000, "characters of a query")
    max_results: int = _limit(200, "results of a search")
    timeout: float = _limit(10.0, "seconds before a request is answered with 504")
    decode_timeout: float = _limit(3.0, "seconds that decoding a picture may take")
    head_timeout: float = _limit(10.0, "seconds for the head of a request to arrive")
    body_timeout: float = _limit(30.0, "seconds for the body of a request to arrive")
    idle_timeout: float = _limit(30.0, "seconds that a connection may be idle")
    max_connections: int = _limit(512, "connections of a worker")
    max_connections_per_address: int = _limit(
        64, "connections from one address; raise it behind a proxy"
    )
    rate: float = _limit(
        0.0, "requests per second for each key, or address without keys; 0: no limit"
    )
    max_batch: int = _limit(64, "queries that are encoded together")
    batch_wait: float = _limit(0.005, "seconds that queries wait for others that are expected")
    max_waiting: int = _limit(1024, "queries in the queue before new ones are refused")
    map_items: int = _limit(10_000, "pictures on the map")

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.type in ("int", "float")):
            value = getattr(self, name)
            if name in ("batch_wait", "rate"):
                fits, needed = value >= 0, "not be negative"
            elif name.endswith("timeout"):
                fits, needed = value > 0, "be positive"
            else:
                fits, needed = value >= 1, "be at least 1"
            if not fits:
                raise ValueError(f"{name} is {value}, it must {needed}")
        if any(len(key) < 8 for key in self.api_keys):
            raise ValueError("an API key has fewer than 8 characters; use a longer one")
        if self.max_memory < 4 * self.max_body:
            raise ValueError(
                f"max_memory is {self.max_memory}, it must be at least 4 × max_body, which is "
                f"{self.max_body}"
            )
        wild = [origin for origin in self.cors if not re.fullmatch("https?://[^/A-Z]+", origin)]
        if wild:
            raise ValueError(
                f"{wild[0]!r} is not an origin; give scheme and host in lower case, and nothing "
                "after them, as in https://photos.example.org"
            )


class RateLimit:
    """A token bucket per client: ``rate`` requests a second, ten seconds' worth at once.

    >>> limit = RateLimit(rate=0.1)
    >>> [round(limit.wait(*at), 6) for at in (("a", 0), ("a", 4), ("b", 4), ("a", 10))]
    [0.0, 6.0, 0.0, 0.0]
    """

    MOST = 10_000  #: clients that are remembered

    def __init__(self, rate: float) -> None:
        self.rate, self._most = rate, max(1.0, 10 * rate)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float, cost: int = 1) -> float:
        """Take a token, or return the seconds until there is one; with no cost, only look."""
        tokens, since = self._left.pop(client, (self._most, now))
        tokens = min(self._most, tokens + (now - since) * self.rate)
        enough = tokens >= 1 - 1e-9
        self._left[client] = tokens - cost if enough else tokens, now
        if len(self._left) > self.MOST:
            self._left.popitem(last=False)
        return 0.0 if enough else (1 - tokens) / self.rate


class Budget:
    """At most so much is held at a time; who needs more waits until enough is released, and is
    refused with 503 where that takes longer than ``patience`` seconds."""

    def __init__(self, most: int, patience: float) -> None:
        self.most, self.patience, self.taken = most, patience, 0
        self._free = asyncio.Condition()

    @asynccontextmanager
    async def take(self, amount: int) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Hold some of it, and less from when what is yielded is called with how much. One request
        alone never waits."""
        amount = min(amount, self.most)
        try:
            async with asyncio.timeout(self.patience), self._free:
                await self._free.wait_for(lambda: self.taken + amount <= self.most)
                self.taken += amount
        except TimeoutError:
            raise ApiError(
                503,
                "busy",
                "the memory for pictures is in use by other requests; try again in a moment",
                {"Retry-After": "5"},
            ) from None

        async def keep(less: int) -> None:
            nonlocal amount
            async with self._free:
                self.taken -= max(0, amount - less)
                amount = min(amount, less)
                self._free.notify_all()

        try:
            yield keep
        finally:
            await keep(0)
