"""Puts lines to be written in time order: each waits for those that belong before it.

In: the lines of records, as they come. Out: the same, oldest first, once nothing before them is
expected any more. Memory is bounded.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from exporter.recordings.encoding import Entry, line_of
from exporter.recordings.format import LATENESS_SECONDS

HOLD_SECONDS = 3.0
"""How long a line waits for others that belong before it; log and rings lag up to 2.3 s."""
_MOST_HELD_BYTES = 32 << 20
_UNDATED = frozenset({"server", "map", "gpu", "levels", "reference"})


class HeldLines:
    """The lines of one recording that wait to be written.

    Attributes:
        lines: Lines held so far.
        left_out: Records that came after lines more than a second younger were released, or that
            hold a number that is none.
    """

    def __init__(self, created_at: float) -> None:
        self.lines = 0
        self.left_out = 0
        self._created_at = created_at
        self._order = itertools.count()
        self._held: list[tuple[float, int, bytes]] = []
        self._held_bytes = 0
        self._released_to = 0.0

    def hold(self, entry: Entry, now: float) -> None:
        """Takes a line; one without a time of its own holds from `now`."""
        at, values = entry
        if at is None:
            at = now
        if values["type"] in _UNDATED:
            # Facts found by looking back are old news that holds from here on.
            at = max(at, now - HOLD_SECONDS, self._created_at, self._released_to)
        try:
            line = line_of(values)
        except ValueError:
            line = b""
        if not line or at < self._released_to - LATENESS_SECONDS:
            self.left_out += 1
            return
        heapq.heappush(self._held, (at, next(self._order), line))
        self._held_bytes += len(line)
        self.lines += 1

    def release(self, until: float) -> Iterator[bytes]:
        """Yields the lines up to an instant, oldest first; more where too much is held."""
        while self._held and (self._held[0][0] <= until or self._held_bytes > _MOST_HELD_BYTES):
            at, _, line = heapq.heappop(self._held)
            self._held_bytes -= len(line)
            self._released_to = max(self._released_to, at)
            yield line
