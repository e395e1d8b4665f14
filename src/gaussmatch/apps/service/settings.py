"""What the service allows, in one place; an error message names the limit that it is about."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


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
            raise ValueError("an API key has fewer than 8 characters; take a longer one")
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
