"""Looks back through the running launch of a server for what it said about itself.

Comes in: a reader of its own and where the live reader stands. Goes out: the wanted lines from the
launch's first entry to "fired up", marked `facts_only`. It never passes the live reader's place,
so no line is delivered twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from exporter.records import LogLine
from exporter.sources.journal.entries import (
    SCHEDULER_TITLE,
    EntryDecoder,
    EntryReader,
    JournalMatch,
    MatchField,
    field_or_none,
)
from exporter.sources.journal.position import ReadTo

FIRED_UP = b"fired up and ready to roll"
SERVER_ARGS = b"server_args="
MAX_ENTRIES = 50_000
MAX_SECONDS = 0.3
ENTRIES_A_TURN = 500


async def look_back(
    reader: EntryReader,
    match: JournalMatch,
    read_to: ReadTo,
    decoder: EntryDecoder,
    monotonic: Callable[[], float],
) -> list[LogLine]:
    """The wanted lines of the running launch's start, oldest first; empty if it cannot be found.

    Args:
        reader: Matches the server's entries already; it is moved and narrowed.
        match: Which entries are the server's.
        read_to: Where the live reader stands.
        decoder: One that counts nowhere.
        monotonic: Clock for the bound.

    Raises:
        OSError: The journal cannot be read.
    """
    budget = _Budget(monotonic)
    if read_to.cursor is None:
        reader.seek_realtime(read_to.since_us)
    else:
        reader.seek_cursor(read_to.cursor)
    if not reader.previous_entry():
        return []
    end_us, end_cursor = reader.realtime_us(), reader.cursor()
    if not await _go_to_start(reader, match, budget):
        return []
    lines: list[LogLine] = []
    while await budget.allows() and reader.realtime_us() <= end_us:
        # A damaged entry tells no fact; the live reader counts it.
        with contextlib.suppress(OSError):
            if (line := decoder.decode(reader, facts_only=True)) is not None:
                lines.append(line)
        is_over = FIRED_UP in (field_or_none(reader, "MESSAGE") or b"")
        if is_over or reader.test_cursor(end_cursor) or not reader.next_entry():
            break
    return lines


class _Budget:
    """Bounds what looking back may cost, and lets others have their turn."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._ends_at = monotonic() + MAX_SECONDS
        self._entries = 0

    async def allows(self) -> bool:
        self._entries += 1
        if self._entries % ENTRIES_A_TURN == 0:
            await asyncio.sleep(0)
        return self._entries <= MAX_ENTRIES and self._monotonic() < self._ends_at


async def _go_to_start(reader: EntryReader, match: JournalMatch, budget: _Budget) -> bool:
    """Brings the reader from the newest read entry to the first entry of the same launch."""
    in_container = match.field is MatchField.CONTAINER
    launch = "CONTAINER_ID_FULL" if in_container else "_SYSTEMD_INVOCATION_ID"
    value = field_or_none(reader, launch)
    if value is not None:
        reader.add_match(f"{launch}={value.decode(errors='replace')}")
    elif not await _narrow_to_main_process(reader, budget):
        return False
    # By the index of the match, however long ago that was; then all processes of the server again.
    reader.seek_head()
    if not reader.next_entry():
        return False
    cursor = reader.cursor()
    reader.flush_matches()
    reader.add_match(str(match))
    reader.seek_cursor(cursor)
    return reader.next_entry()


async def _narrow_to_main_process(reader: EntryReader, budget: _Budget) -> bool:
    """Matches the process that wrote the newest `server_args=` or "fired up", if it is near.

    Its first entries are then read, not these: a forged pair of later lines changes nothing.
    """
    while await budget.allows():
        message = field_or_none(reader, "MESSAGE") or b""
        if SERVER_ARGS in message or FIRED_UP in message:
            title = field_or_none(reader, "_CMDLINE") or b""
            boot, pid = field_or_none(reader, "_BOOT_ID"), field_or_none(reader, "_PID")
            if boot and pid and not title.startswith(SCHEDULER_TITLE.encode()):
                reader.add_match(f"_BOOT_ID={boot.decode()}", f"_PID={pid.decode()}")
                return True
        if not reader.previous_entry():
            break
    return False
