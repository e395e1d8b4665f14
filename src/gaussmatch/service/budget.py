"""A bound on what requests hold together, such as pixels in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Budget:
    """So much may be taken at a time; who asks for more waits until enough is given back."""

    def __init__(self, most: int) -> None:
        self._most, self.taken = most, 0
        self._free = asyncio.Condition()

    @asynccontextmanager
    async def take(self, amount: int) -> AsyncIterator[None]:
        """Hold some of it; one request alone never waits."""
        amount = min(amount, self._most)
        async with self._free:
            await self._free.wait_for(lambda: self.taken + amount <= self._most)
            self.taken += amount
        try:
            yield
        finally:
            async with self._free:
                self.taken -= amount
                self._free.notify_all()
