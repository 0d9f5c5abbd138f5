"""The disk that the reading positions are kept on is full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults import Outcome
from tests.faults.journal import LINES, beside_a_journal


def why_not() -> str | None:
    """Why no disk can be filled here; `None` if it can."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        check=False,
    )
    return None if tried.returncode == 0 else "nothing may be mounted here"


@contextmanager
def _small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def _fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", buffering=0) as growing:
        while True:
            growing.write(bytes(4096))


def disk_full(folder: Path, times: int) -> Outcome:
    """It counts on and says so; with room again a kill -9 costs nothing and doubles nothing."""
    told = told_over = 0
    with beside_a_journal(folder) as run, _small_disk(folder / "disk") as disk:
        option = f"--state-file={disk / 'positions.json'}"
        for _ in range(times):
            with run.life(option) as exporter:
                run.read_all(exporter)
                _fill(disk / "full")
                run.server.write(LINES)
                run.read_all(exporter)
                told += "No space left on device" in exporter.said
                (disk / "full").unlink()
                run.server.write(LINES)
                run.read_all(exporter)
                told_over += "are saved again" in exporter.said
            run.server.write(LINES)
        with run.life(option) as exporter:
            run.read_all(exporter)
        return run.outcome(told_when_full=(times, told), told_when_over=(times, told_over))
