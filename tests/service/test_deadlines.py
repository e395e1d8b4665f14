"""A task that takes too long is cancelled, and can tell that from any other cancellation."""

from __future__ import annotations

import asyncio

import pytest

from gaussmatch.service.deadlines import Deadlines


async def work(deadlines: Deadlines, wait: asyncio.Event) -> str:
    deadline = deadlines.start()
    try:
        await wait.wait()
        return "done"
    except asyncio.CancelledError:
        if not deadline.reached():
            raise
        await asyncio.sleep(0)  # it may go on
        return "late"
    finally:
        deadline.met()


def test_only_what_takes_too_long_is_cancelled() -> None:
    async def test() -> list[str]:
        deadlines, never, soon = Deadlines(0.02), asyncio.Event(), asyncio.Event()
        slow = [asyncio.create_task(work(deadlines, never)) for _ in range(3)]
        quick = asyncio.create_task(work(deadlines, soon))
        await asyncio.sleep(0)
        soon.set()
        assert await quick == "done"
        return await asyncio.gather(*slow)

    assert asyncio.run(test()) == ["late"] * 3


def test_those_that_begin_later_come_due_later() -> None:
    async def test() -> None:
        deadlines, never = Deadlines(0.05), asyncio.Event()
        first = asyncio.create_task(work(deadlines, never))
        await asyncio.sleep(0.03)
        second = asyncio.create_task(work(deadlines, never))
        assert await first == "late"
        assert not second.done()
        assert await second == "late"
        assert await work(deadlines, never) == "late"  # after it had nothing to wait for

    asyncio.run(test())


def test_who_is_cancelled_by_others_stays_cancelled() -> None:
    async def test() -> None:
        deadlines, never = Deadlines(0.0), asyncio.Event()
        for seconds in (3600.0, 0.0):
            deadlines.seconds = seconds
            task = asyncio.create_task(work(deadlines, never))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(test())


def test_what_has_ended_is_not_kept() -> None:
    async def test() -> int:
        deadlines, gone = Deadlines(3600), asyncio.Event()
        gone.set()
        for _ in range(100):
            await work(deadlines, gone)
        return len(deadlines._due)

    assert asyncio.run(test()) <= 1


def test_it_outlives_its_event_loop() -> None:
    deadlines = Deadlines(0.01)
    for _ in range(2):
        assert asyncio.run(work(deadlines, asyncio.Event())) == "late"
