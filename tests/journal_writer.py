"""Writes real journal files for tests, as journald would, through systemd-journal-remote.

    with JournalWriter(directory) as journal:
        journal.write("[2026-09-24 10:31:46 PP1] Decode batch, …", pid=4242,
                      cmdline="sglang::scheduler_PP1")
        journal.flush()      # returns when the entry can be read
        journal.rotate()     # the active file is archived, a new one begins
        journal.vacuum()     # archived files are gone

Entries that were not flushed may or may not be readable yet. Not for several threads.
Debian and Ubuntu: package systemd-journal-remote.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from systemd import journal

REMOTE_PATHS = (
    Path("/lib/systemd/systemd-journal-remote"),
    Path("/usr/lib/systemd/systemd-journal-remote"),
)
SUPPRESSED_MESSAGE_ID = "a596d6fe7bfa4994828e72309e95d61e"
READABLE_WITHIN_SECONDS = 60.0

FieldValue = str | bytes | int | None


def journal_remote() -> Path | None:
    """The program that writes; `None` where it is not installed (skip the test then)."""
    return next((path for path in REMOTE_PATHS if path.exists()), None)


class JournalWriter:
    """One growing journal in a directory; what it writes, `systemd.journal.Reader(path=…)` reads.

    Args:
        directory: Created if missing. A second writer of the same directory goes on where the
            first one stopped.
        unit: `_SYSTEMD_UNIT` of entries that name no other.
        invocation: `_SYSTEMD_INVOCATION_ID` of entries that name no other; change the attribute to
            tell of a restart of the unit.
        max_file_bytes: Rotate by itself, with running sequence numbers as journald does, when the
            file would grow beyond this (at least 12 MiB; files grow by 8 MiB). `None`: only by
            `rotate`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        unit: str | None = "sglang.service",
        invocation: str | None = "0123456789abcdef0123456789abcdef",
        max_file_bytes: int | None = None,
    ) -> None:
        self.directory = directory
        self.unit = unit
        self.invocation = invocation
        self.boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        self.written = 0
        self._clock_offset_us = 0
        self._max_file_bytes = max_file_bytes
        self._realtime_us = 0
        self._monotonic_us = 0
        self._unflushed = False
        self._sequence = time.monotonic_ns()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def active_file(self) -> Path:
        return self.directory / "x.journal"

    @property
    def archived_files(self) -> list[Path]:
        """Oldest first."""
        return sorted(self.directory.glob("x@*.journal"), key=lambda path: path.stat().st_mtime_ns)

    def write(
        self,
        message: str | bytes | None,
        *,
        pid: int = 4242,
        cmdline: str | None = "sglang::scheduler_PP0",
        unit: str | None = None,
        transport: str | None = "stdout",
        realtime_us: int | None = None,
        **fields: FieldValue,
    ) -> int:
        """Appends one entry and returns its `__REALTIME_TIMESTAMP` in microseconds.

        A field of `None` is left out; `message=None` is an entry without MESSAGE. Stamps are the
        wall clock's and strictly increasing unless `realtime_us` says otherwise.
        """
        now_us = time.time_ns() // 1000 + self._clock_offset_us
        stamp = realtime_us or max(self._realtime_us + 1, now_us)
        self._realtime_us = max(stamp, self._realtime_us)
        self._monotonic_us = max(self._monotonic_us + 1, time.monotonic_ns() // 1000)
        self._sequence += 1
        entry: dict[str, FieldValue] = {
            "__REALTIME_TIMESTAMP": stamp,
            "__MONOTONIC_TIMESTAMP": self._monotonic_us,
            "_BOOT_ID": self.boot_id,
            "_TRANSPORT": transport,
            "SYSLOG_IDENTIFIER": "sglang",
            "_STREAM_ID": "0e0e71e20a3948f8bc5d872f4b6b806e" if transport == "stdout" else None,
            "_PID": pid,
            "_CMDLINE": cmdline,
            "_SYSTEMD_UNIT": unit or self.unit,
            "_SYSTEMD_INVOCATION_ID": self.invocation,
            "MESSAGE": message,
            "TEST_SEQUENCE": self._sequence,
            **fields,
        }
        data = b"".join(_field(name, value) for name, value in entry.items() if value is not None)
        self._stdin().write(data + b"\n")
        self._unflushed = True
        self.written += 1
        return stamp

    def set_clock(self, offset_seconds: float) -> None:
        """From now on stamps are the wall clock's and this; they may be older than the newest."""
        self._clock_offset_us = int(offset_seconds * 1e6)
        self._realtime_us = 0

    def write_suppressed(self, count: int, unit: str | None = None) -> int:
        """Journald's own word that it dropped `count` messages of a unit (systemd 252's fields)."""
        unit = unit or self.unit
        return self.write(
            f"Suppressed {count} messages from {unit}",
            pid=1,
            cmdline="/lib/systemd/systemd-journald",
            unit="systemd-journald.service",
            transport="driver",
            _SYSTEMD_INVOCATION_ID=None,
            MESSAGE_ID=SUPPRESSED_MESSAGE_ID,
            N_DROPPED=count,
            OBJECT_SYSTEMD_UNIT=unit,
        )

    def send(self) -> None:
        """Hands on what was written without waiting until it can be read."""
        self._stdin().flush()

    def flush(self) -> None:
        """Returns when everything written can be read from the files.

        Raises:
            TimeoutError: It could not within 60 s, or the writing program died.
        """
        if not self._unflushed:
            return
        self.send()
        give_up_at = time.monotonic() + READABLE_WITHIN_SECONDS
        wanted = str(self._sequence).encode()
        while self._newest_sequence() != wanted:
            process = self._process
            if time.monotonic() > give_up_at or process is None or process.poll() is not None:
                raise TimeoutError(f"entry {self.written} cannot be read in {self.directory}")
            time.sleep(0.001)
        self._unflushed = False

    def rotate(self) -> Path | None:
        """Archives the active file under a new name and begins a new one; returns the archived."""
        self.flush()
        self._stop()
        archived: Path | None = None
        if self.active_file.exists():
            with self.active_file.open("rb") as file:
                header = file.read(208)
            seqnum_id = header[72:88].hex()
            head_seqnum = int.from_bytes(header[168:176], "little")
            head_realtime = int.from_bytes(header[184:192], "little")
            name = f"x@{seqnum_id}-{head_seqnum:016x}-{head_realtime:016x}.journal"
            archived = self.active_file.rename(self.directory / name)
        self._start()
        return archived

    def vacuum(self, *, everything: bool = False) -> int:
        """Deletes the archived files, with `everything` the active one too; returns how many."""
        if everything:
            self.rotate()
        files = self.archived_files
        for path in files:
            path.unlink()
        return len(files)

    def corrupt_tail(self, *, size: int = 4096, truncate: bool = False) -> Path:
        """Damages the end of the active file's data, archives it and begins a new one.

        With `truncate` the file loses its second half and libsystemd refuses it whole; otherwise
        `size` bytes before the newest object are overwritten. Close readers first when truncating:
        libsystemd maps the file, and a lost page kills the process with SIGBUS.
        """
        archived = self.rotate()
        assert archived is not None
        with archived.open("r+b") as file:
            header = file.read(272)
            if truncate:
                file.truncate(archived.stat().st_size // 2)
            else:
                tail_object = int.from_bytes(header[136:144], "little")
                file.seek(max(272, tail_object - size))
                file.write(b"\xa5" * size)
        return archived

    def close(self) -> None:
        """Writes what is left and ends the program; may be called twice."""
        self._stop()

    def _stdin(self) -> IO[bytes]:
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    def _start(self) -> None:
        program = journal_remote()
        if program is None:
            raise FileNotFoundError("systemd-journal-remote is not installed")
        # With SIGXFSZ ignored (as Python has it) a full file is an error that makes it rotate.
        self._process = subprocess.Popen(
            [program, "-o", self.active_file, "-"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            restore_signals=False,
        )
        if self._max_file_bytes is not None:
            limit = (self._max_file_bytes, self._max_file_bytes)
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limit)

    def _stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(READABLE_WITHIN_SECONDS)
        self._process = None
        self._unflushed = False

    def _newest_sequence(self) -> bytes | None:
        try:
            with journal.Reader(files=[os.fspath(self.active_file)]) as reader:
                reader.seek_tail()
                return reader._get("TEST_SEQUENCE") if reader._previous() else None
        except (OSError, KeyError):
            return None


def _field(name: str, value: FieldValue) -> bytes:
    data = value if isinstance(value, bytes) else str(value).encode()
    if b"\n" in data:
        return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
