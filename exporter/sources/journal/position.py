"""Where a journal was read to, and how a reader is brought back there.

Seen with systemd 252: after `seek_cursor`, `next` goes to the entry itself if it still exists, else
to the first behind it, else nowhere; a cursor later than all entries ("from the future",
systemd#6213) makes `next` answer false for ever, new entries or not.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from exporter.sources import Position
from exporter.sources.journal.entries import EntryReader

_CURSOR = re.compile(
    r"s=[0-9a-f]{32};i=(?P<seqnum>[0-9a-f]{1,16});b=[0-9a-f]{32};m=[0-9a-f]{1,16};"
    r"t=(?P<realtime>[0-9a-f]{1,16});x=[0-9a-f]{1,16}"
)
MAX_NEIGHBORS = 64
MAX_ENTRIES = 500_000
"""As many are walked over at the most: half a second."""
ENTRIES_A_TURN = 2_000
"""About 1.5 ms: 0.6 µs an entry."""
QUIET_START_SLACK_US = 2_000_000
"""A line stamped just before an empty journal was opened may become readable just after."""


@dataclass(frozen=True, slots=True)
class ReadTo:
    """Everything up to an entry was read (`cursor`), or nothing yet.

    Then all since an instant is unread (`since_us`, microseconds since 1970; 0: everything).
    """

    cursor: str | None = None
    since_us: int = 0

    @property
    def realtime_us(self) -> int:
        """The instant behind which unread entries lie."""
        return cursor_part(self.cursor, "realtime") if self.cursor is not None else self.since_us

    def as_position(self) -> Position:
        """For the state file."""
        return {"since_us": self.since_us} if self.cursor is None else {"cursor": self.cursor}

    @classmethod
    def from_position(cls, position: Position) -> ReadTo:
        """What `as_position` made.

        Raises:
            ValueError: It is none of ours.
        """
        cursor, since_us = position.get("cursor"), position.get("since_us")
        if isinstance(cursor, str) and _CURSOR.fullmatch(cursor):
            return cls(cursor=cursor)
        if isinstance(since_us, int) and 0 <= since_us < 2**63:
            return cls(since_us=since_us)
        raise ValueError("neither a cursor nor an instant")


@dataclass(frozen=True, slots=True)
class Settled:
    """A reader is in place.

    Attributes:
        read_to: Where it stands now; differs from what was asked for when that is gone for good.
        lost: The entry it was to go on behind is gone, and unread ones perhaps with it.
        on_unread: It stands on an unread entry; otherwise the next one is the first unread.
    """

    read_to: ReadTo
    lost: bool = False
    on_unread: bool = False


def cursor_part(cursor: str, name: str) -> int:
    """A number inside a cursor: `seqnum` in its file, or `realtime` in microseconds."""
    found = _CURSOR.fullmatch(cursor)
    return int(found[name], 16) if found else 0


def settle(reader: EntryReader, read_to: ReadTo, now_us: int) -> Settled:
    """Brings a reader to the first entry behind what was read."""
    if read_to.cursor is None:
        if read_to.since_us == 0:
            reader.seek_head()
        else:
            reader.seek_realtime(read_to.since_us)
        return Settled(read_to)
    reader.seek_cursor(read_to.cursor)
    if not reader.next_entry():
        # Nothing at or behind it, or it is from the future: wait for what is newer, by time.
        since = ReadTo(since_us=min(read_to.realtime_us + 1, now_us))
        reader.seek_realtime(since.since_us)
        return Settled(since, lost=True)
    if reader.test_cursor(read_to.cursor) or _find_near(reader, read_to):
        return Settled(read_to)
    reader.seek_cursor(read_to.cursor)
    return Settled(read_to, lost=True, on_unread=reader.next_entry())


async def settle_from_head(reader: EntryReader, read_to: ReadTo, now_us: int) -> Settled | None:
    """As `settle`, by walking there: beyond damage, seeking finds less than reading on does.

    `None` if that would take too long; the reader is then at no particular place.
    """
    until_us = min(read_to.realtime_us, now_us)
    reader.seek_head()
    for count in range(MAX_ENTRIES):
        if not reader.next_entry():
            return Settled(read_to)
        at_us = reader.realtime_us()
        if at_us > until_us or (read_to.cursor is None and at_us == until_us):
            return Settled(read_to, on_unread=True)
        if count % ENTRIES_A_TURN == 0:
            await asyncio.sleep(0)
    return None


def settle_at_end(reader: EntryReader, now_us: int) -> ReadTo:
    """Brings a reader behind the newest entry: what comes from now on is unread."""
    reader.seek_tail()
    if reader.previous_entry():
        return ReadTo(cursor=reader.cursor())
    # Not seek_tail: from there `next` would go to the last of several new entries.
    quiet = ReadTo(since_us=now_us - QUIET_START_SLACK_US)
    settle(reader, quiet, now_us)
    return quiet


def _find_near(reader: EntryReader, read_to: ReadTo) -> bool:
    """Looks for the entry among its neighbors of the same instant (systemd#31516, #43297)."""
    assert read_to.cursor is not None  # noqa: S101 - narrows the type, the caller has checked
    at_us = read_to.realtime_us
    for _ in range(MAX_NEIGHBORS):
        if reader.realtime_us() > at_us or not reader.next_entry():
            break
        if reader.test_cursor(read_to.cursor):
            return True
    for _ in range(2 * MAX_NEIGHBORS):
        if reader.realtime_us() < at_us or not reader.previous_entry():
            break
        if reader.test_cursor(read_to.cursor):
            return True
    return False
