"""Lines up one GPU's signals: ring samples and GPM windows, whatever order they come in → slices.

A slice is one utilization window with the power samples inside it. Pure arithmetic over record
time; a gap in the utilization ring makes no slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from exporter.records import GpmWindow, RingSamples, Signal
from exporter.sample_rings import GAP_FACTOR

PATIENCE_SECONDS = 3.0
"""How long, in record time, a slice waits for a signal that lags. Power is drained once a second and
GPM lags a window and 0.11 s, so three seconds without news mean that the signal is absent."""

_MOST_SAMPLES = 16_384
"""More than any hold needs; a bound against records with one signal running ahead of the others."""


class Piece(NamedTuple):
    """One power sample, cut to its slice; `before` and `after` are its neighbors in the ring."""

    started_at: float
    ended_at: float
    watts: float
    before: float | None
    after: float | None
    sample_seconds: float
    """Length of the whole sample."""

    @property
    def seconds(self) -> float:
        """Length of the part inside the slice."""
        return self.ended_at - self.started_at


class Slice(NamedTuple):
    """One utilization window; `pieces` is empty unless power covers all of it."""

    started_at: float
    ended_at: float
    resident_ratio: float
    pieces: tuple[Piece, ...]

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended_at - self.started_at

    @property
    def resident_seconds(self) -> float:
        """Time in which a kernel was resident."""
        return (self.ended_at - self.started_at) * self.resident_ratio


class _Sample(NamedTuple):
    started_at: float
    ended_at: float
    value: float


class _Track:
    """One signal: how far it covers, and what of it was not used yet."""

    def __init__(self) -> None:
        self.samples: deque[_Sample] = deque(maxlen=_MOST_SAMPLES)
        self.ended_at: float | None = None

    def extend(self, record: RingSamples) -> None:
        """Adds ring samples; each covers the time since the one before, unless that is a gap."""
        nominal = record.nominal_seconds
        for taken_at, value in record.samples:
            start, last = taken_at - nominal, self.ended_at
            if last is not None:
                if taken_at <= last:
                    continue
                if taken_at - last < GAP_FACTOR * nominal or start < last:
                    start = last
            self.samples.append(_Sample(start, taken_at, value))
            self.ended_at = taken_at


class Alignment:
    """The signals of one GPU on their way to slices; bounded memory."""

    def __init__(self) -> None:
        self._utilization = _Track()
        self._power = _Track()
        self._gpm: deque[GpmWindow] = deque(maxlen=_MOST_SAMPLES)
        self._gpm_ended_at: float | None = None
        self._first_at: float | None = None
        self._now: float | None = None
        self._used = deque[_Sample](maxlen=64)
        self._last_watts: float | None = None
        self._last_watts_at = 0.0

    def add(self, record: RingSamples | GpmWindow) -> None:
        """Takes samples; those not newer than what came before of their signal are ignored."""
        if isinstance(record, GpmWindow):
            self._add_gpm(record)
            return
        if not record.samples or record.nominal_seconds <= 0.0:
            return
        track = self._utilization if record.signal is Signal.UTILIZATION else self._power
        track.extend(record)
        if track.ended_at is not None:
            self._advance(track.ended_at - record.nominal_seconds, track.ended_at)

    def _add_gpm(self, window: GpmWindow) -> None:
        last = self._gpm_ended_at
        if window.ended_at <= window.started_at or (last is not None and window.ended_at <= last):
            return
        self._gpm.append(window)
        self._gpm_ended_at = window.ended_at
        self._advance(window.started_at, window.ended_at)

    def _advance(self, first_at: float, now: float) -> None:
        if self._first_at is None:
            self._first_at = first_at
        self._now = now if self._now is None else max(self._now, now)

    @property
    def now(self) -> float:
        """End of the newest sample of any signal."""
        return self._now or 0.0

    @property
    def first_at(self) -> float:
        """Begin of the first sample of any signal."""
        return self._first_at or 0.0

    def next_slice(self, *, flush: bool = False) -> Slice | None:
        """The next slice for which every signal that is present has arrived.

        Args:
            flush: Nothing more will arrive: take what is there.
        """
        waiting = self._utilization.samples
        if not waiting or not (flush or self._is_complete(waiting[0].ended_at)):
            return None
        window = waiting.popleft()
        self._used.append(window)
        return Slice(*window, pieces=self._pieces(window))

    def _is_complete(self, until: float) -> bool:
        if self.now - until >= PATIENCE_SECONDS:
            return True
        return all(
            self._covers(ended_at, until) for ended_at in (self._power.ended_at, self._gpm_ended_at)
        )

    def _covers(self, ended_at: float | None, until: float) -> bool:
        """Whether a signal has arrived up to an instant, or is absent and need not be waited for."""
        if ended_at is None:
            return self.now - self.first_at >= PATIENCE_SECONDS
        return ended_at >= until or self.now - ended_at >= PATIENCE_SECONDS

    def _pieces(self, window: _Sample) -> tuple[Piece, ...]:
        """The power samples inside a window; none if they leave a part of it uncovered."""
        samples, pieces = self._power.samples, []
        first, last, _ = window
        before = self._before(first)
        covered = first
        while samples and samples[0].started_at < last:
            started_at, ended_at, watts = samples[0]
            if ended_at > first:
                after = samples[1] if len(samples) > 1 else None
                follows = after is not None and after.started_at <= ended_at
                start = started_at if started_at > first else first
                end = ended_at if ended_at < last else last
                if start > covered:
                    covered = -1.0  # a gap: this window has no usable power
                elif covered >= 0.0:
                    covered = end
                next_watts = after.value if after is not None and follows else None
                pieces.append(Piece(start, end, watts, before, next_watts, ended_at - started_at))
            if ended_at > last:
                break
            samples.popleft()
            before = self._last_watts = watts
            self._last_watts_at = ended_at
        return tuple(pieces) if covered >= last else ()

    def _before(self, at: float) -> float | None:
        # The sample across the border was left in the ring; its own neighbor is what was popped.
        return self._last_watts if at - self._last_watts_at < 1.0 else None

    def gpm_window(self, at: float) -> GpmWindow | None:
        """The GPM window that holds an instant; earlier ones are dropped."""
        while self._gpm and self._gpm[0].ended_at <= at:
            self._gpm.popleft()
        if self._gpm and self._gpm[0].started_at <= at:
            return self._gpm[0]
        return None

    def resident_ratio(self, started_at: float, ended_at: float) -> float | None:
        """Residency by the ring over a stretch just passed; `None` unless half of it is covered."""
        covered = resident = 0.0
        for sample in (*self._used, *islice(self._utilization.samples, 1)):
            overlap = min(ended_at, sample.ended_at) - max(started_at, sample.started_at)
            if overlap > 0.0:
                covered += overlap
                resident += overlap * sample.value
        return resident / covered if covered > 0.5 * (ended_at - started_at) else None


def following_at_once(slices: Sequence[Slice], index: int) -> list[Slice]:
    """The slices after that one, up to a hole in time."""
    found: list[Slice] = []
    ended_at = slices[index].ended_at
    for slice_ in slices[index + 1 :]:
        if slice_.started_at > ended_at:
            break
        found.append(slice_)
        ended_at = slice_.ended_at
    return found
