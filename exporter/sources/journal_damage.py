"""Finds journal files whose unread entries cannot all be read.

libsystemd 252 drops a damaged file from a reader in the middle of reading and says nothing: the
next entry is simply one of another file (seen here; systemd 252, `remove_file_real`). So the file's
header, which names its last entry, is compared with what can be reached.
Header layout: systemd's JOURNAL_FILE_FORMAT, unchanged since 2012.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from exporter.sources.journal_entries import EntryReader
from exporter.sources.journal_position import cursor_part

_HEADER = struct.Struct("<8s152xQ24xQ")
"""Signature, tail_entry_seqnum at 160, tail_entry_realtime at 192."""
_SIGNATURE = b"LPKSHHRH"
MAX_ENTRIES = 500_000
ENTRIES_A_TURN = 2_000
SECOND_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Tail:
    seqnum: int
    realtime_us: int


class DamageWatch:
    """Remembers which damaged files were reported, so that each counts once."""

    def __init__(self, open_file: Callable[[Path], EntryReader]) -> None:
        self._open_file = open_file
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
                # An entry just being written is in the header before it can be reached.
                if await self._is_whole(path, after_us):
                    continue
                await asyncio.sleep(SECOND_LOOK_SECONDS)
                if await self._is_whole(path, after_us):
                    continue
            except (FileNotFoundError, PermissionError):
                continue
            self._reported.add(key)
            damaged += 1
        return damaged

    async def _is_whole(self, path: Path, after_us: int) -> bool:
        tail = _tail(path)
        if tail is None:
            return False
        if tail.realtime_us <= after_us or tail.seqnum == 0:
            return True
        try:
            reader = self._open_file(path)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            return False
        try:
            return await _reaches(reader, tail, after_us)
        except OSError:
            return False
        finally:
            reader.close()


async def _reaches(reader: EntryReader, tail: _Tail, after_us: int) -> bool:
    """Whether walking on from an instant gets to the last entry the header names."""
    reader.seek_realtime(after_us)
    for count in range(MAX_ENTRIES):
        if not reader.next_entry():
            return count > 0 and cursor_part(reader.cursor(), "seqnum") >= tail.seqnum
        if count % ENTRIES_A_TURN == ENTRIES_A_TURN - 1:
            await asyncio.sleep(0)
    return True


def _tail(path: Path) -> _Tail | None:
    """The last entry a file's header names; `None` if it is no journal file."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    signature, seqnum, realtime_us = _HEADER.unpack(header)
    return _Tail(seqnum, realtime_us) if signature == _SIGNATURE else None
