"""Finds journal files whose unread entries cannot all be read.

Seen with systemd 252: a damaged file is dropped from a reader in the middle of reading, or damaged
entries are stepped over, and nothing is said; the next entry is simply a later one. So the header's
own count is compared with the entries that can be reached, and those of the server among them with
what its index gives, from the front and from the back (it may be damaged alone). Where the index
gives as many as the header counts, that is all.
Header layout: systemd's JOURNAL_FILE_FORMAT, unchanged since 2012.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from exporter.sources.journal.entries import EntryReader, JournalMatch, field_or_none
from exporter.sources.journal.position import ENTRIES_A_TURN, MAX_ENTRIES

_HEADER = struct.Struct("<8s144xQ32xQ")
"""Signature, n_entries at 152, tail_entry_realtime at 192."""
_SIGNATURE = b"LPKSHHRH"
LOOK_AGAIN_SECONDS = 0.5
"""A file that is just being made, renamed or written can look damaged for a moment."""


@dataclass(frozen=True, slots=True)
class _Header:
    entries: int
    tail_realtime_us: int


class DamageWatch:
    """Remembers which damaged files were reported, so that each counts once."""

    def __init__(self, open_file: Callable[[Path], EntryReader], match: JournalMatch) -> None:
        self._open_file = open_file
        self._match = match
        self._reported: set[tuple[int, int]] = set()

    async def newly_damaged(self, files: Iterable[Path], after_us: int) -> int:
        """How many files hold entries newer than `after_us` of which some cannot be reached."""
        damaged = 0
        for path in files:
            try:
                status = path.stat()
                key = (status.st_dev, status.st_ino)
                if key in self._reported or status.st_mtime * 1e6 < after_us:
                    continue
                if await self._is_whole(path, after_us):
                    continue
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
                if path.stat().st_ino != status.st_ino or await self._is_whole(path, after_us):
                    continue
            except (FileNotFoundError, PermissionError):
                continue
            self._reported.add(key)
            damaged += 1
        return damaged

    async def _is_whole(self, path: Path, after_us: int) -> bool:
        header = _header(path)
        if header is None:
            return False
        if header.tail_realtime_us <= after_us:
            return True
        try:
            reader = self._open_file(path)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            return False
        try:
            return await self._reaches_all(reader, path, header.entries, after_us)
        except OSError:
            return False
        finally:
            reader.close()

    async def _reaches_all(
        self, reader: EntryReader, path: Path, entries: int, after_us: int
    ) -> bool:
        """Whether the index leads to every unread entry of the server, and all can be walked to."""
        reader.add_match(str(self._match))
        indexed = await _indexed(reader, after_us)
        if indexed is None:
            return False
        # The header as it is now: an entry written during the walk must not stand for a lost one.
        header = _header(path)
        if header is not None and indexed >= min(header.entries, MAX_ENTRIES):
            return True  # All are the server's and were met: none can be missing from the index.
        reader.flush_matches()
        reader.seek_head()
        reached, own = await self._reached(reader, after_us)
        if own > indexed:
            # Lost from the index, or written since it was walked.
            reader.add_match(str(self._match))
            indexed = await _indexed(reader, after_us) or 0
        return reached >= min(entries, MAX_ENTRIES) and own <= indexed

    async def _reached(self, reader: EntryReader, after_us: int) -> tuple[int, int]:
        """How many entries follow, up to a bound, and how many of them are unread and the server's.

        By their field, not by the index of their field, which may be damaged alone.
        """
        count = own = 0
        field, value = self._match.field, self._match.value.encode()
        while count < MAX_ENTRIES and reader.next_entry():
            count += 1
            if reader.realtime_us() > after_us:
                own += field_or_none(reader, field) == value
            if count % ENTRIES_A_TURN == 0:
                await asyncio.sleep(0)
        return count, own


async def _indexed(reader: EntryReader, after_us: int) -> int | None:
    """How many matching entries follow an instant, up to a bound.

    `None` if walking on does not get to the entry that is last when seen from the end.
    """
    reader.seek_tail()
    if not reader.previous_entry() or reader.realtime_us() <= after_us:
        return 0
    last = reader.cursor()
    reader.seek_realtime(after_us)
    count = await _walk(reader)
    # More entries than were walked, or one written since, are no damage.
    if count == MAX_ENTRIES or (count and (reader.test_cursor(last) or _holds(reader, last))):
        return count
    return None


async def _walk(reader: EntryReader) -> int:
    """How many entries follow, up to a bound."""
    next_entry = reader.next_entry
    for turn in range(0, MAX_ENTRIES, ENTRIES_A_TURN):
        for count in range(turn, turn + ENTRIES_A_TURN):
            if not next_entry():
                return count
        await asyncio.sleep(0)
    return MAX_ENTRIES


def _holds(reader: EntryReader, cursor: str) -> bool:
    """Whether an entry can be found again by stepping back a little: the file has just grown."""
    return any(reader.previous_entry() and reader.test_cursor(cursor) for _ in range(100))


def _header(path: Path) -> _Header | None:
    """What a file's header says of its entries; `None` if it is no journal file."""
    with path.open("rb") as file:
        data = file.read(_HEADER.size)
    if len(data) < _HEADER.size:
        return None
    signature, entries, tail_realtime_us = _HEADER.unpack(data)
    return _Header(entries, tail_realtime_us) if signature == _SIGNATURE else None
