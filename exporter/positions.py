"""Keeps where each source has read to, so that the next life of the exporter goes on from there.

In: positions, as JSON that only their source understands, and the news of a scrape. Out: one small
file, replaced whole. What Prometheus has not seen yet is read again after a crash, so that the last
scrapes of all lives add up: the saved position is that of the last answered scrape, not the newest.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Position = dict[str, Any]
"""Where a source has read to; the same as the sources' own."""

REREAD_SECONDS = 900.0
"""The most that is read again when nobody scraped: Prometheus would call the counters stale."""
_HISTORY_SECONDS = 10.0
_VERSION = 1
_MOST_BYTES = 1 << 20
_DIRECTORY = "sglang-pipeline-exporter"
_FILE = "positions.json"


class StateFileInUseError(Exception):
    """Another exporter keeps its positions in the same file; the message names the remedy."""


def default_path(environment: Mapping[str, str]) -> Path:
    """Where positions are kept unless the configuration says otherwise.

    systemd's `StateDirectory=` comes first (the first of them, if several), then the user's own
    state directory.
    """
    directory = environment.get("STATE_DIRECTORY", "").split(":")[0]
    if directory:
        return Path(directory) / _FILE
    base = environment.get("XDG_STATE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    state_home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return state_home / _DIRECTORY / _FILE


class PositionStore:
    """The saved position of every source.

    A file that cannot be written never stops the exporter: it counts on, and only the next life
    would begin without a position. Not safe for several threads.

    Attributes:
        problem: Why positions are not being saved, with the remedy; `None` while they are.
        damaged: Whether there was a state file that could not be used: positions were lost.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the file for this process alone and reads it.

        Raises:
            StateFileInUseError: Another exporter uses it.
        """
        self.problem: str | None = None
        self.damaged = False
        self._path = path
        self._clock = clock
        self._lock: int | None = None
        self._history: deque[tuple[float, dict[str, Position]]] = deque()
        self._unsaved = False
        self._take()
        self._saved = self._read()

    def position(self, name: str) -> Position | None:
        """The saved position of a source; `None` if it has none."""
        return self._saved.get(name)

    def started(self, name: str, position: Position) -> None:
        """Saves where a source begins, if it has no position yet."""
        if name not in self._saved:
            self._save({name: position})

    def scraped(self, positions: Mapping[str, Position]) -> None:
        """Saves what a scrape is about to show; call it before the answer goes out."""
        self._history.clear()
        self._history.append((self._clock(), dict(positions)))
        self._save(positions)

    def tick(self, positions: Mapping[str, Position]) -> None:
        """Lets the saved positions follow at a distance while nobody scrapes; call it often."""
        now = self._clock()
        if not self._history or now - self._history[-1][0] >= _HISTORY_SECONDS:
            self._history.append((now, dict(positions)))
        # The first entry is what is saved: the last scrape, the start, or what followed them here.
        overdue = None
        while len(self._history) > 1 and now - self._history[0][0] > REREAD_SECONDS:
            self._history.popleft()
            overdue = self._history[0][1]
        if overdue is not None:
            self._save(overdue)

    def forget(self, names: Iterable[str]) -> None:
        """Drops the positions of sources that are read no more, or read something else now."""
        gone = set(names)
        for _, positions in self._history:
            for name in gone & positions.keys():
                del positions[name]
        if gone & self._saved.keys():
            self._saved = {name: at for name, at in self._saved.items() if name not in gone}
            self._unsaved = True
            self._save({})

    def close(self) -> None:
        """Gives the file free; saves nothing more. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self) -> None:
        """Locks a sibling, because the file itself is replaced; the kernel frees it at any death."""
        lock = self._path.with_name(self._path.name + ".lock")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._complain(error)
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise StateFileInUseError(
                f"another exporter keeps its reading positions in {self._path}; "
                "stop it, or give this one a `state_file` of its own"
            ) from error
        except OSError as error:
            logger.warning("could not lock %s (%s); went on without", lock, error.strerror)

    def _read(self) -> dict[str, Position]:
        try:
            with self._path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.damaged = True
            self._complain(error)
            return {}
        positions = _parse(content)
        if positions is None:
            self.damaged = True
            logger.warning(
                "%s holds no reading positions; began without, and it will be replaced", self._path
            )
        return positions or {}

    def _save(self, positions: Mapping[str, Position]) -> None:
        merged = self._saved | dict(positions)
        if merged == self._saved and not self._unsaved:
            return
        # A source may go on changing the object it gave.
        content = json.dumps({"version": _VERSION, "positions": merged})
        self._saved = json.loads(content)["positions"]
        temporary = self._path.with_name(self._path.name + ".tmp")
        try:
            # No fsync: after a crash of the machine an older file only means reading more again.
            temporary.write_text(content, encoding="ascii")
            temporary.replace(self._path)
        except OSError as error:
            self._unsaved = True
            self._complain(error)
            return
        if self.problem is not None:
            logger.warning("reading positions are saved again in %s", self._path)
        self._unsaved, self.problem = False, None

    def _complain(self, error: OSError) -> None:
        if self.problem is None:
            self.problem = (
                f"cannot keep reading positions in {self._path}: {error.strerror}; lines logged "
                "while the exporter is down will not count; make its directory writable, or set "
                "`state_file`"
            )
            logger.warning("%s", self.problem)


def _parse(content: bytes) -> dict[str, Position] | None:
    """The positions of a state file; `None` if it holds something else."""
    if len(content) > _MOST_BYTES:
        return None
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        return None
    positions = state.get("positions")
    if not isinstance(positions, dict):
        return None
    return {name: entry for name, entry in positions.items() if isinstance(entry, dict)}
