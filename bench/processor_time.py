"""Processor time and memory of a process, as the kernel counts them."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROC = Path("/proc")
_NANOSECONDS = 1e9
_SCHEDULED_TIME = 2
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def thread_seconds(pid: int) -> dict[int, float]:
    """Time on a core by thread that lives, to the nanosecond where the kernel keeps it (schedstat).

    Raises:
        OSError: The process is gone.
    """
    return {
        int(task.name): seconds
        for task in (_PROC / str(pid) / "task").iterdir()
        if (seconds := _of_task(task)) is not None
    }


def processor_seconds(pid: int) -> float:
    """Time on a core of the whole process, threads that ended included.

    Raises:
        OSError: The process is gone.
    """
    try:
        # The clock of a process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime((~pid << 3) | _SCHEDULED_TIME)
    except OSError:  # not every kernel has it for other processes
        return _ticks(_PROC / str(pid) / "stat")


def _of_task(task: Path) -> float | None:
    try:
        return int((task / "schedstat").read_text().split()[0]) / _NANOSECONDS
    except (OSError, ValueError, IndexError):
        pass
    try:
        return _ticks(task / "stat")
    except OSError:
        return None  # it ended meanwhile


def _ticks(stat: Path) -> float:
    # After the name, which may hold spaces: state is field 3, utime 14, stime 15.
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def memory_mib(pid: int) -> float:
    """Resident memory.

    Raises:
        OSError: The process is gone.
    """
    for line in (_PROC / str(pid) / "status").read_text().split("\n"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"{pid} has ended")
