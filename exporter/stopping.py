"""How a program that runs until a signal ends."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT)
MOST_THREADS = 32


def caught(numbers: Iterable[signal.Signals] = STOPPING) -> asyncio.Event:
    """Set at a signal; while the loop runs, none of these does anything else, however often."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    return stop


async def stopped(numbers: Iterable[signal.Signals] = STOPPING) -> None:
    """Returns at a signal; while the loop runs, none of these does anything else, however often."""
    await caught(numbers).wait()


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


def wait_for_no_thread() -> None:
    """Whatever the running loop does in threads no longer keeps the process when it ends.

    A name server or a network file may let a thread hang for minutes.
    """
    asyncio.get_running_loop().set_default_executor(_DaemonThreads())


class _DaemonThreads(ThreadPoolExecutor):
    """Threads that end with the process; Python waits for those of the ordinary executor."""

    def __init__(self) -> None:
        super().__init__(MOST_THREADS)
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._free = threading.Semaphore(0)
        self._started = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Runs a function on a free thread, a new one, or the first that becomes free."""
        future: Future[Any] = Future()
        self._jobs.put(lambda: _do(future, lambda: function(*args, **named)))
        if not self._free.acquire(blocking=False) and self._started < MOST_THREADS:
            self._started += 1
            threading.Thread(target=self._work, name=f"aside-{self._started}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Waits for nobody."""

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            self._free.release()


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  # whoever waits for it gets it
        future.set_exception(error)
