"""Exceptions that nobody foresaw: counted by task, said once each, and the task is begun again.

Only the stack and the kind of an exception are logged, never its words: they may quote a log line.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable

from exporter.records import FatalSourceError

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 30.0
MOST_KINDS = 256
"""Exceptions told apart; what is beyond is counted and no longer told with its stack."""
_SAID_AGAIN_AT = frozenset(10**power for power in range(1, 10))


class Crashes:
    """How often each of the exporter's tasks met an exception that nobody foresaw.

    Attributes:
        counts: By task: a source's name, or that of a task of the exporter's own; 0 for one that
            runs well.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._times: Counter[tuple[str, str]] = Counter()

    def expect(self, task: str) -> None:
        """Counts a task from now on."""
        self.counts.setdefault(task, 0)

    def forget(self, task: str) -> None:
        """Drops a task that is there no more."""
        self.counts.pop(task, None)

    def note(self, task: str, error: Exception) -> None:
        """Counts an exception; logs its stack if it is the first of its kind."""
        self.counts[task] = self.counts.get(task, 0) + 1
        stack = _stack(error)
        kind = (task, stack) if len(self._times) < MOST_KINDS else ("", "")
        self._times[kind] += 1
        times = self._times[kind]
        if times == 1:
            log.error("%s failed unexpectedly; please report it with these lines\n%s", task, stack)
        elif times in _SAID_AGAIN_AT:
            log.warning("%s failed unexpectedly in the same way, now %d times", task, times)


async def kept_running(task: str, work: Callable[[], Awaitable[None]], crashes: Crashes) -> None:
    """Does `work` until it returns or is canceled; what breaks it is noted, and it begins again.

    Raises:
        FatalSourceError: Only a new process helps.
    """
    crashes.expect(task)
    clock = asyncio.get_running_loop().time
    pause = FIRST_PAUSE_SECONDS
    while True:
        began_at = clock()
        try:
            return await work()
        except FatalSourceError:
            raise
        except Exception as error:  # noqa: BLE001  # the task's boundary: it is counted and logged
            crashes.note(task, error)
        if clock() - began_at > LAST_PAUSE_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        await asyncio.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE_SECONDS)


def _stack(error: BaseException) -> str:
    """Where it was raised and of what kind it is, with what it was raised from first."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    stack = f"{''.join(traceback.format_tb(error.__traceback__))}{kind}"
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return stack if before is None else f"{_stack(before)}\nled to\n{stack}"
