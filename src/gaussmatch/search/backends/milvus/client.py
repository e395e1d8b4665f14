"""A connection to Milvus that waits and tries again where that helps."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gaussmatch.checks import extra
from gaussmatch.search.backends.milvus.address import Address

ATTEMPTS = 7
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds; each wait is twice the one before, less a random part so that clients spread."""

TRANSIENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
AWAY, RATE_LIMIT, NO_COLLECTION, NOT_LOADED = 2, 8, 100, 101
"""Codes: no connection (any more); too much at once; a collection that is not there, or is there
but not in memory."""


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


_open: Counter[str] = Counter()
"""How many clients of this process use each embedded file."""


def connect(address: Address, make: bool = False) -> Client:
    """A client of the server; the token comes from MILVUS_TOKEN. Embedded files need no server:
    milvus-lite runs in this process until its last client is closed.

    Args:
        make: whether an embedded file may be made.
    """
    library = pymilvus()
    _hush()
    if not address.remote and not make and not os.path.exists(address.uri):
        raise FileNotFoundError(
            f"{address}: there is no such file; make an index with 'gaussmatch index'"
        )
    try:
        raw = library.MilvusClient(address.uri, token=os.environ.get("MILVUS_TOKEN", ""))
    except (library.MilvusException, RuntimeError) as error:
        why = getattr(error, "message", error)
        if not address.remote and os.path.exists(address.uri):
            raise ConnectionError(
                f"{address}: cannot be opened ({why}); is another process using it? An embedded "
                "file is for one process at a time, several need a server"
            ) from error
        raise ConnectionError(f"{address}: cannot connect ({why})") from error
    if address.remote:
        return Client(raw)
    file = os.path.abspath(address.uri)
    _open[file] += 1
    return Client(raw, at_close=lambda: _release(file))


def _hush() -> None:
    """The libraries print a traceback of every failed call, also of one that is tried again or
    reported in a line of our own."""
    if not os.environ.get("GAUSSMATCH_DEBUG"):
        for name in ("pymilvus", "pymilvus.milvus_client", "milvus_lite"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


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
        sleep: Callable[[float], None] = time.sleep,
        at_close: Callable[[], None] | None = None,
    ) -> None:
        self._client, self._sleep, self._at_close = client, sleep, at_close

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        call = getattr(self._client, name)
        try:
            return self.repeat(name, call, *args, **options)
        except MilvusError as error:
            if error.code != NOT_LOADED:
                raise
        self("load_collection", args[0])  # the server was started again, or somebody released it
        return self.repeat(name, call, *args, **options)

    def repeat(self, name: str, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call until it succeeds, fails for good or has failed too often."""
        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call(*args, **options)
            except Exception as error:
                if not is_transient(error):
                    if isinstance(error, pymilvus().MilvusException):
                        why = f"Milvus refuses {name}: {_reason(error)}"
                        raise MilvusError(why, error.code) from error
                    raise
                if attempt == ATTEMPTS:
                    raise ConnectionError(
                        f"Milvus did not do {name} in {ATTEMPTS} attempts: {_reason(error)}"
                    ) from error
            self._sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("unreachable")

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
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    code = getattr(error, "code", None)
    code = code() if callable(code) else code
    if getattr(code, "name", code) in TRANSIENT:
        return True
    if type(error).__name__ in ("ConnectError", "MilvusUnavailableException"):
        return True
    return code in (AWAY, RATE_LIMIT) or bool(getattr(error, "_retriable", False))


def _reason(error: Exception) -> str:
    return str(getattr(error, "message", None) or error)
