"""A connection to Milvus that waits and tries again where that helps."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from gaussmatch.index.milvus.address import Address

ATTEMPTS = 7
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0
"""Seconds; each wait is twice the one before, less a random part so that clients spread."""

TRANSIENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
RATE_LIMIT = 8


def pymilvus() -> Any:
    """The library, or a clear word that it is an extra."""
    try:
        import pymilvus
    except ImportError as error:
        raise ImportError(
            "an index in Milvus needs the extra 'milvus': pip install 'gaussmatch[milvus]'"
        ) from error
    return pymilvus


_open: Counter[str] = Counter()
"""How many clients of this process use each embedded file."""


def connect(address: Address) -> Client:
    """A client of the server; the token comes from MILVUS_TOKEN. Embedded files need no server:
    milvus-lite runs in this process until its last client is closed."""
    library = pymilvus()
    try:
        raw = library.MilvusClient(address.uri, token=os.environ.get("MILVUS_TOKEN", ""))
    except (library.MilvusException, RuntimeError) as error:
        why = getattr(error, "message", error)
        raise ConnectionError(f"{address}: cannot connect ({why})") from error
    if address.remote:
        return Client(raw)
    file = os.path.abspath(address.uri)
    _open[file] += 1
    return Client(raw, at_close=lambda: _release(file))


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
        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return getattr(self._client, name)(*args, **options)
            except Exception as error:
                if not is_transient(error):
                    raise
                if attempt == ATTEMPTS:
                    raise ConnectionError(
                        f"Milvus did not do {name} in {ATTEMPTS} attempts: {_reason(error)}"
                    ) from error
            self._sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("unreachable")

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
    return code == RATE_LIMIT or bool(getattr(error, "_retriable", False))


def _reason(error: Exception) -> str:
    return str(getattr(error, "message", None) or error)
