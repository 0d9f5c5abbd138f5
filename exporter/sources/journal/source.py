"""Follows the journal of one server by unit, container name or syslog identifier.

Comes in: journald's files. Goes out: wanted entries as `LogLine`s, and `SourceHealth`. One event
loop owns the reader (sd_journal objects are not thread-safe; closing one elsewhere crashes).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from exporter.records import LogLine, SourceHealth, SourceUnavailableError
from exporter.sources import Emit, IsWanted, Position
from exporter.sources.journal.entries import (
    EntryDecoder,
    EntryReader,
    JournalMatch,
    MatchField,
    TornEntryError,
)
from exporter.sources.journal.facts import look_back
from exporter.sources.journal.position import ReadTo
from exporter.sources.journal.reopening import QUIET_SECONDS, Reopening
from exporter.sources.journal.tail import JournalTail, open_another

__all__ = ["JournalMatch", "JournalSource", "MatchField"]

MAX_ENTRIES_A_TURN = 500
MAX_SECONDS_A_TURN = 0.02
ENTRIES_A_LOOK = 20
"""The clock is looked at after so many: half a millisecond of batch lines."""
GATHER_SECONDS = 0.1
"""A journal that had something new is not looked into before: waking up for each line of a busy
server costs more than reading it."""
WAKE_UP_SECONDS = 1.0
"""The journal is looked into this often even when inotify says nothing."""
RETRY_SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0)
NO_ENTRY_YET = "no entry of "

_log = logging.getLogger(__name__)


class JournalSource:
    """Emits the wanted journal entries of one server, each once across restarts.

    Args:
        server: Name in the records and in `health.name`.
        match: Which entries are the server's.
        is_wanted: Whether a message deserves to become a record.
        directory: Journal files to read; `None`: this machine's own journal.
        from_start: With no saved position, begin at the oldest entry instead of now.
        clock: Wall clock, seconds since 1970.
        monotonic: Clock for bounds and pauses.
        reopen_quiet_seconds: Pause after which a quiet journal is opened anew.
    """

    def __init__(  # noqa: PLR0913 - two clocks and a pause are there for tests
        self,
        server: str,
        match: JournalMatch,
        is_wanted: IsWanted,
        *,
        directory: Path | None = None,
        from_start: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        reopen_quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self.health = SourceHealth(name=f"journal:{server}")
        self._server = server
        self._match = match
        self._is_wanted = is_wanted
        self._directory = directory
        self._from_start = from_start
        self._clock = clock
        self._monotonic = monotonic
        self._reopening = Reopening(monotonic, reopen_quiet_seconds)
        self._decoder = EntryDecoder(server, match, is_wanted, self.health)
        self._tail = JournalTail(match, directory, self.health, clock, self._decoder.stand_on)
        self._facts: list[LogLine] = []
        self._wake = asyncio.Event()
        self._watched_fd: int | None = None
        self._must_reopen = False
        self._torn: str | None = None
        self._failures = 0

    async def open(self, position: Position | None) -> None:
        """Begins behind a saved position; without one at the newest entry, or at the oldest.

        Raises:
            SourceUnavailableError: No libsystemd, no such directory, no permission.
        """
        await self.close()
        is_first = self._tail.read_to is None
        read_to = self._saved(position)
        if position is None and self._from_start:
            read_to = ReadTo(since_us=0)
        try:
            await self._tail.begin(read_to)
            if is_first:
                self._facts = await self._facts_so_far()
        except OSError as error:
            await self.close()
            raise SourceUnavailableError(
                f"cannot read the journal of {self._match.value}: {error}; "
                "journalctl --verify names damaged files"
            ) from error
        if self._tail.read_to != ReadTo(since_us=0):
            self._hint_if_empty()
        self.health.up = True

    async def run(self, emit: Emit) -> None:
        """Emits entries until canceled: first those that only carry facts, then the unread ones.

        Raises:
            SourceUnavailableError: The journal broke and could not be opened again.
        """
        self._must_reopen = False
        facts, self._facts = self._facts, []
        for line in facts:
            emit(line)
        self._reopening.note_opened()
        try:
            while True:
                try:
                    await self._step(emit)
                except OSError as error:
                    await self._pause_after(error)
        finally:
            await self.close()

    def position(self) -> Position | None:
        """Behind the last entry read; `None` before the first `open`."""
        return self._tail.read_to.as_position() if self._tail.read_to is not None else None

    async def close(self) -> None:
        """Closes the journal; may be called twice, from the loop's thread."""
        self._unwatch()
        self._tail.close()
        self.health.up = False

    def _saved(self, position: Position | None) -> ReadTo | None:
        """A saved position, or `None` to read from now; one that is no position is a gap."""
        if position is None:
            return None
        try:
            return ReadTo.from_position(position)
        except ValueError as error:
            self.health.gaps += 1
            self.health.last_error = (
                f"the saved position of {self.health.name} is unusable ({error}): reading from now"
            )
            _log.warning("discarded a saved position: source=%s", self.health.name)
            return None

    async def _facts_so_far(self) -> list[LogLine]:
        read_to = self._tail.read_to
        if read_to is None or read_to == ReadTo(since_us=0):
            return []
        # A reader and counters of its own: the live ones are not disturbed.
        reader = open_another(self._match, self._directory)
        uncounted = SourceHealth(name=self.health.name)
        decoder = EntryDecoder(self._server, self._match, self._is_wanted, uncounted)
        try:
            return await look_back(reader, self._match, read_to, decoder, self._monotonic)
        finally:
            reader.close()

    def _is_empty(self) -> bool:
        """Whether no entry of the server was met yet, as far as is known."""
        read_to = self._tail.read_to
        return read_to is None or read_to.cursor is None

    def _hint_if_empty(self) -> None:
        """Most often the name is wrong; a server that never ran yet is no error, though."""
        if not self._is_empty() or self.health.lines or self.health.gaps:
            return
        where = {
            MatchField.UNIT: f"systemctl list-units '{self._match.value.split('.')[0]}*'",
            MatchField.CONTAINER: "docker ps; its log driver must be journald",
            MatchField.IDENTIFIER: "journalctl -F SYSLOG_IDENTIFIER",
        }
        self.health.last_error = (
            f"{NO_ENTRY_YET}{self._match.value} yet: is the name right? {where[self._match.field]}"
        )

    async def _step(self, emit: Emit) -> None:
        if self._must_reopen:
            await asyncio.sleep(0)
            await self._reopen()
        self._wake.clear()
        await self._tail.refresh()
        read, has_more = self._drain(emit)
        if has_more:
            await asyncio.sleep(0)
        elif self._reopening.is_due(is_empty=self._is_empty()):
            self._must_reopen = True
        elif read:
            self._unwatch()
            await asyncio.sleep(GATHER_SECONDS)
        else:
            self._watch()
            await self._wait()

    def _drain(self, emit: Emit) -> tuple[int, bool]:
        """Reads for a bounded time; returns how many entries, and whether there is more to read."""
        stop_at = self._monotonic() + MAX_SECONDS_A_TURN
        has_entry, count = self._tail.next_entry(), 0
        # Bound once: every entry pays for each step to them.
        reader, read_entry = self._tail.reader, self._read_entry
        next_entry = reader.next_entry
        try:
            while has_entry:
                count += 1
                read_entry(reader, emit)
                if count % ENTRIES_A_LOOK == 0 and self._is_turn_over(count, stop_at):
                    break
                has_entry = next_entry()
            return count, has_entry
        finally:
            if count:
                self._note_progress(count)

    def _is_turn_over(self, count: int, stop_at: float) -> bool:
        return count >= MAX_ENTRIES_A_TURN or self._monotonic() >= stop_at

    def _read_entry(self, reader: EntryReader, emit: Emit) -> None:
        try:
            line = self._decoder.decode(reader)
        except TornEntryError:
            if (cursor := reader.cursor()) != self._torn:
                self._torn = cursor
                raise  # the journal is opened anew, and the entry looked at once more
            self.health.gaps += 1
            self.health.lines += 1
            line = None
        except OSError:
            # A damaged entry: those behind it are read; opening anew would meet it for ever.
            self.health.gaps += 1
            return
        # Now, not at the end of the turn: if going on fails, this one is not read again. Behind a
        # damaged entry `next` may only say that there is none, and then the cursor is gone too.
        self._tail.mark_read(reader.cursor())
        if line is not None:
            emit(line)

    def _note_progress(self, count: int) -> None:
        self._failures = 0
        self._reopening.note_read(count)
        if self.health.last_error is not None and self.health.last_error.startswith(NO_ENTRY_YET):
            self.health.last_error = None
        try:
            age_seconds = self._clock() - self._tail.reader.realtime_us() / 1e6
        except OSError:
            return  # The file went away under the reader; what was emitted still holds.
        self.health.lag_seconds = max(0.0, age_seconds)

    async def _wait(self) -> None:
        """Until the journal changes, at most a second."""
        if self._is_empty():
            self._hint_if_empty()
        reader, timeout = self._tail.reader, WAKE_UP_SECONDS
        if not reader.reliable_fd():
            timeout = min(timeout, max(0, reader.get_timeout_ms()) / 1000)
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _pause_after(self, error: OSError) -> None:
        """EBADMSG, ESTALE, EADDRNOTAVAIL and the like: opens anew, ever more slowly."""
        pause = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
        self._failures += 1
        self.health.last_error = f"reading the journal of {self._match.value} failed: {error}"
        _log.warning("reopened the journal: source=%s error=%s", self.health.name, error)
        await asyncio.sleep(pause)
        if self._failures > len(RETRY_SECONDS):
            # The same place fails for ever (loki#4066).
            self._tail.give_up_backlog()
        self._must_reopen = True

    async def _reopen(self) -> None:
        self._unwatch()
        self._reopening.note_opened()
        await self._tail.reopen()
        self._must_reopen = False

    def _watch(self) -> None:
        if self._watched_fd is None:
            self._watched_fd = self._tail.reader.fileno()
            asyncio.get_running_loop().add_reader(self._watched_fd, self._wake.set)

    def _unwatch(self) -> None:
        if self._watched_fd is not None:
            asyncio.get_running_loop().remove_reader(self._watched_fd)
            self._watched_fd = None
