"""When the next request leaves: after a failure, and in an open loop."""

from __future__ import annotations

import asyncio
import random

FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 8.0
MOST_WAITING = 100_000


class BackOff:
    """Ever longer pauses while one place of a loop fails, never shorter than the server asks for."""

    def __init__(self, seed: int, place: int) -> None:
        """Spreads the pauses of each place otherwise, so that they do not come back as a herd."""
        self._rng = random.Random(f"{seed}/{place}")  # noqa: S311  # spreads pauses, no secret
        self._seconds = FIRST_PAUSE_SECONDS

    def next(self, asked_seconds: float | None) -> float:
        """The next pause, in seconds."""
        pause = self._seconds * self._rng.uniform(0.5, 1.0)
        self._seconds = min(2 * self._seconds, LAST_PAUSE_SECONDS)
        return pause if asked_seconds is None else max(pause, asked_seconds)

    def reset(self) -> None:
        """A request was answered: the next failure is a first one."""
        self._seconds = FIRST_PAUSE_SECONDS


class Arrivals:
    """Lets requests leave: at once in a closed loop, at random instants of a mean rate in an open one.

    Attributes:
        delayed: Arrivals that found no place free and waited.
    """

    def __init__(self, rate_per_second: float | None, seed: int) -> None:
        """`None` is a closed loop; the same seed gives the same arrivals."""
        self.delayed = 0
        self._rate = rate_per_second
        self._rng = random.Random(seed)  # noqa: S311  # workload, no secret
        self._due = asyncio.Semaphore(0)
        self._free = 0
        self._waiting = 0

    async def next(self) -> None:
        """Returns when the next request is due."""
        if self._rate is None:
            return
        self._free += 1
        try:
            await self._due.acquire()
        finally:
            self._free -= 1
        self._waiting -= 1

    async def run(self) -> None:
        """Lets requests become due; in a closed loop there is nothing to do."""
        if self._rate is None:
            return
        due_at = asyncio.get_running_loop().time()
        while True:
            due_at += self._rng.expovariate(self._rate)
            await asyncio.sleep(max(0.0, due_at - asyncio.get_running_loop().time()))
            if self._waiting >= MOST_WAITING:
                continue
            self._waiting += 1
            if self._waiting > self._free:
                self.delayed += 1
            self._due.release()
