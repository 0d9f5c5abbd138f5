"""Puts the lines of a recording in time order, tolerating a second of disorder.

In: records with their place in time, as they stand in the file. Out: the same, oldest first. Keeps
no more than a second of them. A line whose clock was wrong costs only itself.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from exporter.recordings.format import LATENESS_SECONDS, TimedRecord, stamped
from exporter.records import Record

_LONGEST_LONE_GAP_SECONDS = 3600.0
"""How far the first and the last line may be from the rest, where nothing else speaks for them."""
_MOST_HELD_BYTES = 32 << 20
_RECORD_BYTES = 500
"""About what a record costs beside its text."""

Refuse = Callable[[int, Record, str], None]
"""Told of each record left out: line number, record, what is wrong."""


class _Entry(NamedTuple):
    at: float
    number: int
    record: Record
    size: int

    def __lt__(self, other: tuple[object, ...]) -> bool:
        # Line numbers differ, so records are never compared.
        return self[:2] < other[:2]


class TimeOrder:
    """Sorts records that arrive up to a second out of order.

    A record without a time of its own keeps its place between those around it.

    Attributes:
        first_at: Instant of the first record that was accepted; `None` before it.
    """

    def __init__(self, refuse: Refuse, created_at: float | None) -> None:
        self.first_at: float | None = None
        self._refuse = refuse
        self._created_at = created_at or 0.0
        self._newest_at = -math.inf
        self._waiting: list[_Entry] = []
        self._waiting_bytes = 0
        # A record far ahead, and the timeless ones read after it. It is believed when the next one
        # agrees: believed alone, one wrong clock would make everything after it late.
        self._doubted: list[_Entry] = []
        self._doubted_bytes = 0

    def add(self, number: int, found: TimedRecord, size: int) -> Iterator[tuple[float, Record]]:
        """Takes the record of a line; yields those that nothing can precede any more."""
        at = self._newest_at if found.at is None else found.at
        entry = _Entry(at, number, found.record, size + _RECORD_BYTES)
        if found.at is not None:
            self._add_timed(entry)
        elif self._doubted:
            self._doubt(entry)
        else:
            self._accept(entry)
        yield from self._release(self._newest_at - LATENESS_SECONDS)

    def finish(self) -> Iterator[tuple[float, Record]]:
        """Yields everything left."""
        if self._doubted:
            self._settle(self._is_plausible(self._doubted[0].at, self._newest_at))
        yield from self._release(math.inf)

    def _add_timed(self, entry: _Entry) -> None:
        if self._doubted and not self._is_no_witness(self._doubted[0].at, entry.at):
            self._settle(self._agree(self._doubted[0].at, entry.at))
        if self._doubted or entry.at < self._newest_at - LATENESS_SECONDS:
            self._refuse(entry.number, entry.record, "more than a second behind lines before it")
        elif entry.at > self._newest_at + LATENESS_SECONDS:
            self._doubt(entry)
        else:
            self._accept(entry)

    def _is_no_witness(self, doubted_at: float, next_at: float) -> bool:
        """Whether the next line is itself behind everything, and so says nothing of the doubted."""
        if math.isfinite(self._newest_at):
            return next_at < self._newest_at - LATENESS_SECONDS
        is_behind = next_at < doubted_at - LATENESS_SECONDS
        return is_behind and self._fits_header(doubted_at) and not self._fits_header(next_at)

    def _agree(self, doubted_at: float, next_at: float) -> bool:
        if next_at < doubted_at - LATENESS_SECONDS:
            return False
        # A line in the middle has the lines before it as witnesses, the first one only the header.
        return math.isfinite(self._newest_at) or self._is_plausible(doubted_at, next_at)

    def _is_plausible(self, lone_at: float, other_at: float) -> bool:
        if not math.isfinite(other_at) or self._fits_header(lone_at):
            return True
        return abs(lone_at - other_at) <= _LONGEST_LONE_GAP_SECONDS

    def _fits_header(self, at: float) -> bool:
        return abs(at - self._created_at) <= _LONGEST_LONE_GAP_SECONDS

    def _doubt(self, entry: _Entry) -> None:
        self._doubted.append(entry)
        self._doubted_bytes += entry.size
        if self._doubted_bytes > _MOST_HELD_BYTES:
            self._settle(believed=True)

    def _settle(self, believed: bool) -> None:
        (doubted, *timeless), self._doubted, self._doubted_bytes = self._doubted, [], 0
        if believed:
            self._accept(doubted)
        else:
            self._refuse(doubted.number, doubted.record, "far from the lines around it in time")
        for entry in timeless:
            self._accept(entry._replace(at=self._newest_at))

    def _accept(self, entry: _Entry) -> None:
        if self.first_at is None and math.isfinite(entry.at):
            self.first_at = entry.at
        self._newest_at = max(self._newest_at, entry.at)
        heapq.heappush(self._waiting, entry)
        self._waiting_bytes += entry.size

    def _release(self, until: float) -> Iterator[tuple[float, Record]]:
        while self._waiting and (
            self._waiting[0].at < until or self._waiting_bytes > _MOST_HELD_BYTES
        ):
            entry = heapq.heappop(self._waiting)
            self._waiting_bytes -= entry.size
            at = entry.at if math.isfinite(entry.at) else self.first_at
            at = self._created_at if at is None else at
            yield at, stamped(entry.record, at)
