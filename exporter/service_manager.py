"""Tells systemd how the exporter fares: ready, reloading, stopping, alive, and what it sees.

The protocol of sd_notify(3): datagrams to `$NOTIFY_SOCKET`, nothing where that is not set. What
could not be sent is sent again at the next look; no failure here reaches the program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from exporter.records import SourceHealth
from exporter.snapshot import GpuSnapshot, ServerSnapshot, Snapshot

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
FIRST_LOOK_SECONDS = 0.1
"""Between looks until it is ready."""
READY_SECONDS = 20.0
"""Ready by then, whatever was tried: a driver that hangs must not make a loop of restarts."""
MOST_CHARACTERS = 400
"""Of the sentence; a message above 4096 bytes would be dropped whole."""
_MICROSECONDS = 1_000_000


class Served(Protocol):
    """What is told of `ingest.Ingest`."""

    def snapshot(self) -> Snapshot:
        """The model at this instant."""

    def healths(self) -> tuple[SourceHealth, ...]:
        """How each source fares."""


class ServiceManager:
    """The service manager that started this process, if one did."""

    def __init__(
        self, environment: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`; `clock` is CLOCK_MONOTONIC."""
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._watchdog_seconds = _watchdog_seconds(environment)
        self._clock = clock
        self._is_ready = False
        self._ready_told = False
        self._status_told = ""

    async def watch(self, served: Served) -> None:
        """Tells of readiness, of what is seen, and that the loop is alive, until canceled.

        Begins once HTTP listens. Ready means that every source was opened or failed to, or that
        20 s have passed; a source that is waited for is in the status. Ends by telling that the
        exporter stops.
        """
        if self._address is None:
            await asyncio.Event().wait()
        give_up_at = self._clock() + READY_SECONDS
        # Half of what the watchdog allows, as sd_watchdog_enabled(3) says; sooner does no harm.
        pause = min(LOOK_SECONDS, self._watchdog_seconds / 2)
        try:
            while True:
                tried = all(one.up or one.last_error for one in served.healths())
                self._is_ready = self._is_ready or tried or self._clock() >= give_up_at
                self._tell(served)
                await asyncio.sleep(pause if self._is_ready else min(pause, FIRST_LOOK_SECONDS))
        finally:
            self._send("STOPPING=1")

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Tells that the configuration is read anew, and afterwards, however it ends, ready."""
        if not self._is_ready:
            yield
            return
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(self._clock() * _MICROSECONDS)}")
        try:
            yield
        finally:
            self._ready_told = self._send("READY=1")

    def _tell(self, served: Served) -> None:
        said = []
        if self._is_ready and not self._ready_told:
            said.append("READY=1")
        if self._watchdog_seconds < float("inf"):
            said.append("WATCHDOG=1")
        status = self._status(served)
        if status != self._status_told:
            said.append(f"STATUS={status}")
        if said and self._send(*said):
            self._ready_told, self._status_told = self._is_ready, status

    def _status(self, served: Served) -> str:
        try:
            return status_sentence(served.snapshot(), served.healths())
        except Exception:  # a bug in the model must cost a sentence, not the sign of life
            if self._status_told != (unknown := "what it sees is unknown; see its log"):
                log.exception("could not tell the service manager what is seen")
            return unknown

    def _send(self, *assignments: str) -> bool:
        """Sends one datagram; whether it left. Never waits, never raises."""
        if self._address is None:
            return False
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.setblocking(False)
                notify.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            log.debug("the service manager could not be told: %s", error)
            return False
        return True


def status_sentence(snapshot: Snapshot, healths: Sequence[SourceHealth]) -> str:
    """What the exporter sees and what it waits for, for a terminal: printable, one line, bounded.

    Made of counts, configured names and the sources' own messages, never of log text.
    """
    sees = f"sees {_stages(snapshot.servers)} and {_gpus(snapshot.gpus)}"
    notes = [
        f"{health.name}: {health.last_error}" if health.up else f"waits for {health.name}: {why}"
        for health in healths
        if (why := health.last_error or ("" if health.up else "not opened yet"))
    ]
    text = "".join(one if one.isprintable() else "?" for one in "; ".join([sees, *notes]))
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _stages(servers: Sequence[ServerSnapshot]) -> str:
    seen = [
        f"{len(one.stages)} {'stage' if len(one.stages) == 1 else 'stages'} of {one.name}"
        for one in servers
        if one.stages
    ]
    return ", ".join(seen) or "no stage yet"


def _gpus(gpus: Sequence[GpuSnapshot]) -> str:
    if not gpus:
        return "no GPU"
    answering = sum(gpu.up is True for gpu in gpus)
    some = "" if answering == len(gpus) else f"{answering} of "
    return f"{some}{len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}"


def _address(text: str) -> str | None:
    """Where to send; `None` where nobody asks, or by a way that is not known here (vsock)."""
    if text.startswith("@"):
        return "\0" + text[1:]
    if text.startswith("/"):
        return text
    if text:
        log.warning("NOTIFY_SOCKET is neither a path nor abstract; the service manager is not told")
    return None


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """How long a silence the service manager bears; infinite where it does not watch us."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    watched = environment.get("WATCHDOG_PID", "") or str(os.getpid())
    if watched != str(os.getpid()) or not re.fullmatch("[1-9][0-9]{0,19}", microseconds):
        return float("inf")
    return int(microseconds) / _MICROSECONDS
