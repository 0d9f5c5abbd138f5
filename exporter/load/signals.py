"""What signals do while something has to be put back before the process may end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _in_main_thread() -> bool:
    """Only there can signals be handled."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def cancel_on_signal() -> Iterator[None]:
    """A signal that would end the process cancels the task that entered the block instead.

    A signal the program handles itself is left to it.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101  # entered from a coroutine

    def cancel(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(task.cancel)

    ending = (signal.SIG_DFL, signal.default_int_handler)
    caught = [number for number in ENDING if signal.getsignal(number) in ending]
    with _handled(dict.fromkeys(caught, cancel)):
        yield


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Signals that end the process do nothing meanwhile; they are not made up for afterwards."""
    with _handled(dict.fromkeys(ENDING, signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
