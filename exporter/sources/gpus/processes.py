"""Titles and parents of processes from a folder like /proc."""

from __future__ import annotations

from pathlib import Path

_TITLE_BYTES = 256


def read_title(proc_root: Path, pid: int) -> str | None:
    """The first word of a process's command line: setproctitle puts a whole title there.

    The other words are not read: a server's own command line holds its API key. `None`: the
    process is gone, hidden (`hidepid`), or has none.
    """
    first = _read(proc_root / str(pid) / "cmdline", _TITLE_BYTES).split(b"\0", 1)[0]
    return first.decode("utf-8", "replace") or None


def read_parent(proc_root: Path, pid: int) -> int | None:
    """The PID that started it; `None` if it cannot be read.

    `/proc/PID/stat` is `pid (name) state ppid …`, where the name may hold blanks and brackets.
    """
    fields = _read(proc_root / str(pid) / "stat", 512).rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError:
        return b""
