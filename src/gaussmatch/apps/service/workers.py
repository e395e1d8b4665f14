"""Several processes behind one socket: started, watched, replaced when they die, stopped together.

uvicorn has a supervisor too; this one knows a worker that cannot start from one that dies later, so
that a broken index ends the service and does not start it over and over.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import FrameType

from gaussmatch.apps.service.logs import LOGGER

PAUSE = (1.0, 30.0)
"""Seconds before a worker is replaced that died before it was ready: at first, at most."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SPAWN = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork

Work = Callable[[Callable[[], None]], None]
"""What a worker does until SIGTERM; it calls what it is given when it is ready. Picklable."""


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
    """Run so many workers until SIGINT or SIGTERM, then give them ``grace`` seconds to finish.

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
                LOGGER.error("worker died", extra=worker.fields())
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
            LOGGER.error("worker killed", extra=worker.fields())
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
        LOGGER.exception("worker failed", extra={"pid": os.getpid()})
        sys.exit(1)
