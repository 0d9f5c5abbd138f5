"""The newest accepted log lines, packed: blocks of compressed text, bounded in count and bytes.

In: accepted lines, each with the text that may be kept of it. Out: the same, in the order they
came. A flood drops the oldest.
"""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from exporter.recordings.encoding import kept_title
from exporter.records import LogLine

MOST_LINES = 100_000
MOST_BYTES = 4 << 20
"""All blocks together; 8 stages that print 50 lines a second fill a quarter of either."""
_BLOCK_BYTES = 128 << 10
_BLOCK_LINES = 4096
"""A block is closed at either, so that little text is held unpacked."""
_FAST = 1

Writer = tuple[str, int | None, str | None]
"""Who wrote a line: server, process and the scheduler's title."""


class LogBlock(NamedTuple):
    """Lines that came one after the other; never changed.

    Attributes:
        began_at: When the first came.
        ended_at: When the last came.
        times: What each says of its own time.
        authors: Index of each line's writer.
        lengths: Bytes of each text.
        packed: All texts, compressed.
    """

    began_at: float
    ended_at: float
    writers: tuple[Writer, ...]
    times: array[float]
    authors: array[int]
    lengths: array[int]
    packed: bytes

    @property
    def size(self) -> int:
        """Bytes it takes."""
        columns = (self.times, self.authors, self.lengths)
        return len(self.packed) + sum(len(each) * each.itemsize for each in columns)

    def lines(self, since: float) -> Iterator[tuple[LogLine, str]]:
        """The lines younger than an instant, each with its text."""
        text, first = zlib.decompress(self.packed), 0
        for at, author, length in zip(self.times, self.authors, self.lengths, strict=True):
            kept = text[first : first + length].decode()
            first += length
            if at > since:
                server, pid, title = self.writers[author]
                yield LogLine(server, at, kept, pid, title), kept


class _OpenBlock:
    """Lines of the block that still grows."""

    def __init__(self, began_at: float) -> None:
        self.began_at = self.ended_at = began_at
        self.size = 0
        self._writers: dict[Writer, int] = {}
        self.times = array("d")
        self._authors = array("H")
        self._lengths = array("I")
        self._texts: list[bytes] = []

    def add(self, line: LogLine, text: str, now: float) -> None:
        packed = text.encode("utf-8", "replace")
        writer = (line.server, line.pid, kept_title(line.title))
        self._authors.append(self._writers.setdefault(writer, len(self._writers)))
        self.times.append(line.logged_at)
        self._lengths.append(len(packed))
        self._texts.append(packed)
        self.size += len(packed)
        self.ended_at = max(self.ended_at, now)

    def closed(self) -> LogBlock:
        return LogBlock(
            self.began_at,
            self.ended_at,
            tuple(self._writers),
            self.times[:],
            self._authors[:],
            self._lengths[:],
            zlib.compress(b"".join(self._texts), _FAST),
        )


class RecentLog:
    """The newest lines.

    Attributes:
        dropped_at: When the newest line came that a flood has dropped; `None`: none was.
    """

    def __init__(self, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES) -> None:
        self.dropped_at: float | None = None
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._blocks: deque[LogBlock] = deque()
        self._lines = 0
        self._bytes = 0
        self._open: _OpenBlock | None = None

    def add(self, line: LogLine, text: str, now: float) -> None:
        """Takes an accepted line that came at `now`, and the text to keep of it."""
        if self._open is None:
            self._open = _OpenBlock(now)
        self._open.add(line, text, now)
        if self._open.size >= _BLOCK_BYTES or len(self._open.times) >= _BLOCK_LINES:
            self.pack()

    def pack(self) -> None:
        """Closes the block that grows; drops the oldest where there are too many lines."""
        if self._open is None:
            return
        block, self._open = self._open.closed(), None
        self._blocks.append(block)
        self._lines += len(block.times)
        self._bytes += block.size
        while self._lines > self._most_lines or self._bytes > self._most_bytes:
            self.dropped_at = self._drop().ended_at

    def forget(self, before: float) -> None:
        """Lets go of blocks that ended before an instant."""
        while self._blocks and self._blocks[0].ended_at < before:
            self._drop()

    def blocks(self) -> tuple[LogBlock, ...]:
        """All lines there are now."""
        self.pack()
        return tuple(self._blocks)

    def _drop(self) -> LogBlock:
        block = self._blocks.popleft()
        self._lines -= len(block.times)
        self._bytes -= block.size
        return block
