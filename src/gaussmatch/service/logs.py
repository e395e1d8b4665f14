"""Structured logs: one JSON object a line, with the request's id. Queries are never logged."""

from __future__ import annotations

import logging
import sys
import time
import traceback

import orjson

LOGGER = logging.getLogger("gaussmatch.service")
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A log record as one line of JSON; what was given as ``extra`` becomes a field.

    >>> made = {"msg": "request", "levelname": "INFO", "created": 0, "status": 200}
    >>> record = logging.makeLogRecord(made)
    >>> JsonLines().format(record)
    '{"time":"1970-01-01T00:00:00.000Z","level":"info","event":"request","status":200}'
    """

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.created % 1 * 1000):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **{k: v for k, v in vars(record).items() if k not in STANDARD},
        }
        line.pop("color_message", None)  # uvicorn's
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(line, default=str).decode()


def request(**told: object) -> None:
    """The line of one request; without looking for the place in the code that every other log
    record has."""
    if LOGGER.isEnabledFor(logging.INFO):
        record = logging.LogRecord(LOGGER.name, logging.INFO, __file__, 0, "request", None, None)
        vars(record).update(told)
        LOGGER.handle(record)


def configure(level: str = "INFO") -> None:
    """Log lines of the service and of uvicorn go to standard error, as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("gaussmatch.service", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(level.upper())
        logger.propagate = name == "uvicorn.error"
    access = logging.getLogger("uvicorn.access")  # ours tells more
    access.handlers, access.propagate = [], False
