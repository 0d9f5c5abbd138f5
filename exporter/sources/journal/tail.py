"""A journal reader that knows what was read, and stays there when files rotate, vanish or break."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from exporter.records import SourceHealth, SourceUnavailableError
from exporter.sources.journal.damage import DamageWatch
from exporter.sources.journal.entries import SUPPRESSED_MESSAGE_ID, EntryReader, JournalMatch
from exporter.sources.journal.position import ReadTo, settle, settle_at_end, settle_from_head

MAX_INVALIDATIONS_A_TURN = 8

_log = logging.getLogger(__name__)


class JournalTail:
    """The unread entries of one server; owned by one event loop, closing included.

    Args:
        match: Which entries; journald's own word about dropped messages comes with them.
        directory: Journal files to read; `None`: this machine's own journal.
        health: Where gaps are counted.
        clock: Wall clock, seconds since 1970.
        stand_on: Told the last read entry each time the reader was brought there.

    Attributes:
        read_to: What was read; `None` before the first `begin`.
    """

    def __init__(
        self,
        match: JournalMatch,
        directory: Path | None,
        health: SourceHealth,
        clock: Callable[[], float],
        stand_on: Callable[[EntryReader], None],
    ) -> None:
        self._read_to: ReadTo | None = None
        self._newest_cursor: str | None = None
        self._match = match
        self._directory = directory
        self._health = health
        self._clock = clock
        self._stand_on = stand_on
        self._reader: EntryReader | None = None
        self._on_unread = False
        self._damage: DamageWatch | None = None
        self._checked_us: int | None = None

    @property
    def read_to(self) -> ReadTo | None:
        """See the class; made when it is asked for, since every entry moves it."""
        if self._newest_cursor is not None:
            self.read_to = ReadTo(cursor=self._newest_cursor)
        return self._read_to

    @read_to.setter
    def read_to(self, read_to: ReadTo | None) -> None:
        self._read_to, self._newest_cursor = read_to, None

    @property
    def reader(self) -> EntryReader:
        """The open reader.

        Raises:
            SourceUnavailableError: It is not open.
        """
        if self._reader is None:
            raise SourceUnavailableError(f"the journal of {self._match.value} is not open")
        return self._reader

    async def begin(self, read_to: ReadTo | None) -> None:
        """Opens the journal behind what was read; `None`: behind its newest entry.

        Raises:
            SourceUnavailableError: It cannot be opened.
            OSError: It can, but not be read.
        """
        self.close()
        self._reader = open_another(self._match, self._directory)
        self._reader.add_disjunction()
        # Journald's own alone: anybody else may write its message id.
        self._reader.add_match(f"MESSAGE_ID={SUPPRESSED_MESSAGE_ID}", "_TRANSPORT=driver")
        if read_to is not None:
            if self._checked_us is None:
                self._checked_us = read_to.realtime_us
            await self._settle(read_to)
            return
        self.read_to = settle_at_end(self._reader, self._now_us())
        self._checked_us = self._now_us()
        if self.read_to.cursor is not None:
            self._stand_on(self._reader)

    async def reopen(self) -> None:
        """Opens it anew behind what was read. Raises as `begin`."""
        await self.begin(self.read_to)

    async def refresh(self) -> None:
        """Takes note of changed files; call after each wake-up, before reading on.

        Raises:
            OSError: The journal cannot be read; open it anew.
        """
        invalidate = _library().INVALIDATE
        is_invalid = False
        for _ in range(MAX_INVALIDATIONS_A_TURN):
            # Both halves of a rename must be seen before the reader is judged.
            if self.reader.process() != invalidate:
                break
            is_invalid = True
        if is_invalid and self.read_to is not None:
            await self._settle(self.read_to)

    def next_entry(self) -> bool:
        """Goes to the next unread entry; false if there is none now. Raises as `refresh`."""
        if self._on_unread:
            self._on_unread = False
            return True
        return self.reader.next_entry()

    def mark_read(self, cursor: str) -> None:
        """The entry of this cursor was read, and all before it."""
        self._newest_cursor = cursor

    def give_up_backlog(self) -> None:
        """Counts what is unread as lost; `reopen` then reads on from now."""
        self._count_gap()
        self.read_to = ReadTo(since_us=self._now_us())

    def close(self) -> None:
        """Closes the journal; may be called twice, from the loop's thread (python-systemd#143)."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    async def _settle(self, read_to: ReadTo) -> None:
        # Before anything is sought: a reader that seeks in a damaged file drops it for good.
        damaged = await self._newly_damaged(read_to)
        walked = None
        if damaged:
            walked = await settle_from_head(self.reader, read_to, self._now_us())
        settled = walked or settle(self.reader, read_to, self._now_us())
        self.read_to, self._on_unread = settled.read_to, settled.on_unread
        if settled.read_to.cursor is not None and not settled.on_unread:
            with contextlib.suppress(OSError):  # damaged: the next one is judged by itself
                self._stand_on(self.reader)
        if settled.lost or damaged:
            self._count_gap()

    async def _newly_damaged(self, read_to: ReadTo) -> int:
        if self._damage is None:
            self._damage = DamageWatch(_library().open_file, self._match)
        if self._checked_us is None:
            return 0
        try:
            files = list(_library().journal_files(self._directory))
        except OSError:
            return 0
        after_us, self._checked_us = self._checked_us, read_to.realtime_us
        return await self._damage.newly_damaged(files, after_us)

    def _count_gap(self) -> None:
        self._health.gaps += 1
        self._health.last_error = (
            f"entries of {self._match.value} were lost before they could be read: the journal was "
            "vacuumed or damaged (journald.conf: SystemMaxUse=, MaxRetentionSec=; "
            "journalctl --verify)"
        )
        _log.warning("lost journal entries: source=%s", self._health.name)

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)


def open_another(match: JournalMatch, directory: Path | None) -> EntryReader:
    """A reader of a server's entries, at no particular place; whoever opens it closes it.

    Raises:
        SourceUnavailableError: No libsystemd, no such directory, no permission.
    """
    reader: EntryReader = _library().open_journal(directory, match.value)
    reader.add_match(str(match))
    return reader


def _library() -> ModuleType:
    """The door to libsystemd, imported late: files and stdin work without it."""
    try:
        from exporter.sources.journal import reader  # noqa: PLC0415 - see above
    except ImportError as error:
        raise SourceUnavailableError(
            f"cannot read the journal: {error}; pip install systemd-python "
            "(to build it: apt install libsystemd-dev pkg-config gcc python3-dev)"
        ) from error
    return reader
