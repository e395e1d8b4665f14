"""A connection to Milvus that waits and tries again where that helps, and where it leads: one word
that a user types."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import parse_qsl

from gaussmatch.checks import extra
from gaussmatch.search.backends.database import patiently, without_password

PREFIX = "milvus:"
LEVELS = ("Strong", "Session", "Bounded", "Eventually")


@dataclass(frozen=True)
class Address:
    """``milvus:URI[?consistency=LEVEL&mmap=false][#NAME]``.

    Args:
        uri: what pymilvus connects to: a file that ends in .db, or http:// or https://host:port.
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


PROBE = 3.0
"""Seconds in which a server that is alive says so."""
SEALED = 3
OLDEST = (2, 3)
"""The first version that has what every index needs."""

TRANSIENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
NO_COLLECTION, NOT_LOADED = 100, 101
"""Codes: a collection that is not there, or is there but not in memory."""
RECOVERING = {1, 2, 8, 103, 106, 401, *range(500, 504), *range(600, 603), *range(901, 906)}
"""Codes of a server that is away, starting, limiting us or moving a collection about."""


class MilvusError(OSError):
    """Milvus refuses a request."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def pymilvus() -> Any:
    """The library, or a clear word that it is an extra."""
    with extra("milvus", "an index in Milvus"):
        import pymilvus
    return pymilvus


BOUND = 10.0
"""Seconds after which Bounded has caught up with any change."""
_written: dict[tuple[str, str], float] = {}
_open: Counter[str] = Counter()
"""How many clients of this process use each embedded file."""


def connect(address: Address, make: bool = False) -> Client:
    """A client of the server; the token comes from MILVUS_TOKEN. Embedded files need no server:
    milvus-lite runs in this process until its last client is closed.

    Args:
        make: whether an embedded file may be made.
    """
    library = pymilvus()
    if not os.environ.get("GAUSSMATCH_DEBUG"):  # they print a traceback of every failed call
        for name in ("pymilvus", "pymilvus.milvus_client", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    if not address.remote and not make and not os.path.exists(address.uri):
        raise FileNotFoundError(
            f"{address}: there is no such file; make an index with 'gaussmatch index'"
        )
    token = os.environ.get("MILVUS_TOKEN", "")
    make_client = partial(library.MilvusClient, address.uri, token=token)
    try:
        try:
            raw = make_client()
        except library.MilvusException:
            if address.remote:
                raise
            raw = make_client()  # milvus-lite hangs up on clients that were idle for long
    except (library.MilvusException, RuntimeError) as error:
        why = getattr(error, "message", error)
        if not address.remote and os.path.exists(address.uri):
            raise ConnectionError(
                f"{address}: cannot be opened ({why}); is another process using it? An embedded "
                "file is for one process at a time, several need a server"
            ) from error
        if _refused(error):
            raise PermissionError(
                f"{address}: the server is there and refuses the token; set MILVUS_TOKEN to "
                "user:password or to an API key that it knows"
            ) from error
        raise ConnectionError(f"{address}: cannot connect ({why}); is the server up?") from error
    if address.remote:
        return Client(raw, address.uri)
    file = os.path.abspath(address.uri)
    _open[file] += 1
    return Client(raw, file, at_close=lambda: _release(file))


def _release(file: str) -> None:
    _open[file] -= 1
    if not _open[file]:
        from milvus_lite.server_manager import server_manager_instance

        server_manager_instance.release_server(file)


class Client:
    """Calls a pymilvus client by name. Every call that is made here may be repeated: upserts and
    deletes go by id, so one that was done although its answer was lost does no harm."""

    def __init__(
        self,
        client: Any,
        uri: str = "",
        sleep: Callable[[float], None] = time.sleep,
        at_close: Callable[[], None] | None = None,
    ) -> None:
        self._client, self.uri, self._sleep, self._at_close = client, uri, sleep, at_close

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        return self.repeat(name, getattr(self._client, name), *args, **options)

    def repeat(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call until it succeeds, fails for good or has failed for too long."""

        def transient(error: Exception) -> bool:
            if getattr(error, "code", None) == NOT_LOADED and name != "load_collection":
                self("load_collection", args[0])  # the server was started again, or released it
                return True
            return is_transient(error)

        work = partial(call, *args, **options)
        try:
            return patiently(work, transient, f"Milvus did not do {name}", self._sleep)
        except pymilvus().MilvusException as error:
            why = getattr(error, "message", None) or error
            raise MilvusError(f"Milvus refuses {name}: {why}", error.code) from error

    def sealed(self, collection: str) -> int:
        """Rows in memory, in segments that get no more."""
        call = self._client._get_connection().get_query_segment_info
        found = self.repeat("get_query_segment_info", call, collection)
        return sum(segment.num_rows for segment in found if segment.state == SEALED)

    def write(self, name: str, collection: str, *args: Any, **options: Any) -> None:
        """A call that changes a collection."""
        self(name, collection, *args, **options)
        _written[self.uri, collection] = time.monotonic()

    def level(self, collection: str, consistency: str) -> str:
        """How fresh a read must be. ``Session`` is ours: a process sees what it wrote itself at
        once, and what others wrote within seconds."""
        if consistency != "Session":
            return consistency
        return "Session" if time.monotonic() - self.written(collection) < BOUND else "Bounded"

    def written(self, collection: str) -> float:
        """When this process last changed a collection, by ``time.monotonic``."""
        return _written.get((self.uri, collection), -math.inf)

    def alive(self) -> bool:
        """Whether the server answers now; nothing is repeated."""
        try:
            self._client.list_collections(timeout=PROBE, retry_times=0)
        except Exception:
            return False
        return True

    @cached_property
    def version(self) -> tuple[int, int]:
        """Of the server."""
        text = str(self("get_server_version"))
        found = re.match(r"v?(\d+)\.(\d+)", text)
        return (int(found[1]), int(found[2])) if found else OLDEST  # a name of one's own

    def ours(self, name: str, fields: Iterable[str]) -> bool:
        """Whether there is such a collection; one without these fields is refused."""
        if not self("has_collection", name):
            return False
        found = {field["name"] for field in self("describe_collection", name)["fields"]}
        if not found.issuperset(fields):
            raise FileExistsError(
                f"the collection {name} was not made by gaussmatch; choose another #NAME for the "
                "index, or rename the collection"
            )
        return True

    def drop(self, name: str, fields: Iterable[str]) -> None:
        """Remove a collection of ours, if it is there."""
        if self.ours(name, fields):
            self("drop_collection", name)

    def close(self) -> None:
        self._client.close()
        if self._at_close is not None:
            self._at_close()
            self._at_close = None


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed later: the server is busy, limits us or is away."""
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    return (
        isinstance(error, ConnectionError | TimeoutError)
        or type(error).__name__ in ("ConnectError", "MilvusUnavailableException")
        or getattr(code, "name", code) in TRANSIENT
        or code in RECOVERING
        or bool(getattr(error, "_retriable", False))
    )


def _refused(error: Exception) -> bool:
    """Whether the server does not know us; pymilvus calls that a failed connection, too."""
    code = getattr(error.__cause__, "code", None)
    return callable(code) and getattr(code(), "name", "") == "UNAUTHENTICATED"
