"""Runs a real systemd-journald by hand, for tests on machines where none runs.

It needs root and owns the machine's journal sockets, so there is one at a time: another test run
on the same machine waits for the lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PROGRAMS = (Path("/lib/systemd/systemd-journald"), Path("/usr/lib/systemd/systemd-journald"))
SOCKETS = Path("/run/systemd/journal")
READY_WITHIN_SECONDS = 60.0


def why_not() -> str | None:
    """Why no journald can be started by hand here; `None` if it can."""
    if os.geteuid() != 0:
        return "a journald started by hand needs root"
    if not any(path.exists() for path in PROGRAMS):
        return "systemd-journald is not installed"
    if Path("/run/systemd/system").exists():
        return "systemd runs this machine and its journald"
    if not Path("/sys/fs/cgroup").is_mount():
        return "systemd-journald does not start without /sys/fs/cgroup"
    return None


class Journald:
    """A running journald."""

    def __init__(self) -> None:
        self._program = next(path for path in PROGRAMS if path.exists())
        self.start()

    def start(self) -> None:
        """Starts it; returns once it takes lines."""
        self._process = subprocess.Popen([self._program], stderr=subprocess.DEVNULL)
        try:
            _wait_until_ready(self._process)
        except BaseException:
            self.stop()
            raise

    def rotate(self) -> None:
        """Asks it to begin a new file."""
        self._process.send_signal(signal.SIGUSR2)

    def stop(self) -> None:
        """Ends it; whoever logs through it then logs nowhere."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(READY_WITHIN_SECONDS)


@contextmanager
def hand_started_journald() -> Iterator[Journald]:
    """A journald that takes lines from `systemd-cat`; what it made is gone afterwards.

    `_SYSTEMD_UNIT` is missing from its entries: follow by identifier.
    """
    lock = Path(tempfile.gettempdir()) / "sglang-pipeline-exporter-journald.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        machine_id = Path("/etc/machine-id").read_text().strip()
        made = [
            path for path in (SOCKETS, Path("/run/log/journal") / machine_id) if not path.exists()
        ]
        try:
            journald = Journald()
            try:
                yield journald
            finally:
                journald.stop()
        finally:
            for path in made:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def logging_process(identifier: str, title: str) -> Iterator[IO[bytes]]:
    """A process with a title whose output goes to the journal: what it is given, line by line.

    Its first entries may carry the command line that it had before, as with SGLang's schedulers.
    """
    command = ["systemd-cat", "-t", identifier, "bash", "-c", f"exec -a {title} cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        with process.stdin as given:
            yield given


def journalctl_count(*matches: str) -> int:
    """How many entries `journalctl` reads with these options and matches."""
    command = ["journalctl", "--output=cat", "--quiet", *matches]
    return subprocess.run(command, capture_output=True, check=True).stdout.count(b"\n")


def _wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    """Until it accepts a stream: its sockets exist a moment before it listens, or from before."""
    give_up_at = time.monotonic() + READY_WITHIN_SECONDS
    while not _accepts(SOCKETS / "stdout") or not (SOCKETS / "socket").exists():
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise TimeoutError(f"systemd-journald takes no line; it ended with {process.poll()}")
        time.sleep(0.01)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        try:
            stream.connect(str(path))
        except OSError:
            return False
    return True
