"""Writes the simulated server's entries where the sources look: a real journal, or a text file.

Both are bounded: a demo may run for days.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
import uuid
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from exporter.simulator.processes import Process
from exporter.simulator.server_log import LogEntry

UNIT = "sglang.service"
_PROGRAM = "systemd-journal-remote"
_PROGRAM_FOLDERS = ("/lib/systemd", "/usr/lib/systemd")
_ENTRIES_PER_FILE = 60_000  # about 35 MB
_FILES_KEPT = 2
_TEXT_BYTES_PER_FILE = 16 * 2**20
_RESTART_SECONDS = 1.0
_CLOSE_SECONDS = 5.0
_UPTIME_SECONDS = 3600.0
"""How long the simulated host had been up when the server was fired up."""
_US = 1_000_000
_NEEDS_BINARY = re.compile(r"[\x00-\x1f]")

log = logging.getLogger(__name__)


def find_journal_remote() -> Path | None:
    """The program that writes real journal files (Debian package systemd-journal-remote)."""
    for folder in _PROGRAM_FOLDERS:
        if (Path(folder) / _PROGRAM).exists():
            return Path(folder) / _PROGRAM
    found = shutil.which(_PROGRAM)
    return Path(found) if found else None


class LogWriter(Protocol):
    """Where entries go."""

    async def write(self, entries: Sequence[LogEntry]) -> None:
        """Writes entries in time order; returns when they are handed over."""

    async def close(self) -> None:
        """Finishes the file; may be called twice."""


class TextWriter:
    """One line an entry, without the process that wrote it; rotated by renaming to `.1`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    async def write(self, entries: Sequence[LogEntry]) -> None:
        """See `LogWriter`."""
        if not entries:
            return
        with self._path.open("ab") as file:
            file.write(b"".join(entry.message.encode() + b"\n" for entry in entries))
            written_bytes = file.tell()
        if written_bytes > _TEXT_BYTES_PER_FILE:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._path.touch()

    async def close(self) -> None:
        """See `LogWriter`."""


class JournalWriter:
    """Feeds systemd-journal-remote, one process a file; a process that ends gets a successor."""

    def __init__(self, program: Path, directory: Path, started_at: float) -> None:
        self._program = program
        self._directory = directory
        self._booted_at = started_at - _UPTIME_SECONDS
        self._boot_id, self._invocation_id = uuid.uuid4().hex, uuid.uuid4().hex
        self._process: asyncio.subprocess.Process | None = None
        self._entries = 0
        self._not_before = 0.0

    async def write(self, entries: Sequence[LogEntry]) -> None:
        """See `LogWriter`; entries are lost while the program cannot be started."""
        if not entries:
            return
        if self._entries >= _ENTRIES_PER_FILE:
            await self.close()
        exported = b"".join(self._exported(entry) for entry in entries)
        # Once more for a process that ended since the last write; then its successor takes these.
        for _ in range(2):
            if await self._hand_over(exported):
                self._entries += len(entries)
                return

    async def close(self) -> None:
        """See `LogWriter`."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _CLOSE_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _hand_over(self, exported: bytes) -> bool:
        process = self._process or await self._start()
        if process is None or process.stdin is None:
            return False
        if process.returncode is None:
            try:
                process.stdin.write(exported)
                await process.stdin.drain()
            except (BrokenPipeError, ConnectionResetError):
                pass
            else:
                return True
        self._process = None
        process.stdin.close()
        log.warning("%s ended code=%s; starting it again", _PROGRAM, process.returncode)
        return False

    async def _start(self) -> asyncio.subprocess.Process | None:
        """A new process with a new file; not more than one a second."""
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            return None
        self._not_before = now + _RESTART_SECONDS
        self._entries = 0
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._program,
                f"--output={self._next_file()}",
                "-",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is ours alone
            )
        except OSError as error:
            log.warning("cannot start %s: %s; trying again", self._program, error)
        return self._process

    def _next_file(self) -> Path:
        """The next file's path; removes those too old to keep beside it."""
        files = sorted(self._directory.glob("demo-*.journal"))
        for old in files[: max(0, len(files) - _FILES_KEPT + 1)]:
            old.unlink(missing_ok=True)
        last = int(files[-1].stem.removeprefix("demo-")) if files else 0
        return self._directory / f"demo-{last + 1:06d}.journal"

    def _exported(self, entry: LogEntry) -> bytes:
        """The entry in systemd's export format, with the fields journald gives stdout lines."""
        at_us = int(entry.at * _US)
        head = (
            f"__REALTIME_TIMESTAMP={at_us}\n"
            f"__MONOTONIC_TIMESTAMP={at_us - int(self._booted_at * _US)}\n"
            f"_BOOT_ID={self._boot_id}\n_SYSTEMD_INVOCATION_ID={self._invocation_id}\n"
        )
        return (
            head.encode()
            + _process_fields(entry.process)
            + _field("MESSAGE", entry.message)
            + b"\n"
        )


@lru_cache(maxsize=64)
def _process_fields(process: Process) -> bytes:
    command = process.title.split(" ")[0].rsplit("/", 1)[-1]
    fields = {
        "_MACHINE_ID": "5d0e5d0e5d0e5d0e5d0e5d0e5d0e5d0e",
        "_HOSTNAME": "demo",
        "_RUNTIME_SCOPE": "system",
        "_TRANSPORT": "stdout",
        "_STREAM_ID": "5d0e0001000100010001000100010001",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "sglang",
        "_UID": "0",
        "_GID": "0",
        "_PID": str(process.pid),
        "_COMM": command[:15],
        "_CMDLINE": process.title,
        "_SYSTEMD_UNIT": UNIT,
    }
    return b"".join(_field(name, value) for name, value in fields.items())


def _field(name: str, value: str) -> bytes:
    """`NAME=value`, or name, length and bytes where the value holds a control character."""
    data = value.encode()
    if _NEEDS_BINARY.search(value):
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
