"""Sets the cap on a micro-batch for a while, and puts the old one back in any case.

"Any case" is: an error, a cancellation, SIGINT, SIGTERM, SIGHUP. It is not: SIGKILL, a lost
connection for longer than the attempts last. What then is left to do, the error says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from exporter.load.failures import LoadError
from exporter.load.micro_batch_cap import CapControl, CapState, CapUnknownError, SettingRefusedError
from exporter.load.signals import cancel_on_signal, signals_ignored

RESTORE_ATTEMPTS = 6
RESTORE_SECONDS = 60.0
"""So long the old cap is tried to be put back, while signals are ignored."""
FIRST_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class NotRestoredError(LoadError):
    """The old cap could not be put back; the message has the command that does it."""


@dataclass(frozen=True, slots=True)
class CapChange:
    """A cap that holds for a while."""

    name: str
    old: int
    new: int


@contextlib.asynccontextmanager
async def micro_batch_cap(
    control: CapControl, new: int, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[CapChange]:
    """Holds another cap while the block runs; `sleep` makes the pauses between attempts to restore.

    A signal that would end the process cancels the task that entered the block instead, unless the
    program handles that signal itself; while the old cap is put back, signals are ignored.

    Raises:
        SettingRefusedError: The server does not take it, or would not take the old one back.
        CapUnknownError: The server does not say what the cap is; nothing was changed.
        NotRestoredError: The block is over, but the old cap could not be put back.
    """
    before = await control.read()
    _check(before, new)
    with cancel_on_signal():
        try:
            await control.post(before.name, new)
            await _confirm(control, before, new)
            yield CapChange(before.name, before.value, new)
        finally:
            await _uninterrupted(_restore(control, before, sleep))


def _check(before: CapState, new: int) -> None:
    name, most = before.name, before.most
    if new < 1 or (most is not None and new > most):
        bound = "1 or more" if most is None else f"1 to {most} (max_running_requests // pp_size)"
        raise SettingRefusedError(f"cannot set {name} to {new}: this server accepts {bound}")
    if most is not None and before.value > most:
        # Given at the start it may be larger than what can be set later.
        raise SettingRefusedError(
            f"cannot try {name}={new}: it is {before.value} now, and this server would accept no "
            f"more than {most} when that is put back; restart it with --{name.replace('_', '-')} {new}"
        )


async def _confirm(control: CapControl, before: CapState, new: int) -> None:
    now = await control.read()
    if now.value != new:
        raise SettingRefusedError(
            f"cannot set {before.name} to {new}: the server left it at {now.value}; its log says why"
        )


async def _restore(
    control: CapControl, before: CapState, sleep: Callable[[float], Awaitable[None]]
) -> None:
    reason = "no answer in time"
    with signals_ignored(), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RESTORE_SECONDS):
            for attempt in range(RESTORE_ATTEMPTS):
                if attempt:
                    await sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
                try:
                    if await _put_back(control, before):
                        log.info("restored the setting %s=%d", before.name, before.value)
                        return
                except (CapUnknownError, SettingRefusedError) as error:
                    reason = str(error)
                else:
                    reason = "the server kept another value"
    address = f"{control.url.rstrip('/')}/set_internal_state"
    body = json.dumps({"server_args": {before.name: before.value}})
    raise NotRestoredError(
        f"cannot put {before.name} of {control.url} back to {before.value}: {reason}; a restarted "
        f"server has its own value again, for one that still runs: "
        f"curl -X POST -H 'Content-Type: application/json' -d '{body}' {address}"
    )


async def _put_back(control: CapControl, before: CapState) -> bool:
    if (await control.read()).value == before.value:
        return True
    await control.post(before.name, before.value)
    return (await control.read()).value == before.value


async def _uninterrupted(work: Awaitable[None]) -> None:
    """Waits for work to end however often the waiting task is canceled, then is canceled itself."""
    task = asyncio.ensure_future(work)
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            canceled = error
    task.result()
    if canceled is not None:
        raise canceled
