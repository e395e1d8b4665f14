"""Run the service until it is told to stop; requests that have begun are answered first."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import uvicorn
from starlette.types import ASGIApp

from gaussmatch.index import Index
from gaussmatch.service import logs
from gaussmatch.service.app import create_app
from gaussmatch.service.metrics import FOLDER
from gaussmatch.service.settings import Settings
from gaussmatch.service.workers import supervise

MOST_HEAD = 64 * 1024
"""Bytes of the address and the headers of a request."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def hosts(host: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """The Host headers to answer. On the loopback only names of this machine, so that no page
    elsewhere reaches it under another name; on an open address all, unless some are given.

    >>> hosts("127.0.0.1", ())
    ('localhost', '127.0.0.1', '::1')
    >>> hosts("0.0.0.0", ()), hosts("0.0.0.0", ("photos.example.org",))
    ((), ('localhost', '127.0.0.1', '::1', 'photos.example.org'))
    """
    if not allowed and host not in LOOPBACK:
        return ()
    return (*LOOPBACK, *allowed)


def serve(
    index: Index,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grace: int = 20,
    log_level: str = "info",
    workers: int = 1,
) -> None:
    """Blocks until SIGINT or SIGTERM.

    Args:
        port: 0 takes any free one.
        grace: seconds that requests in flight are given after the signal.
        workers: processes that answer. Each has the model; the pages of the index are shared.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}, it must be at least 1")
    if workers > 1 and index.backend.one_process:
        raise ValueError(
            f"{index.place} can be open in one process only; leave --workers out, or serve from a "
            "Milvus server (milvus:http://host:19530)"
        )
    shown = f"[{host}]" if ":" in host else host
    told = "http://%s:%d/  (Ctrl+C stops it)"
    if workers == 1:
        logs.configure(log_level)
        app = create_app(index, settings)
        sock = listening(host, port)
        print(told % (shown, sock.getsockname()[1]), flush=True)
        _Server(_config(app, grace)).run(sockets=[sock])
        return
    with TemporaryDirectory(prefix="gaussmatch-") as folder, listening(host, port) as sock:
        lock = Path(folder) / "log.lock"
        logs.configure(log_level, lock)
        print(told % (shown, sock.getsockname()[1]), flush=True)
        os.environ[FOLDER] = folder  # for the workers
        threads = max(1, torch.get_num_threads() // workers)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        work = partial(_work, index.place, settings, sock, grace, log_level, lock)
        supervise(work, workers, grace + 10)


def _work(
    place: str,
    settings: Settings,
    sock: socket.socket,
    grace: int,
    log_level: str,
    lock: Path,
    ready: Callable[[], None],
) -> None:
    """One of several workers."""
    logs.configure(log_level, lock)
    app = create_app(Index.open(place), settings)
    _Server(_config(app, grace), ready).run(sockets=[sock])


class _Server(uvicorn.Server):
    """uvicorn in a process of its own: tells when it is ready, and minds the garbage collector.

    A search makes no cycles, but the collector does not know: it would look through the whole
    model again and again, a tenth of a second each time. What is there at the start stays.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object] = lambda: None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 20, 20)
            self._ready()


def _config(app: ASGIApp, grace: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=30,
        server_header=False,
        date_header=False,
        http=_protocol(),
        h11_max_incomplete_event_size=MOST_HEAD,
    )


def listening(host: str, port: int) -> socket.socket:
    """A bound socket, or an error that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)  # who comes before the app is up waits, and is not turned away
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen at {host}:{port} ({error}); choose another --port") from error
    sock.set_inheritable(True)
    return sock


def _protocol() -> Any:
    """httptools where it is installed, for it is faster, with the bound that h11 has itself."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        _head: int | None = None  # bytes of a head that has not ended

        def on_message_begin(self) -> None:
            self._head = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head is not None:
                self._head += len(data)
                if self._head > MOST_HEAD and not self.transport.is_closing():
                    self.transport.close()

    return Bounded
