"""Follows log files by glob, and standard input: the same records as from the journal.

Comes in: text lines, plain or wrapped by a container runtime. Goes out: wanted lines as `LogLine`s
without PID and title, which text cannot vouch for. Files are looked at five times a second; 100 idle
ones cost 0.6 % of a core (measured).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence

from exporter.records import LogLine, SourceHealth, SourceUnavailableError
from exporter.sources import Emit, IsWanted, Position
from exporter.sources.files.container_log import ContainerLog, LineSplitter, UnwrappedLine
from exporter.sources.files.file_set import FileSet
from exporter.sources.files.followed_file import Bookmark, FollowedFile
from exporter.sources.files.text_lines import TextLines

POLL_SECONDS = 0.2
SCAN_SECONDS = 1.0
BYTES_A_TURN = 65536
"""About 300 lines of a scheduler."""
FACTS_BYTES = 1 << 20
FIRED_UP = b"fired up and ready to roll"
NO_MATCH_YET = "no file matches "

_log = logging.getLogger(__name__)


class FilesSource:
    """Emits the wanted lines of all files that match, each once across restarts and rotations.

    Args:
        server: Name in the records and in `health.name`.
        patterns: Globs, `**` included. A file that appears later is read from its start.
        is_wanted: Whether a line deserves to become a record.
        from_start: With no saved position, read the files that exist from their start, too.
        clock: Wall clock, seconds since 1970: the time of lines that carry none.
        monotonic: Clock for pauses.
    """

    def __init__(
        self,
        server: str,
        patterns: Sequence[str],
        is_wanted: IsWanted,
        *,
        from_start: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.health = SourceHealth(name=f"files:{server}")
        self._server = server
        self._patterns = tuple(patterns)
        self._is_wanted = is_wanted
        self._from_start = from_start
        self._clock = clock
        self._monotonic = monotonic
        self._lines = TextLines(server, is_wanted, self.health, clock)
        self._files = FileSet(patterns, self._lost, monotonic)
        self._facts: list[LogLine] | None = None
        self._is_open = False
        self._scanned_at = 0.0

    async def open(self, position: Position | None) -> None:
        """Begins behind a saved position; without one at the end of the files that exist.

        Raises:
            SourceUnavailableError: Files match, and none of them may be read.
        """
        await self.close()
        self._scan(from_start=self._from_start if position is None else self._resume(position))
        if not len(self._files):
            if self._files.refusal is not None:
                raise SourceUnavailableError(self._files.refusal)
            self.health.last_error = (
                f"{NO_MATCH_YET}{' '.join(self._patterns)} yet: is the path right?"
            )
        if self._facts is None:
            self._facts = self._facts_so_far()
        self._is_open = self.health.up = True

    async def run(self, emit: Emit) -> None:
        """Emits lines until canceled: first those that only carry facts.

        Raises:
            SourceUnavailableError: It is not open.
        """
        if not self._is_open:
            raise SourceUnavailableError(f"{self.health.name} is not open")
        facts, self._facts = self._facts or [], []
        for line in facts:
            emit(line)
        try:
            while True:
                is_behind = self._read_some(emit)
                if self._files.has_moved or self._monotonic() - self._scanned_at >= SCAN_SECONDS:
                    self._scan(from_start=True)
                await asyncio.sleep(0 if is_behind else POLL_SECONDS)
        finally:
            self.health.up = False

    def position(self) -> Position | None:
        """Behind the last whole line of each file; `None` before the first `open`."""
        if not self._is_open:
            return None
        return {
            "patterns": list(self._patterns),
            "files": [bookmark.as_json() for bookmark in self._files.bookmarks()],
        }

    async def close(self) -> None:
        """Closes the files; may be called twice."""
        self._files.close()
        self._is_open = self.health.up = False

    def _resume(self, position: Position) -> bool:
        """Takes up what was followed; returns whether a file not followed is wholly unread."""
        try:
            bookmarks = [Bookmark.from_json(entry) for entry in position["files"]]
        except (KeyError, TypeError, ValueError):
            self._lost("the saved position is unusable: reading from now")
            return False
        # With other globs, files match that were there all the time, and some match no more.
        is_same = position.get("patterns") == list(self._patterns)
        for bookmark in bookmarks:
            if is_same or self._files.matches(bookmark.path):
                self._files.take_up(bookmark)
        return is_same

    def _scan(self, *, from_start: bool) -> None:
        self._scanned_at = self._monotonic()
        self._files.scan(from_start=from_start)
        if self._files.refusal is not None:
            self.health.last_error = self._files.refusal
        elif len(self._files) and (self.health.last_error or "").startswith(NO_MATCH_YET):
            self.health.last_error = None

    def _read_some(self, emit: Emit) -> bool:
        """Reads a piece of each file; returns whether there is more to read."""
        is_behind = False
        for file in self._files.to_read():
            for line in file.read(BYTES_A_TURN):
                record = self._lines.record(line)
                if record is not None:
                    emit(record)
            is_behind = is_behind or file.has_unread()
            if file.retired_at is not None and is_behind:
                return True  # The old file to its end, then its successor.
        return is_behind

    def _facts_so_far(self) -> list[LogLine]:
        """What the newest file's beginning says about the server, up to where reading begins."""
        newest = self._files.newest()
        if newest is None or newest.offset == 0:
            return []
        uncounted = SourceHealth(name=self.health.name)
        lines = TextLines(self._server, self._is_wanted, uncounted, self._clock)
        try:
            beginning = FollowedFile(newest.path)
        except (OSError, ValueError):
            return []
        facts = []
        for line in beginning.read(min(FACTS_BYTES, newest.offset)):
            record = lines.record(line, facts_only=True)
            if record is not None:
                facts.append(record)
            if FIRED_UP in line.message:
                break
        beginning.close()
        return facts

    def _lost(self, what: str) -> None:
        self.health.gaps += 1
        self.health.last_error = f"{self.health.name}: {what}"
        _log.warning("lost log lines: source=%s", self.health.name)


class StdinSource:
    """Emits the wanted lines of standard input; ends when it ends, and cannot be resumed.

    Args:
        server: Name in the records and in `health.name`.
        is_wanted: Whether a line deserves to become a record.
        descriptor: What to read; `None`: standard input.
        clock: Wall clock, seconds since 1970: the time of lines that carry none.
    """

    def __init__(
        self,
        server: str,
        is_wanted: IsWanted,
        *,
        descriptor: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.health = SourceHealth(name=f"stdin:{server}")
        self._lines = TextLines(server, is_wanted, self.health, clock)
        self._descriptor = descriptor
        self._splitter = LineSplitter()
        self._container_log = ContainerLog()

    async def open(self, position: Position | None) -> None:
        """Begins at the next line; a position is ignored.

        Raises:
            SourceUnavailableError: There is no standard input.
        """
        if self._descriptor is None:
            if sys.stdin is None:
                raise SourceUnavailableError("cannot read standard input: it is closed")
            self._descriptor = sys.stdin.fileno()
        self.health.up = True

    async def run(self, emit: Emit) -> None:
        """Emits lines until the input ends."""
        if self._descriptor is None:
            raise SourceUnavailableError(f"{self.health.name} is not open")
        try:
            while data := await _next_bytes(self._descriptor):
                self._take(data, emit)
                await asyncio.sleep(0)
        except OSError as error:
            raise SourceUnavailableError(f"cannot read standard input: {error}") from error
        finally:
            self.health.up = False

    def position(self) -> Position | None:
        """None: what was read is gone."""
        return None

    async def close(self) -> None:
        """Leaves standard input open; others may use it."""
        self.health.up = False

    def _take(self, data: bytes, emit: Emit) -> None:
        for _, text, is_whole in self._splitter.split(data):
            line = (
                self._container_log.unwrap(text)
                if is_whole
                else UnwrappedLine(text, None, is_whole=False)
            )
            record = None if line is None else self._lines.record(line)
            if record is not None:
                emit(record)


async def _next_bytes(descriptor: int) -> bytes:
    """The next bytes without blocking the loop; empty at the end."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, is_readable.set)
    except PermissionError:  # epoll takes no regular files, and they do not block
        return os.read(descriptor, BYTES_A_TURN)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, BYTES_A_TURN)
