"""Lines are whole JSON, in order, and none is lost, also those that wait to be written."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import multiprocessing
import os
from collections import Counter
from pathlib import Path

import pytest

from gaussmatch.apps.service import logs


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Where log lines go, with logging set up as the service does it."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    logs.configure()
    return stream


def records(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_of_requests_wait_for_each_other_but_not_long(stream: io.StringIO) -> None:
    async def test() -> None:
        for i in range(3):
            logs.request(id=f"x-{i}", status=200)
        assert not stream.getvalue()
        await asyncio.sleep(2 * logs.TOGETHER)
        assert len(records(stream)) == 3
        logs.request(id="x-3", status=200)
        await asyncio.sleep(2 * logs.TOGETHER)

    asyncio.run(test())
    assert [line["id"] for line in records(stream)] == ["x-0", "x-1", "x-2", "x-3"]
    assert list(records(stream)[0]) == ["time", "level", "event", "id", "status"]


def test_the_order_holds_and_the_end_loses_nothing(stream: io.StringIO) -> None:
    async def test() -> None:
        logs.request(id="x-0")
        logs.LOGGER.info("between", extra={"id": "x-1"})
        assert [line["id"] for line in records(stream)] == ["x-0", "x-1"]
        logs.request(id="x-2")

    asyncio.run(test())
    (handler,) = (h for h in logs.LOGGER.handlers if isinstance(h, logs.Writer))
    handler.flush()  # as logging.shutdown does
    assert [line["id"] for line in records(stream)] == ["x-0", "x-1", "x-2"]


def test_a_level_above_leaves_requests_out(stream: io.StringIO) -> None:
    logs.configure("WARNING")
    logs.request(id="x")  # needs no event loop, for nothing is kept
    assert not records(stream)


def write(end: int, lock: Path | None, letter: str) -> None:
    with os.fdopen(end, "w") as stream:
        handler = logs.Writer(stream, lock)
        for _ in range(50):
            handler.emit(logging.makeLogRecord({"msg": letter * 100_000, "levelname": "INFO"}))


def test_processes_take_turns(tmp_path: Path) -> None:
    """Lines longer than any buffer, by two processes into one pipe, stay whole."""
    read, end = os.pipe()
    fork = multiprocessing.get_context("fork")
    given = [(end, tmp_path / "lock", letter) for letter in "ab"]
    writers = [fork.Process(target=write, args=args) for args in given]
    for writer in writers:
        writer.start()
    os.close(end)
    with os.fdopen(read) as stream:
        whole = Counter(line.count(letter * 100_000) for line in stream for letter in "ab")
    for writer in writers:
        writer.join(60)
    assert whole == {0: 100, 1: 100}  # each line has the letters of one process and not the other
