"""What the service allows, in one place; an error message names the limit that it is about."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


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

    max_body: int = 20 * 2**20  #: bytes of a request
    max_pixels: int = 200_000_000  #: of a picture, known before it is decoded
    max_memory: int = 160 * 2**20  #: bytes that uploads and their decoding hold together
    max_text: int = 1000  #: characters of a query
    max_texts: int = 256  #: captions in one call of embed
    max_results: int = 200  #: k
    timeout: float = 10.0  #: seconds a request may take before it is answered with 504
    head_timeout: float = 10.0  #: seconds for the head of a request to arrive
    body_timeout: float = 30.0  #: seconds for the body of a request to arrive
    idle_timeout: float = 30.0  #: seconds that a connection may be idle
    max_connections: int = 512  #: of a worker
    max_connections_per_address: int = 64  #: of a worker; raise it behind a proxy
    rate: float = (
        0.0  #: requests a second for each key or address, ten seconds' worth at once; 0: any
    )

    max_batch: int = 64  #: queries that are encoded together
    batch_wait: float = 0.005  #: seconds that queries wait for others that are expected
    max_waiting: int = 1024  #: queries in the queue before new ones are refused with 503
    decoders: int = 2  #: pictures decoded at a time
    map_items: int = 10_000  #: pictures on the map
    originals: bool = True  #: whether photos are sent in full size, where they are
    review: Path | None = None  #: what ``gaussmatch audit`` wrote, to be reviewed

    def __post_init__(self) -> None:
        for name in (
            "max_body",
            "max_pixels",
            "max_memory",
            "max_text",
            "max_texts",
            "max_results",
            "max_connections",
            "max_connections_per_address",
            "max_batch",
            "max_waiting",
            "decoders",
            "map_items",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("timeout", "head_timeout", "body_timeout", "idle_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be positive")
        for name in ("batch_wait", "rate"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, it must not be negative")
        if any(len(key) < 8 for key in self.api_keys):
            raise ValueError("an API key has fewer than 8 characters; take a longer one")
        if self.max_memory < 4 * self.max_body:
            raise ValueError(
                f"max_memory is {self.max_memory}, it must be at least 4 × max_body, which is "
                f"{self.max_body}"
            )
        wild = [origin for origin in self.cors if not origin.startswith(("http://", "https://"))]
        if wild:
            raise ValueError(
                f"{wild[0]!r} is no origin; give scheme and host, as in https://photos.example.org"
            )
