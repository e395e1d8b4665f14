"""The web page: the files of this package, read once; no other file has an address."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from gaussmatch.apps.service.responses import etag

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page as it is sent."""

    content: bytes
    media_type: str
    etag: str


def load() -> dict[str, PageFile]:
    """Address → file."""
    names = (file.name for file in files(__name__).iterdir())
    return {_address(n): _read(n) for n in sorted(names) if n.rpartition(".")[2] in TYPES}


def _address(name: str) -> str:
    """
    >>> _address("index.html"), _address("review.html"), _address("app.js")
    ('/', '/review', '/app.js')
    """
    return "/" if name == "index.html" else f"/{name.removesuffix('.html')}"


def _read(name: str) -> PageFile:
    content = files(__name__).joinpath(name).read_bytes()
    content_type = TYPES[name.rpartition(".")[2]]
    return PageFile(content, content_type, etag(content))
