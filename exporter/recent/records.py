"""Keeps what reached the model during the newest ten minutes, and writes it when asked.

In: the records a tap sees. Out: recording format v1, compressed, piece by piece. Nothing is made
into text before somebody asks; of the log only what `record` would keep is held.
"""

from __future__ import annotations

import platform
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from exporter.recent.known import Known
from exporter.recent.log import LogBlock, RecentLog
from exporter.recent.samples import ClosedSamples, PackedSamples
from exporter.recordings.encoding import Entry, encode, encode_header, encode_log
from exporter.recordings.held_lines import HOLD_SECONDS, HeldLines
from exporter.records import (
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuLevels,
    GpusRemoved,
    GpuState,
    LoadEvent,
    LogLine,
    Record,
    RefusedLine,
    RingSamples,
    ServerFacts,
    ServerRemoved,
    StageMap,
    ThroughputReference,
    XidError,
)
from exporter.sglang_log import storable

MOST_SECONDS = 600
STRETCH_SECONDS = 10.0
"""What is packed together; each is written in one go, in a few hundredths of a second."""
_MOST_CHANGES = 2000
_GZIP = 31
_LEVEL = 6

_CHANGES = (
    ServerFacts,
    StageMap,
    GpuIdentity,
    GpuState,
    XidError,
    LoadEvent,
    ThroughputReference,
    ServerRemoved,
    GpusRemoved,
)


class _Piece(NamedTuple):
    """Records that came between two instants, and how to write them."""

    began_at: float
    ended_at: float
    entries: Callable[[float], Iterator[Entry]]


class RecentRecords:
    """The newest ten minutes; about 3 MB for 8 GPUs and 50 lines a second."""

    def __init__(self, clock: Callable[[], float], log: RecentLog | None = None) -> None:
        """Begins empty; `clock` is that of the records, `log` an empty one of other bounds."""
        self._clock = clock
        self._known = Known()
        self._changes: deque[tuple[float, Record]] = deque()
        self._stretches: deque[ClosedSamples] = deque()
        self._stretch_ends_at = 0.0
        self._newest: PackedSamples | None = None
        self._log = RecentLog() if log is None else log

    def keep(self, made: Record, line: LogLine | None) -> None:
        """Takes what reached the model; the line it was read from, where there is one."""
        now = self._clock()
        newest = self._newest
        if newest is None or not newest.began_at <= now < self._stretch_ends_at:
            newest = self._begin_stretch(now)
        if line is not None and not line.facts_only and type(made) is not ServerFacts:
            if line.logged_at <= now - MOST_SECONDS or type(made) is RefusedLine:
                return  # an old log is read: nobody can ask for its lines
            if (text := storable(line.message)) is not None:
                self._log.add(line, text, now)
        elif isinstance(made, RingSamples | GpmWindow | GpuGauges):
            newest.add(made, now)
        elif isinstance(made, _CHANGES):
            self._changes.append((now, made))

    def recording(self, seconds: float, levels: Iterable[GpuLevels]) -> RecentRecording:
        """The newest seconds as they are now; `levels`: what was learned of the cards' levels."""
        now = self._clock()
        since = now - seconds
        known, changes = self._known.copy(), []
        for at, record in self._changes:
            if at <= since:
                known.fold(record)
            else:
                changes.append((at, record))
        stretches = [*self._stretches, *([self._newest.closed()] if self._newest else [])]
        dropped_at = self._log.dropped_at
        note = f"the newest {seconds:g} s of a running exporter"
        if dropped_at is not None and dropped_at > since:
            note += f"; too many log lines: those of its first {dropped_at - since:.0f} s are gone"
        return RecentRecording(
            since,
            note,
            (*known.head(since), *levels),
            tuple(changes),
            tuple(stretch for stretch in stretches if stretch.ended_at > since),
            tuple(block for block in self._log.blocks() if block.ended_at > since),
        )

    def _begin_stretch(self, now: float) -> PackedSamples:
        if self._newest is not None:
            self._stretches.append(self._newest.closed())
        self._newest = PackedSamples(now)
        self._stretch_ends_at = now + STRETCH_SECONDS
        self._log.pack()
        self._forget(now - MOST_SECONDS)
        return self._newest

    def _forget(self, before: float) -> None:
        # A clock set back must not keep what it left in the future.
        most = MOST_SECONDS / STRETCH_SECONDS + 1
        while self._stretches and (
            self._stretches[0].ended_at < before or len(self._stretches) > most
        ):
            self._stretches.popleft()
        self._log.forget(before)
        while self._changes and (
            self._changes[0][0] < before or len(self._changes) > _MOST_CHANGES
        ):
            self._known.fold(self._changes.popleft()[1])


@dataclass(frozen=True, slots=True)
class RecentRecording:
    """A stretch of the past; nothing changes it, so any thread may write it."""

    since: float
    note: str
    head: tuple[Record, ...]
    changes: tuple[tuple[float, Record], ...]
    stretches: tuple[ClosedSamples, ...]
    blocks: tuple[LogBlock, ...]

    def compressed(self) -> Iterator[bytes]:
        """A whole file of format v1, in pieces; each takes a few hundredths of a second."""
        packer, held = zlib.compressobj(_LEVEL, wbits=_GZIP), HeldLines(self.since)
        yield packer.compress(encode_header(self.since, platform.node(), self.note))
        for entry in _encoded(self.head):
            held.hold(entry, self.since)
        pieces = sorted(self._pieces(), key=lambda piece: piece.ended_at)
        # Nothing is released that a piece still to come may precede.
        began = reversed(list(accumulate((p.began_at for p in reversed(pieces)), min)))
        releases = [*list(began)[1:], float("inf")]
        for piece, next_at in zip(pieces, releases, strict=False):
            for entry in piece.entries(self.since):
                held.hold(entry, piece.ended_at)
            yield packer.compress(b"".join(held.release(next_at - HOLD_SECONDS)))
        yield packer.compress(b"".join(held.release(float("inf")))) + packer.flush()

    def _pieces(self) -> Iterator[_Piece]:
        for stretch in self.stretches:
            yield _Piece(stretch.began_at, stretch.ended_at, _writes_samples(stretch))
        for block in self.blocks:
            yield _Piece(block.began_at, block.ended_at, _writes_log(block))
        for at, record in self.changes:
            yield _Piece(at, at, _writes((record,)))


def _encoded(records: Iterable[Record]) -> Iterator[Entry]:
    for record in records:
        yield from encode(record)


def _writes(records: Iterable[Record]) -> Callable[[float], Iterator[Entry]]:
    return lambda _since: _encoded(records)


def _writes_samples(stretch: ClosedSamples) -> Callable[[float], Iterator[Entry]]:
    return lambda since: _encoded(stretch.records(since))


def _writes_log(block: LogBlock) -> Callable[[float], Iterator[Entry]]:
    return lambda since: (encode_log(line, text) for line, text in block.lines(since))
