"""What requests hold together is bounded."""

from __future__ import annotations

import asyncio

import pytest

from gaussmatch.apps.service.responses import ApiError
from gaussmatch.apps.service.settings import Budget


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
