"""What the service allows, in one place; every limit has a name that its error message uses."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """Limits and options of the service.

    >>> Settings().max_results
    200
    >>> Settings(max_batch=0)
    Traceback (most recent call last):
    ValueError: max_batch is 0, it must be at least 1
    """

    api_key: str | None = field(default=None, repr=False)  #: required for every call below /api
    cors: tuple[str, ...] = ()  #: origins whose pages may call; none by default
    hosts: tuple[str, ...] = ()  #: Host headers that are answered; empty means all

    max_body: int = 20 * 2**20  #: bytes of a request
    max_pixels: int = 50_000_000  #: of a picture, known before it is decoded
    max_text: int = 1000  #: characters of a query
    max_texts: int = 256  #: captions in one call of embed
    max_results: int = 200  #: k
    timeout: float = 10.0  #: seconds a request may take before it is answered with 504

    max_batch: int = 64  #: queries that are encoded together
    batch_wait: float = 0.005  #: seconds that queries wait for others that are expected
    max_waiting: int = 1024  #: queries in the queue before new ones are refused with 503
    decoders: int = 2  #: pictures decoded at a time; as many of the largest may be in memory
    map_items: int = 600  #: Gaussians on the map

    def __post_init__(self) -> None:
        for name in (
            "max_body",
            "max_pixels",
            "max_text",
            "max_texts",
            "max_results",
            "max_batch",
            "max_waiting",
            "decoders",
            "map_items",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.timeout <= 0 or self.batch_wait < 0:
            raise ValueError("timeout must be positive and batch_wait not negative")
        if self.api_key is not None and len(self.api_key) < 8:
            raise ValueError("the API key has fewer than 8 characters; take a longer one")
        wild = [origin for origin in self.cors if not origin.startswith(("http://", "https://"))]
        if wild:
            raise ValueError(
                f"{wild[0]!r} is no origin; give scheme and host, as in https://photos.example.org"
            )
