"""Time limits cancel only what takes too long; what requests hold together is bounded."""

from __future__ import annotations

import asyncio

import pytest

from gaussmatch.apps.service.responses import ApiError
from gaussmatch.apps.service.settings import Budget, Deadlines


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


def test_a_request_for_too_much_waits_and_all_is_given_back() -> None:
    async def run() -> None:
        budget, most, done = Budget(10, 60), 0, []

        async def hold(amount: int) -> None:
            nonlocal most
            async with budget.take(amount):
                most = max(most, budget.taken)
                await asyncio.sleep(0)
                done.append(amount)

        await asyncio.gather(*(hold(amount) for amount in (4, 6, 3, 100, 1, 10)))
        assert sorted(done) == [1, 3, 4, 6, 10, 100]
        assert (most, budget.taken) == (10, 0)

    asyncio.run(run())


def test_who_gives_up_or_fails_keeps_nothing() -> None:
    async def run() -> None:
        budget = Budget(10, 60)

        async def wait() -> None:
            async with budget.take(5):
                pytest.fail("there was no room")

        async def fail() -> None:
            async with budget.take(8):
                waiting = asyncio.create_task(wait())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert budget.taken == 0

    asyncio.run(run())


def test_who_waits_too_long_is_to_come_back_later() -> None:
    async def run() -> None:
        budget = Budget(10, 0.01)
        async with budget.take(8):
            with pytest.raises(ApiError, match="try again") as refused:
                async with budget.take(5):
                    pytest.fail("there was no room")
        assert refused.value.status == 503
        assert int(refused.value.headers["Retry-After"]) > 0
        async with budget.take(10):
            assert budget.taken == 10

    asyncio.run(run())
