"""Sets the cap on a micro-batch for a while, and puts the old one back in any case.

"Any case" is: an error, and a cancellation however often it is repeated; whoever runs this has
turned the signals that end a process into one. It is not: SIGKILL, or a server that cannot be
reached for longer than the attempts last. What then is left to do, the error says.
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
from exporter.load.tokens import ADMIN_KEY_VARIABLE, API_KEY_VARIABLE

RESTORE_ATTEMPTS = 6
RESTORE_SECONDS = 60.0
"""So long the old cap is tried to be put back; nothing cuts it short."""
FIRST_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class NotRestoredError(LoadError):
    """The old cap could not be put back; the message ends in the command that does it.

    Attributes:
        command: That command, for a shell.
    """

    def __init__(self, message: str, command: str) -> None:
        """Says what was tried and what is left to do."""
        super().__init__(f"{message}: {command}")
        self.command = command


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

    A cancellation waits until the old cap is back.

    Raises:
        SettingRefusedError: The server does not take it, or would not take the old one back.
        CapUnknownError: The server does not say what the cap is; nothing was changed.
        NotRestoredError: The block is over, but the old cap could not be put back.
    """
    before = await control.read()
    check_settable(before, new)
    try:
        await control.post(before.name, new)
        await _confirm(control, before, new)
        log.info("set %s=%d for a while, it was %d", before.name, new, before.value)
        yield CapChange(before.name, before.value, new)
    finally:
        log.info("putting %s back to %d", before.name, before.value)
        await _uninterrupted(_restore(control, before, sleep))


def check_settable(before: CapState, new: int) -> None:
    """Checks that a cap can be set and the present one put back, as far as the server says it.

    Raises:
        SettingRefusedError: It cannot, or it is the present one.
    """
    name, most = before.name, before.most
    if new == before.value:
        raise SettingRefusedError(f"cannot try {name}={new}: that is what the server has now")
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
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RESTORE_SECONDS):
            for attempt in range(RESTORE_ATTEMPTS):
                if attempt:
                    await sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
                try:
                    await _put_back(control, before)
                except (CapUnknownError, SettingRefusedError) as error:
                    reason = str(error)
                else:
                    log.info("restored the setting %s=%d", before.name, before.value)
                    return
    raise NotRestoredError(
        f"cannot put {before.name} of {control.url} back to {before.value}: {reason}; a restarted "
        "server has its own value again, for one that still runs",
        _command(control, before),
    )


def _command(control: CapControl, before: CapState) -> str:
    """What sets the cap from a shell; names the key, does not show it."""
    variable = API_KEY_VARIABLE if control.admin_token is None else ADMIN_KEY_VARIABLE
    keyed = control.token is not None or control.admin_token is not None
    key = f'-H "Authorization: Bearer ${variable}" ' if keyed else ""
    body = json.dumps({"server_args": {before.name: before.value}})
    address = f"{control.url.rstrip('/')}/set_internal_state"
    return f"curl -X POST -H 'Content-Type: application/json' {key}-d '{body}' {address}"


async def _put_back(control: CapControl, before: CapState) -> None:
    """Asks first and looks then: a question of ours that was cut off may still be under way."""
    refusal = SettingRefusedError("the server kept another value")
    try:
        await control.post(before.name, before.value)
    except SettingRefusedError as error:
        refusal = error  # of no account where it has not taken the other one either
    if (await control.read()).value != before.value:
        raise refusal


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
