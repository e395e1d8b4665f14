"""Run the service until a signal stops it, in one process or several behind one socket: started,
watched, replaced when they die, stopped together. Requests that have begun are answered first.

Made by hand, after trying Granian in its place (``protocol`` has what was measured). uvicorn has a
supervisor too; this one knows a worker that cannot start from one that dies later, so that a broken
index ends the service and does not start it over and over.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
import uvicorn
from starlette.types import ASGIApp

from gaussmatch.apps.service import logs
from gaussmatch.apps.service.app import create_app
from gaussmatch.apps.service.logs import FOLDER, LOGGER
from gaussmatch.apps.service.protocol import DRAIN, close_overdue, protocol
from gaussmatch.apps.service.settings import Settings
from gaussmatch.data.pictures import SUFFIXES, close_all
from gaussmatch.search import Index

ANSWERED, ENDED = 0.8, 0.95
"""Shares of the grace: until when requests are answered, and when the process ends whatever it is
doing. A call that hangs, such as one to a server elsewhere, would keep it for ever."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PAUSE = (1.0, 30.0)
"""Seconds before a worker is replaced that died before it was ready: at first, at most."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SPAWN = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork

Work = Callable[[Callable[[], None]], None]
"""What a worker does until SIGTERM; it calls what it is given when it is ready. Picklable."""


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
    browser: bool = False,
) -> None:
    """Blocks until SIGINT or SIGTERM.

    Args:
        port: 0 takes any free one.
        grace: seconds that requests in flight are given after the signal.
        workers: processes that answer. Each has the model; the pages of the index are shared.
        browser: open the page in the user's browser.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}, it must be at least 1")
    if workers > 1 and index.backend.one_process:
        raise ValueError(
            f"{index.place} can be open in one process only; leave --workers out, or serve from a "
            "Milvus server (milvus:http://host:19530)"
        )
    if workers == 1:
        logs.configure(log_level)
        sock = listening(host, port)  # first: a port that is taken is said at once
        app = create_app(index, settings)
        announce(sock, browser)
        Server(app, settings, grace, ends_process=True).run(sockets=[sock])
        return
    with TemporaryDirectory(prefix="gaussmatch-") as folder, listening(host, port) as sock:
        lock = Path(folder) / "log.lock"
        logs.configure(log_level, lock)
        announce(sock, browser)
        os.environ[FOLDER] = folder  # for the workers
        threads = max(1, torch.get_num_threads() // workers)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        work = partial(_work, index.place, settings, sock, grace, log_level, lock)
        supervise(work, workers, grace, stopped=sock.close)


def announce(sock: socket.socket, browser: bool) -> None:
    """Print the address of the page; a browser that comes before the service is up waits."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
    print(f"{address}  (Ctrl+C stops it)", flush=True)
    if browser:
        webbrowser.open(address)


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
    Server(app, settings, grace, ready, ends_process=True).run(sockets=[sock])


class Server(uvicorn.Server):
    """uvicorn with our protocol; says when it is ready, and tunes the garbage collector.

    A search makes no cycles, but the collector does not know: it would look through the whole
    model again and again, a tenth of a second each time. What is there at the start stays.

    Args:
        grace: seconds from the signal until all has ended.
        ends_process: whether the process has nothing else to do, and ends in any case.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        grace: int,
        ready: Callable[[], object] = lambda: None,
        *,
        ends_process: bool = False,
    ) -> None:
        self._protocol, self._ready, self._grace = protocol(settings), ready, grace
        self._ends_process, self._signaled = ends_process, 0.0
        self._woken, self._wake = os.pipe() if ends_process else (-1, -1)
        super().__init__(
            uvicorn.Config(
                app,
                http=self._protocol,
                ws="none",
                log_config=None,
                access_log=False,
                timeout_keep_alive=2**30,  # ours: settings.idle_timeout
                server_header=False,
                date_header=False,
            )
        )

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # once a second
            now = asyncio.get_running_loop().time()
            close_overdue(self._protocol, self.server_state.connections, now)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            if self._ends_process:
                limit = self._woken, ENDED * self._grace
                threading.Thread(target=end_after, args=limit, daemon=True).start()
            gc.collect()
            gc.freeze()
            gc.set_threshold(10_000, 20, 20)
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The grace begins with the signal, however long the event loop takes to see it."""
        if not self._signaled and self._ends_process:
            self._signaled = time.monotonic()
            os.write(self._wake, b".")
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept who has connected by now, then stop: to close a socket resets whoever is in its
        queue, so nobody else gets in, and the queue is emptied first."""
        self._protocol.stopping = True
        waiting, now = sockets or [], time.monotonic()
        end = (self._signaled or now) + ANSWERED * self._grace
        alone = all(list(map(turn_away, waiting)))
        until = end if alone else now + DRAIN
        while waiting and time.monotonic() < until:
            await asyncio.sleep(0.01)
            waiting, _, _ = select.select(waiting, (), (), 0)
        left: Any = max(0.0, end - time.monotonic())
        self.config.timeout_graceful_shutdown = left  # uvicorn says int, and any number does
        await super().shutdown(sockets)


def end_after(woken: int, seconds: float) -> None:
    """End this process and its decoders some time after a pipe was written to, unless it has ended
    by itself."""
    os.read(woken, 1)
    time.sleep(seconds)
    close_all()
    os._exit(1)


def turn_away(sock: socket.socket) -> bool:
    """Let nobody connect from now on, while those in the queue of the socket wait to be accepted;
    whether that is so.

    A filter of the kernel drops what is sent to the socket itself; connections that exist are not
    concerned. Who comes now tries again after a second, and then finds a closed port or the next
    process that listens there. Only Linux has this; elsewhere the last few may see a reset.
    """
    if sys.platform != "linux":
        return False
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    try:
        sock.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
    except OSError:  # forbidden by a sandbox
        return False
    return True


def listening(host: str, port: int) -> socket.socket:
    """A bound socket, or an error that says what to do."""
    if not 0 <= port < 2**16:
        raise ValueError(f"--port {port}: choose one from 0 to {2**16 - 1}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)  # who comes before the app is up waits, and is not turned away
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"port {port} of {host} is taken by another program, perhaps 'gaussmatch serve' or "
                "'review': stop that one, or choose another with --port (0 takes any free port)"
            ) from error
        raise OSError(f"cannot listen at {host}:{port} ({error}); choose another --port") from error
    sock.set_inheritable(True)
    return sock


# ---- several processes ----


class Worker:
    """One process."""

    def __init__(self, work: Work, pause: float = 0.0) -> None:
        self.pause = pause  #: seconds that were waited for it
        self._news, self._sender = SPAWN.Pipe(duplex=False)
        self.process: SpawnProcess = SPAWN.Process(target=_worked, args=(work, self._sender))
        self.process.start()

    def was_ready(self) -> bool:
        """Whether it has ever been: then it has sent something, which stays in the pipe."""
        return self._news.poll()

    def fields(self) -> dict[str, int | None]:
        return {"pid": self.process.pid, "exit_code": self.process.exitcode}


def supervise(
    work: Work, workers: int, grace: float, stopped: Callable[[], object] = lambda: None
) -> None:
    """Run the workers until SIGINT or SIGTERM, then give them ``grace`` seconds to finish.

    A worker that dies is replaced. Where none has ever become ready, that is an error.

    Args:
        stopped: called before the workers are, to close what they share: clients must not queue
            at a socket that only this process still listens at.
    """
    woken, wake = os.pipe()
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        os.write(wake, b".")

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    running: list[Worker] = []
    missing = [(0.0, 0.0)] * workers  # workers to start: when, and after which pause
    proved = False  # that a worker can become ready
    try:
        while not stopping:
            now = time.monotonic()
            for due in [due for due in missing if due[0] <= now]:
                missing.remove(due)
                running.append(Worker(work, due[1]))
            waits = [due[0] - now for due in missing]
            sentinels = [worker.process.sentinel for worker in running]
            multiprocessing.connection.wait([woken, *sentinels], min(waits, default=None))
            proved = proved or any(worker.was_ready() for worker in running)
            for worker in [w for w in running if not w.process.is_alive() and not stopping]:
                running.remove(worker)
                logs.LOGGER.error("worker died", extra=worker.fields())
                if not proved:
                    raise ChildProcessError("a worker could not start; the log above says why")
                pause = 0.0
                if not worker.was_ready():
                    pause = min(max(2 * worker.pause, PAUSE[0]), PAUSE[1])
                missing.append((time.monotonic() + pause, pause))
    finally:
        stopped()
        _end(running, grace)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)


def _end(running: list[Worker], grace: float) -> None:
    """Let workers finish; those that do not are killed."""
    for worker in running:
        worker.process.terminate()
    latest = time.monotonic() + grace
    for worker in running:
        worker.process.join(max(0.0, latest - time.monotonic()))
        if worker.process.is_alive():
            logs.LOGGER.error("worker killed", extra=worker.fields())
            worker.process.kill()
            worker.process.join()


def _worked(work: Work, ready: Connection) -> None:
    """Inside a worker. It does not outlive its supervisor."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, name="gaussmatch-follow", daemon=True).start()
    try:
        with suppress(KeyboardInterrupt):  # Ctrl+C reaches workers too; all is answered by now
            work(lambda: ready.send(True))
    except Exception:
        logs.LOGGER.exception("worker failed", extra={"pid": os.getpid()})
        sys.exit(1)


EVERY = 10.0
"""Seconds between two looks; a long look makes the pause longer."""
NICE = 10
LINES = 5
"""Of what an update that failed has said, in the log."""


def watched(index: Index) -> Path:
    """The folder to watch; an index that was not made from one on this machine has none."""
    folder = index.own_folder
    if folder is None:
        raise ValueError(
            f"--watch: {index.place} was not made from a folder by you on this machine; run "
            "'gaussmatch index update INDEX FOLDER' first"
        )
    if index.backend.one_process:
        raise ValueError(f"--watch: {index.place} can be open in one process only; leave it out")
    return folder


def state(folder: Path) -> str:
    """Changes when a photo or a table of captions below a folder does. Reads no file."""
    mark = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith((*SUFFIXES, ".csv", ".tsv", ".json", ".jsonl")):
                with suppress(OSError):  # it has just gone
                    stat = os.stat(os.path.join(place, name))
                    path = os.path.join(place, name).encode(errors="surrogateescape")
                    mark.update(b"%b\0%d\0%d\0" % (path, stat.st_size, stat.st_mtime_ns))
    return mark.hexdigest()


class Watcher:
    """Brings an index up to date when its folder has changed and then stayed the same for one look:
    files may still be copied. ``stop`` also ends an update that runs; what it has encoded stays.

    An update that fails (more than half of the photos are gone, another process writes) is logged
    and tried again after the next change.
    """

    def __init__(self, place: str, folder: Path, every: float = EVERY) -> None:
        self._place, self._folder, self._every = place, folder, every
        self._stop, self._running = threading.Event(), threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._watch, name="gaussmatch-watch", daemon=True)

    def start(self) -> None:
        LOGGER.info("watching", extra={"folder": str(self._folder)})
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        with self._running:
            if self._process is not None:
                self._process.terminate()
        self._thread.join(30)

    def _watch(self) -> None:
        done, before = "", state(self._folder)  # the first look updates: photos came meanwhile
        while not self._stop.wait(self._every):
            now = state(self._folder)
            if now == before and now != done and self._folder.is_dir():
                self._update()
                done = now
            before = now

    def _update(self) -> None:
        command = [sys.executable, "-m", "gaussmatch", "index", "update", self._place]
        with self._running:
            if self._stop.is_set():
                return
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
        said, _ = self._process.communicate()
        lines = said.strip().splitlines()
        if self._stop.is_set():
            return
        if self._process.returncode:
            LOGGER.warning("the index was not updated", extra={"said": lines[-LINES:]})
        else:
            LOGGER.info(
                "index updated", extra={"said": [line for line in lines if "added" in line]}
            )
