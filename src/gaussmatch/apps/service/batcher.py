"""Micro-batching: queries that arrive together are encoded and searched together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from gaussmatch.apps.service.responses import ApiError

BRIEF = 0.025
"""Seconds that the event loop may stand still for a batch."""

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class Batcher(Generic[Job, Answer]):
    """Collects jobs until as many have come as lately, but not longer than ``wait``.

    A lone request is answered at once. Under load the next batch gathers while one is worked on,
    and those who were just answered are given ``wait`` seconds to ask again, so that batches stay
    full. ``work`` returns for each job an answer or the exception that this job alone gets.

    Work is done in a thread of the batcher, but that of light jobs in the event loop itself as
    long as it is brief: Python runs one of the two threads at a time, and where they are on
    different cores, each finds its memory cold; a query then takes half as long again.

    Args:
        work: jobs → answers or exceptions, in the same order; never called twice at a time.
        light: jobs that may be worked on in the event loop, if those before were done in ``BRIEF``
            seconds.
        size: most jobs of one batch.
        wait: seconds that jobs wait for those that are expected.
        most: jobs that may wait; one more is refused with 503.
        seen: called with the size of every batch.
    """

    def __init__(
        self,
        work: Callable[[list[Job]], Sequence[Answer | Exception]],
        *,
        size: int = 64,
        wait: float = 0.005,
        most: int = 1024,
        light: Callable[[Job], bool] = lambda job: False,
        seen: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._work, self._size, self._wait, self._most, self._seen = work, size, wait, most, seen
        self._waiting: deque[tuple[Job, asyncio.Future[Answer]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._light, self._lasted = light, float("inf")
        self._expected = 1
        self._enough = asyncio.Event()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gaussmatch-batch")

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._waiting)

    async def __call__(self, job: Job) -> Answer:
        """The answer to one job, or the exception that it caused."""
        if self._closed:
            raise ApiError(503, "stopping", "the service is stopping; try again in a moment")
        if len(self._waiting) >= self._most:
            raise ApiError(
                503,
                "busy",
                f"{self._most} queries are waiting already; try again in a moment",
                {"Retry-After": "1"},
            )
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        if len(self._waiting) >= self._expected:
            self._enough.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Finish what was accepted, then accept no more."""
        self._closed = True
        if self._running is not None:
            await self._running
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # requests of the same moment join the batch
            while self._waiting:
                await self._gather()
                batch = self._take()
                if not batch:
                    continue
                self._seen(len(batch))
                answers = await self._answers([job for job, _ in batch])
                self._expected = min(self._size, len(batch) + len(self._waiting))
                for (_, future), answer in zip(batch, answers, strict=True):
                    if future.done():  # its client has gone or its time is over
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
                await asyncio.sleep(0)  # let those who were answered go on
        finally:
            self._running = None

    async def _answers(self, jobs: list[Job]) -> Sequence[Answer | Exception]:
        """Work here or in the thread."""
        light, started = all(map(self._light, jobs)), time.perf_counter()
        try:
            if light and self._lasted < BRIEF:
                return self._work(jobs)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._work, jobs)
        except Exception as error:
            return [error] * len(jobs)
        finally:
            if light:
                self._lasted = time.perf_counter() - started

    async def _gather(self) -> None:
        """Wait for those that are expected, if it does not take long."""
        if self._closed or len(self._waiting) >= self._expected:
            return
        self._enough.clear()
        try:
            async with asyncio.timeout(self._wait):
                await self._enough.wait()
        except TimeoutError:
            pass

    def _take(self) -> list[tuple[Job, asyncio.Future[Answer]]]:
        """The next batch, without jobs that nobody waits for any more."""
        batch: list[tuple[Job, asyncio.Future[Answer]]] = []
        while self._waiting and len(batch) < self._size:
            entry = self._waiting.popleft()
            if not entry[1].done():
                batch.append(entry)
        return batch
