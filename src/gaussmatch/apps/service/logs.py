"""What those who run the service see: logs, one JSON object a line with the request's id and never
the query; and metrics for Prometheus.

Each app has a registry of its own, so several can live in one process. Several workers share the
folder that the variable PROMETHEUS_MULTIPROC_DIR names, in the way of prometheus_client; each of
them reports the sum. Counts of a worker that died stay in it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

LOGGER = logging.getLogger("gaussmatch.apps.service")
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

TOGETHER = 0.1
"""Seconds that the line of a request waits for others, to be written with them."""


class JsonLines(logging.Formatter):
    """A log record as one line of JSON; what was given as ``extra`` becomes a field.

    >>> made = {"msg": "request", "levelname": "INFO", "created": 0, "status": 200}
    >>> record = logging.makeLogRecord(made)
    >>> JsonLines().format(record)
    '{"time":"1970-01-01T00:00:00.000Z","level":"info","event":"request","status":200}'
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = {k: v for k, v in vars(record).items() if k not in STANDARD}
        fields.pop("color_message", None)  # uvicorn's
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return line(record.created, record.levelname.lower(), record.getMessage(), fields)


def line(moment: float, level: str, event: str, fields: dict[str, Any]) -> str:
    """Without its end."""
    when = f"{_second(int(moment))}.{int(moment % 1 * 1000):03}Z"
    record = {"time": when, "level": level, "event": event, **fields}
    return orjson.dumps(record, default=str).decode()


@lru_cache(2)
def _second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))


class Writer(logging.StreamHandler[TextIO]):
    """Writes records at once, and lines of requests together with those of the next moment.

    Nothing is lost or changes its place: a record, and ``flush`` (which logging calls when the
    process ends), write the lines that wait first.

    Args:
        lock: a file by which several processes that write to one stream take turns, so that
            lines stay whole.
    """

    def __init__(self, stream: TextIO, lock: Path | None = None) -> None:
        self._lines: list[str] = []
        self._turns = None if lock is None else lock.open("w")
        super().__init__(stream)
        self.setFormatter(JsonLines())

    def keep(self, line: str) -> None:
        """Write a line soon. Called in the event loop."""
        self.acquire()
        if not self._lines:
            asyncio.get_running_loop().call_later(TOGETHER, self.flush)
        self._lines.append(line)
        self.release()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
            self.flush()
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        self.acquire()
        try:
            lines, self._lines = self._lines, []
            if lines:
                with self._turn():
                    self.stream.write("\n".join(lines) + "\n")
                    self.stream.flush()
        finally:
            self.release()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._turns is not None:
            fcntl.flock(self._turns, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if self._turns is not None:
                fcntl.flock(self._turns, fcntl.LOCK_UN)


def request(**fields: object) -> None:
    """The line of one request. Where ``configure`` has not set up logging, it is a record."""
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    for handler in LOGGER.handlers:
        if isinstance(handler, Writer):
            handler.keep(line(time.time(), "info", "request", fields))
            return
    LOGGER.info("request", extra=fields)


def configure(level: str = "INFO", lock: Path | None = None) -> None:
    """Log lines of the service and of uvicorn go to standard error, as JSON."""
    handler = Writer(sys.stderr, lock)
    for name in ("gaussmatch.apps.service", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(level.upper())
        logger.propagate = name == "uvicorn.error"
    access = logging.getLogger("uvicorn.access")  # ours has more fields
    access.handlers, access.propagate = [], False


FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that prometheus_client reads, once, when it is imported."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PERCENTILES = (5, 10, 25, 50, 75, 90, 95, 99)


class Metrics:
    """Counters of one app.

    ``in_flight`` is a plain number, for it changes with every request; gauges are set from what
    they ``watch`` when they are read, and those of workers once a second.
    """

    def __init__(self) -> None:
        self.folder = os.environ.get(FOLDER)
        self.registry = CollectorRegistry()
        self.in_flight = 0
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []
        own: Any = {"namespace": "gaussmatch", "registry": self.registry}
        self.requests = Counter(
            "requests", "Requests by route and status.", ("route", "status"), **own
        )
        self.seconds = Histogram(
            "request_seconds", "Time to answer, by route.", ("route",), buckets=SECONDS, **own
        )
        self.batch = Histogram("batch_size", "Queries encoded together.", buckets=SIZES, **own)
        self.percentile = Histogram(
            "query_uncertainty_percentile",
            "How vague queries are, as a percentile of what the model has seen: a drift upwards "
            "means that people search for what the model was not trained on.",
            ("type",),
            buckets=PERCENTILES,
            **own,
        )
        total = {**own, "multiprocess_mode": "livesum"}
        last = {**own, "multiprocess_mode": "livemostrecent"}
        self.waiting = Gauge("queries_waiting", "Queries in the queue.", **total)
        self.items = Gauge("index_items", "Items in the index.", ("gallery",), **last)
        answering = Gauge("requests_in_flight", "Requests being answered.", **total)
        self.watch(answering, lambda: self.in_flight)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Note one request; its route is a pattern of the app, never a path from outside."""
        self.requests.labels(route, status).inc()
        self.seconds.labels(route).observe(seconds)

    def query(self, type: str, percentile: float) -> None:
        """Note how vague a query is."""
        self.percentile.labels(type).observe(percentile)

    def watch(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Set a gauge from now on to what ``read`` returns."""
        self._watched.append((gauge, read))

    def refresh(self) -> None:
        """Set all gauges."""
        for gauge, read in self._watched:
            gauge.set(read())

    def text(self) -> bytes:
        """All of it in Prometheus' format; the sum over the workers if there are several."""
        self.refresh()
        if self.folder is None:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=self.folder)
        return generate_latest(registry)

    def forget_the_dead(self) -> None:
        """Leave workers that are gone out of the gauges."""
        for file in Path(self.folder).glob("gauge_live*_*.db") if self.folder else ():
            pid = int(file.stem.rpartition("_")[2])
            if not _alive(pid):
                mark_process_dead(pid, self.folder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
