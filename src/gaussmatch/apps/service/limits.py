"""Limits on time, and on what requests hold together."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gaussmatch.apps.service.responses import ApiError


class Deadline:
    """The limit of one task."""

    __slots__ = ("_over", "at", "task")

    def __init__(self, task: asyncio.Task[object], at: float) -> None:
        self.task: asyncio.Task[object] | None = task
        self.at, self._over = at, False

    def met(self) -> None:
        """The task needs its limit no more."""
        self.task = None

    def reach(self) -> None:
        """Cancel the task, unless it has ended."""
        if self.task is not None:
            self._over = True
            self.task.cancel()

    def reached(self) -> bool:
        """Whether this is why the task was cancelled, and nothing else is; then it may go on."""
        return self._over and self.task is not None and self.task.uncancel() == 0


class Deadlines:
    """Cancels tasks that take longer than their limit.

    All have the same time, so they come due in the order in which they began, and one timer serves
    them all; an ``asyncio.timeout`` each would cost as much as all other work of the middleware.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: deque[Deadline] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> Deadline:
        """The limit of the current task, from now on."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if self._loop is not loop:
            self._loop, self._timer = loop, None
            self._due.clear()
        deadline = Deadline(task, loop.time() + self.seconds)
        while self._due and self._due[0].task is None:
            self._due.popleft()
        self._due.append(deadline)
        if self._timer is None:
            self._timer = loop.call_at(deadline.at, self._look, loop)
        return deadline

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel those whose time is over; come back for the next."""
        now = loop.time()
        while self._due and (self._due[0].task is None or self._due[0].at <= now):
            self._due.popleft().reach()
        self._timer = loop.call_at(self._due[0].at, self._look, loop) if self._due else None


class RateLimit:
    """A token bucket per client: ``rate`` requests a second, ten seconds' worth at once.

    >>> limit = RateLimit(rate=0.1)
    >>> [round(limit.wait(*at), 6) for at in (("a", 0), ("a", 4), ("b", 4), ("a", 10))]
    [0.0, 6.0, 0.0, 0.0]
    """

    MOST = 10_000  #: clients that are remembered

    def __init__(self, rate: float) -> None:
        self.rate, self._most = rate, max(1.0, 10 * rate)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float, cost: int = 1) -> float:
        """Take a token, or return the seconds until there is one; with no cost, only look."""
        tokens, since = self._left.pop(client, (self._most, now))
        tokens = min(self._most, tokens + (now - since) * self.rate)
        enough = tokens >= 1 - 1e-9
        self._left[client] = tokens - cost if enough else tokens, now
        if len(self._left) > self.MOST:
            self._left.popitem(last=False)
        return 0.0 if enough else (1 - tokens) / self.rate


class Budget:
    """At most so much is held at a time; who needs more waits until enough is released, and is
    refused with 503 where that takes longer than ``patience`` seconds."""

    def __init__(self, most: int, patience: float) -> None:
        self.most, self.patience, self.taken = most, patience, 0
        self._free = asyncio.Condition()

    @asynccontextmanager
    async def take(self, amount: int) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Hold some of it, and less from when what is yielded is called with how much. One request
        alone never waits."""
        amount = min(amount, self.most)
        try:
            async with asyncio.timeout(self.patience), self._free:
                await self._free.wait_for(lambda: self.taken + amount <= self.most)
                self.taken += amount
        except TimeoutError:
            raise ApiError(
                503,
                "busy",
                "the memory for pictures is in use by other requests; try again in a moment",
                {"Retry-After": "5"},
            ) from None

        async def keep(less: int) -> None:
            nonlocal amount
            async with self._free:
                self.taken -= max(0, amount - less)
                amount = min(amount, less)
                self._free.notify_all()

        try:
            yield keep
        finally:
            await keep(0)
