"""Where an index in Milvus is, as one word that a user types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from gaussmatch.search.backends.database import without_password

PREFIX = "milvus:"
LEVELS = ("Strong", "Session", "Bounded", "Eventually")


@dataclass(frozen=True)
class Address:
    """``milvus:URI[?consistency=LEVEL&mmap=false][#NAME]``.

    Args:
        uri: what pymilvus connects to: a file that ends in .db, or http(s)://host:port.
        name: of the index; its collections are called after it.
        consistency: how fresh an answer must be. ``Session`` sees what this process wrote, and what
            others wrote up to a few seconds ago; ``Strong`` sees every change that was finished
            before the question and waits 0.2 s for that, too long for a service.
        mmap: whether a collection that is made leaves on disk what is read for a shortlist only.

    >>> Address.of("milvus:http://db:19530?consistency=Bounded#photos")
    Address(uri='http://db:19530', name='photos', consistency='Bounded', mmap=True)
    >>> str(Address.of("milvus:demo.db"))
    'milvus:demo.db'
    """

    uri: str
    name: str = "gaussmatch"
    consistency: str = "Session"
    mmap: bool = True

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", self.name):
            raise ValueError(
                f"#{self.name}: the name of an index in Milvus is letters, digits and _ only"
            )
        if self.consistency not in LEVELS:
            raise ValueError(f"no consistency {self.consistency!r}; choose {', '.join(LEVELS)}")

    @staticmethod
    def of(text: str) -> Address:
        rest, _, name = text.removeprefix(PREFIX).partition("#")
        uri, _, query = rest.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        strange = sorted(set(options) - {"consistency", "mmap"})
        if strange:
            raise ValueError(f"{text}: no option {strange[0]!r}; there are consistency and mmap")
        mmap = options.get("mmap", "true")
        if mmap not in ("true", "false"):
            raise ValueError(f"{text}: mmap is true or false, not {mmap!r}")
        if not uri.startswith(("http://", "https://")) and not uri.endswith(".db"):
            raise ValueError(
                f"{text}: give a file that ends in .db (milvus:demo.db) or a server "
                "(milvus:http://host:19530)"
            )
        without_password(uri, "set MILVUS_TOKEN to user:password or to an API key")
        level = options.get("consistency", "Session")
        return Address(uri, name or "gaussmatch", level, mmap == "true")

    @property
    def remote(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    def __str__(self) -> str:
        options = [] if self.consistency == "Session" else [f"consistency={self.consistency}"]
        options += [] if self.mmap else ["mmap=false"]
        query = f"?{'&'.join(options)}" if options else ""
        return f"{PREFIX}{self.uri}{query}" + (f"#{self.name}" if self.name != "gaussmatch" else "")
