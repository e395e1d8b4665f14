"""Queries that arrive together are worked on together, and one that fails spoils no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from gaussmatch.apps.service.batcher import BRIEF, Batcher
from gaussmatch.apps.service.responses import ApiError


def double(jobs: list[int]) -> list[int | Exception]:
    return [2 * job if job >= 0 else ValueError(f"{job} is negative") for job in jobs]


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_what_arrives_together_is_one_batch() -> None:
    sizes: list[int] = []

    async def test() -> None:
        batcher = Batcher(double, seen=sizes.append)
        assert await asyncio.gather(*map(batcher, range(20))) == [2 * i for i in range(20)]
        await batcher.close()

    run(test)
    assert sizes == [20]


def test_a_lone_request_does_not_wait() -> None:
    async def test() -> None:
        batcher = Batcher(double, wait=3600)
        async with asyncio.timeout(30):
            assert [await batcher(i) for i in range(3)] == [0, 2, 4]
        await batcher.close()

    run(test)


def test_requests_sent_together_are_waited_for_but_not_for_ever() -> None:
    sizes: list[int] = []

    async def test() -> None:
        batcher = Batcher(double, wait=3600, seen=sizes.append)
        await asyncio.gather(*map(batcher, range(3)))
        first = asyncio.create_task(batcher(1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not first.done()  # two more are expected
        await asyncio.gather(first, batcher(2), batcher(3))
        batcher._wait = 0.01
        assert await batcher(4) == 8  # nobody else comes
        batcher._wait = 3600
        assert await batcher(5) == 10  # and nobody is expected any more
        await batcher.close()

    run(test)
    assert sizes == [3, 3, 1, 1]


def test_a_batch_is_not_larger_than_allowed() -> None:
    sizes: list[int] = []

    async def test() -> None:
        batcher = Batcher(double, size=4, wait=3600, seen=sizes.append)
        async with asyncio.timeout(30):
            await asyncio.gather(*map(batcher, range(8)))
        await batcher.close()

    run(test)
    assert sizes == [4, 4]


def test_the_next_batch_gathers_while_one_is_worked_on() -> None:
    sizes: list[int] = []
    go, begun = threading.Event(), threading.Event()

    def slow(jobs: list[int]) -> list[int | Exception]:
        begun.set()
        assert go.wait(30)
        return double(jobs)

    async def test() -> None:
        batcher = Batcher(slow, wait=0, seen=sizes.append)
        first = asyncio.create_task(batcher(1))
        await asyncio.to_thread(begun.wait, 30)
        rest = [asyncio.create_task(batcher(i)) for i in range(5)]
        await asyncio.sleep(0)
        assert batcher.waiting == 5
        go.set()
        assert await first == 2
        assert await asyncio.gather(*rest) == [0, 2, 4, 6, 8]
        await batcher.close()

    run(test)
    assert sizes == [1, 5]


def test_an_error_is_returned_to_the_request_that_caused_it() -> None:
    async def test() -> None:
        batcher = Batcher(double, wait=0.02)
        answers = await asyncio.gather(*map(batcher, [1, -1, 2]), return_exceptions=True)
        assert answers[0] == 2
        assert answers[2] == 4
        assert str(answers[1]) == "-1 is negative"
        await batcher.close()

    run(test)


def test_a_failure_of_all_is_returned_to_all_and_the_next_batch_works() -> None:
    def broken_once(jobs: list[int]) -> list[int | Exception]:
        if 13 in jobs:
            raise RuntimeError("broken")
        return double(jobs)

    async def test() -> None:
        batcher = Batcher(broken_once, wait=0.02)
        answers = await asyncio.gather(batcher(13), batcher(1), return_exceptions=True)
        assert [str(a) for a in answers] == ["broken", "broken"]
        assert await batcher(1) == 2
        await batcher.close()

    run(test)


def test_who_gave_up_is_left_out_of_the_batch() -> None:
    seen: list[int] = []

    def note(jobs: list[int]) -> list[int | Exception]:
        seen.extend(jobs)
        return double(jobs)

    async def test() -> None:
        batcher = Batcher(note, wait=0.05)
        impatient = asyncio.create_task(batcher(1))
        patient = asyncio.create_task(batcher(2))
        await asyncio.sleep(0)
        impatient.cancel()
        assert await patient == 4
        await batcher.close()

    run(test)
    assert seen == [2]


def test_too_many_are_refused_and_those_accepted_are_answered_before_it_closes() -> None:
    async def test() -> None:
        batcher = Batcher(double, most=2)
        accepted = [asyncio.create_task(batcher(i)) for i in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="2 queries are waiting") as refused:
            await batcher(3)
        assert refused.value.status == 503
        await batcher.close()
        assert await asyncio.gather(*accepted) == [2, 4]
        with pytest.raises(ApiError, match="stopping"):
            await batcher(4)

    run(test)


def test_light_work_is_done_in_the_event_loop_as_long_as_it_is_brief() -> None:
    here = threading.get_ident()
    places: list[bool] = []

    def noted(jobs: list[int]) -> list[int | Exception]:
        places.append(threading.get_ident() == here)
        if jobs == [3]:
            time.sleep(2 * BRIEF)
        if jobs == [13]:
            raise RuntimeError("broken")
        return double(jobs)

    async def test() -> None:
        batcher = Batcher(noted, wait=0, light=lambda job: job < 100)
        for job in (1, 2, 100, 3, 4, 5):
            assert await batcher(job) == 2 * job
        with pytest.raises(RuntimeError, match="broken"):
            await batcher(13)
        assert await asyncio.gather(batcher(1), batcher(100)) == [2, 200]
        await batcher.close()

    run(test)
    assert places == [
        False,  # 1: nothing is known of its kind yet
        True,  # 2: the one before was brief
        False,  # 100: not light
        True,  # 3: takes longer than was to be expected
        False,  # 4: so the next is not trusted
        True,  # 5
        True,  # 13: fails here, and only itself
        False,  # 1 together with 100
    ]
