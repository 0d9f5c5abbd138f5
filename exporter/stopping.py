"""How a program that runs until a signal ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable

STOPPING = (signal.SIGTERM, signal.SIGINT)


async def stopped(numbers: Iterable[signal.Signals] = STOPPING) -> None:
    """Returns at a signal; while the loop runs, none of these does anything else, however often."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def ignore_signals(numbers: Iterable[signal.Signals] = STOPPING) -> None:
    """For the rest of the process, after a clean end: a second one must not cut short what is left.

    Not before it: for a moment each of these ends the process.
    """
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def first_of(*tasks: asyncio.Task[None]) -> None:
    """Waits for the first task to end, cancels the rest and raises what went wrong in any."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
