"""Structured logs: one JSON object a line, with the request's id. Queries are never logged."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import orjson

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
