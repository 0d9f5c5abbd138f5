"""Reads the configuration again, when asked and when its file has changed, and puts it in force.

One attempt at a time; requests that come meanwhile share the next one. A configuration with a
mistake changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exporter.config import Config, ConfigError
from exporter.crashes import Crashes
from exporter.records import ConfigHealth

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often the file is looked at; it is read when two looks in a row agree that it changed."""
READ_SECONDS = 10.0
"""A file that takes longer, on a network that hangs, counts as one that cannot be read."""
NEEDS_RESTART = {"listen": ("listen_host", "listen_port"), "state_file": ("state_file",)}
"""Settings that stay as they were, and their fields."""
NO_FILE = "there is nothing to read again: the exporter was started without a --config file"
TASK = "reload"

Around = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where the configuration came from.

    Attributes:
        path: Its file; `None`: there is none, only options.
        read: Reads it again, with the same options; raises `ConfigError`.
    """

    path: Path | None
    read: Callable[[], Config]


class Reloader:
    """Keeps the configuration in force the newest one."""

    def __init__(  # what to read, what to do with it, and who is told
        self,
        source: ConfigSource,
        config: Config,
        take: Callable[[Config], Awaitable[None]],
        *,
        health: ConfigHealth,
        crashes: Crashes,
        around: Around = contextlib.nullcontext,
    ) -> None:
        """Does nothing yet.

        Args:
            source: Where the configuration comes from.
            config: The one in force.
            take: Puts another one in force.
            health: Kept up to date.
            crashes: Told of what nobody foresaw.
            around: Entered for each attempt, for a service manager that wants to know.
        """
        if source.path is not None and _is_pipe(source.path):  # empty, now that it was read
            source = replace(source, path=None)
        self._source = source
        self._config = config
        self._take = take
        self._health = health
        self._crashes = crashes
        self._around = around
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[str | None]] = []
        self._refused: str | None = None
        self._looked_at: object = ()
        self._changing_to: object = ()
        if source.path is not None:
            health.loaded_at = time.time()

    def request(self) -> None:
        """Asks for a reload, soon."""
        self._asked.set()

    async def reload(self) -> str | None:
        """Reloads now; returns why the old configuration stays, or `None` once the newest is in force."""
        outcome = asyncio.get_running_loop().create_future()
        self._waiting.append(outcome)
        self._asked.set()
        said: str | None = await outcome
        return said

    async def run(self) -> None:
        """Reloads when asked and when the file has changed, until canceled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()
            if self._asked.is_set():
                self._asked.clear()
                await self._answer()
            elif self._source.path is not None and await self._has_changed(self._source.path):
                await self._attempt(was_asked=False)

    async def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        said: str | None = "the exporter is stopping"
        try:
            said = await self._attempt(was_asked=True)
        finally:
            # Whoever asks over HTTP need not learn where the file is.
            answer = said and said.replace(f" {self._source.path}", "")
            for outcome in waiting:
                if not outcome.done():
                    outcome.set_result(answer)

    # --- one attempt ---------------------------------------------------------------------------

    async def _attempt(self, *, was_asked: bool) -> str | None:
        """Why the old configuration stays in force; `None` if the newest one is."""
        with self._around():
            try:
                return await self._load(was_asked=was_asked)
            except Exception as error:  # noqa: BLE001  # the attempt's boundary: counted and logged
                self._crashes.note(TASK, error)
                return self._refuse("it failed unexpectedly; see the exporter's log", was_asked)

    async def _load(self, *, was_asked: bool) -> str | None:
        if self._source.path is None:
            log.info("%s", NO_FILE)
            return NO_FILE
        try:
            async with asyncio.timeout(READ_SECONDS):
                newest = await asyncio.to_thread(self._read, self._source.path)
        except ConfigError as error:
            return self._refuse(str(error), was_asked)
        except TimeoutError:
            said = f"cannot read {self._source.path}: no answer in {READ_SECONDS:.0f} s"
            return self._refuse(said, was_asked)
        await self._put_in_force(newest, was_asked=was_asked)
        return None

    def _read(self, path: Path) -> Config:
        if _is_pipe(path):  # a thread that reads one may wait for ever
            raise ConfigError(
                f"the configuration {path} is a pipe, which can be read at the start only"
            )
        return self._source.read()

    async def _put_in_force(self, newest: Config, *, was_asked: bool) -> None:
        newest = _without_restart(self._config, newest)
        if newest == self._config:
            if was_asked or self._refused is not None:
                log.info("read the configuration again: nothing changes")
        else:
            await self._take(newest)
            log.info("%s", _told(self._config, newest))
            self._config = newest
            self._health.loaded_at = time.time()
        self._refused, self._health.newest_in_force = None, True

    def _refuse(self, said: str, was_asked: bool) -> str:
        """Notes why the newest configuration is not in force, and logs it once."""
        if was_asked or said != self._refused:
            for mistake in said.split("\n"):
                log.error("kept the old configuration: %s", mistake)
        self._refused, self._health.newest_in_force = said, False
        return said

    # --- the file ------------------------------------------------------------------------------

    async def _has_changed(self, path: Path) -> bool:
        """Whether the file is another one, and no longer on its way to be yet another.

        What it says is compared later: at the first look nothing is known of how it was.
        """
        try:
            async with asyncio.timeout(READ_SECONDS):
                seen = await asyncio.to_thread(_looks, path)
        except TimeoutError:
            return False
        if seen == self._looked_at:
            return False
        if seen != self._changing_to:
            self._changing_to = seen
            return False
        self._looked_at = seen
        return True


def _is_pipe(path: Path) -> bool:
    """Whether it gives what it holds only once; one that cannot be looked at does not."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _looks(path: Path) -> object:
    """What tells one state of a file from another, through links; `None` where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _without_restart(before: Config, newest: Config) -> Config:
    """The newest configuration as far as it can be put in force now."""
    kept: dict[str, Any] = {}
    for setting, fields in NEEDS_RESTART.items():
        if any(getattr(before, field) != getattr(newest, field) for field in fields):
            log.warning("%s stays as it was: it can only change with a restart", setting)
            kept |= {field: getattr(before, field) for field in fields}
    return replace(newest, **kept)


def _told(before: Config, newest: Config) -> str:
    old = {server.name: server for server in before.servers}
    new = {server.name: server for server in newest.servers}
    rest = replace(before, servers=newest.servers) != newest
    changes = {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in new.keys() & old.keys() if new[name] != old[name]),
    }
    told = [f"{what}={','.join(names)}" for what, names in changes.items() if names]
    return " ".join(["put a new configuration in force", *told, *(["settings=changed"] * rest)])
