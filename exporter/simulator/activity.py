"""What one card really does over time: its passes and waits, cut into the driver's windows."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

POWER_SECONDS = 0.02
UTILIZATION_SECONDS = 0.2
GRID_SECONDS = 0.1
UTILIZATION_KEPT = 71
POWER_KEPT = 119
# A pass is worked out through all stages at once, so a late stage's windows can lie seconds ahead.
_AHEAD_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class CardLevels:
    """Power and activity of one card by what it does; activities are shares of its SMs or DRAM."""

    idle_watts: float = 80.0
    waiting_watts: float = 116.0
    decode_watts: float = 280.0
    prefill_watts: float = 470.0
    waiting_sm: float = 0.07
    decode_sm: float = 0.62
    prefill_sm: float = 0.93
    decode_dram: float = 0.57
    prefill_dram: float = 0.21
    decode_tensor: float = 0.08
    prefill_tensor: float = 0.62

    def varied(self, rng: random.Random) -> CardLevels:
        """The same card as it differs from the next one: watts by up to 4 %."""
        ratio = rng.uniform(0.96, 1.04)
        return CardLevels(
            idle_watts=self.idle_watts * rng.uniform(0.97, 1.03),
            waiting_watts=self.waiting_watts * ratio,
            decode_watts=self.decode_watts * ratio,
            prefill_watts=self.prefill_watts * ratio,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds since the start of the simulation, by what the card did; idle is the rest."""

    at: float
    decode: float
    prefill: float
    waiting: float
    joules: float

    @property
    def working(self) -> float:
        """Seconds in which a kernel that does work ran."""
        return self.decode + self.prefill


class CardActivity:
    """Sums up one card's time and closes the driver's windows as it passes them.

    `run` must be called in time order; the time between two passes is idle but for the part in
    which the receive kernel of the next one waits.
    """

    def __init__(
        self, started_at: float, rng: random.Random, levels: CardLevels, kept_seconds: float = 120.0
    ) -> None:
        self.levels = levels
        self.utilization: deque[tuple[float, float]] = deque(
            maxlen=_kept(UTILIZATION_SECONDS, UTILIZATION_KEPT)
        )
        self.power: deque[tuple[float, float]] = deque(maxlen=_kept(POWER_SECONDS, POWER_KEPT))
        self.grid: deque[Totals] = deque(maxlen=_kept(GRID_SECONDS, int(kept_seconds * 10)))
        self._rng = rng
        self._started_at = started_at
        self._at = started_at
        self._decode = self._prefill = self._waiting = self._joules = 0.0
        self._power_from = self._utilization_from = (started_at, 0.0, 0.0, 0.0)
        self._power_due = started_at + POWER_SECONDS * rng.random()
        self._utilization_due = started_at + UTILIZATION_SECONDS * rng.random()
        self.grid.append(Totals(started_at, 0.0, 0.0, 0.0, 0.0))
        self._grid_count = 1
        self._grid_due = started_at + GRID_SECONDS
        self._due = started_at

    def run(
        self,
        posted_at: float,
        arrived_at: float,
        start: float,
        end: float,
        share: float,
        prefill: bool,
    ) -> None:
        """Adds one pass that worked `share` of [start, end), and the gap before it.

        A receive kernel was resident from `posted_at` (or the end of the pass before) until
        `arrived_at`.
        """
        self.wait(posted_at, arrived_at)
        self.idle_until(start)
        if prefill:
            self._extend(end, 0.0, share, 0.0)
        else:
            self._extend(end, share, 0.0, 0.0)

    def wait(self, posted_at: float, to: float) -> None:
        """Adds a receive kernel that waits until `to` at least."""
        self.idle_until(posted_at)
        if to > self._at:
            self._extend(to, 0.0, 0.0, 1.0)

    def idle_until(self, at: float) -> None:
        """Closes the time up to `at`, in which no further pass began."""
        if at > self._at:
            self._extend(at, 0.0, 0.0, 0.0)

    def sleep_until(self, at: float) -> None:
        """Jumps to `at`: idle, and the driver took no samples."""
        if at <= self._at:
            return
        self._at = at
        self.grid.append(Totals(at, self._decode, self._prefill, self._waiting, self._joules))
        self._power_from = self._utilization_from = (
            at,
            self._decode,
            self._prefill,
            self._waiting,
        )
        self._power_due = at + POWER_SECONDS
        self._utilization_due = at + UTILIZATION_SECONDS
        self._grid_count = int((at - self._started_at) / GRID_SECONDS) + 1
        self._grid_due = self._started_at + self._grid_count * GRID_SECONDS
        self._due = min(self._power_due, self._utilization_due, self._grid_due)

    def totals(self, at: float) -> Totals:
        """The sums at an instant of the kept past, interpolated between points 0.1 s apart."""
        index = bisect_right(self.grid, at, key=lambda totals: totals.at)
        earlier = self.grid[max(index - 1, 0)]
        if index >= len(self.grid) or at <= earlier.at:
            return earlier
        later = self.grid[index]
        share = (at - earlier.at) / (later.at - earlier.at)
        return Totals(
            at,
            earlier.decode + share * (later.decode - earlier.decode),
            earlier.prefill + share * (later.prefill - earlier.prefill),
            earlier.waiting + share * (later.waiting - earlier.waiting),
            earlier.joules + share * (later.joules - earlier.joules),
        )

    def _extend(self, to: float, decode: float, prefill: float, waiting: float) -> None:
        while self._due <= to:
            self._add(self._due, decode, prefill, waiting)
            self._close_windows()
        self._add(to, decode, prefill, waiting)

    def _add(self, to: float, decode: float, prefill: float, waiting: float) -> None:
        seconds = to - self._at
        self._at = to
        self._decode += decode * seconds
        self._prefill += prefill * seconds
        self._waiting += waiting * seconds

    def _close_windows(self) -> None:
        if self._power_due <= self._at:
            self._close_power()
        if self._utilization_due <= self._at:
            start, decode, prefill, waiting = self._utilization_from
            resident = self._decode + self._prefill + self._waiting - decode - prefill - waiting
            # The very first window is cut short by the card's phase: the driver has no such sample.
            if start > self._started_at:
                share = round(resident / (self._at - start), 2)
                self.utilization.append((self._at, min(share, 1.0)))
            self._utilization_from = (self._at, self._decode, self._prefill, self._waiting)
            self._utilization_due = self._at + UTILIZATION_SECONDS
        if self._grid_due <= self._at:
            self.grid.append(
                Totals(self._at, self._decode, self._prefill, self._waiting, self._joules)
            )
            self._grid_count += 1
            self._grid_due = self._started_at + self._grid_count * GRID_SECONDS
        self._due = min(self._power_due, self._utilization_due, self._grid_due)

    def _close_power(self) -> None:
        start, decode, prefill, waiting = self._power_from
        seconds = self._at - start
        if seconds > 0.0:
            watts = self._watts(
                (self._decode - decode) / seconds,
                (self._prefill - prefill) / seconds,
                (self._waiting - waiting) / seconds,
            )
            if start > self._started_at:
                self.power.append((self._at, watts))
            self._joules += watts * seconds
        self._power_from = (self._at, self._decode, self._prefill, self._waiting)
        # Measured spacing of the real ring: 18 to 22 ms.
        self._power_due = self._at + POWER_SECONDS * (0.95 + 0.1 * self._rng.random())

    def _watts(self, decode: float, prefill: float, waiting: float) -> float:
        levels = self.levels
        # A warm card leaks more: 2 % over the first minutes.
        elapsed = self._at - self._started_at
        warmth = 1.0 + 0.02 * elapsed / (elapsed + 60.0)
        watts = (
            levels.idle_watts
            + (levels.decode_watts * warmth - levels.idle_watts) * decode
            + (levels.prefill_watts * warmth - levels.idle_watts) * prefill
            + (levels.waiting_watts - levels.idle_watts) * waiting
        )
        return round(watts + self._rng.uniform(-4.0, 4.0), 1)


def _kept(spacing_seconds: float, samples: int) -> int:
    return samples + int(_AHEAD_SECONDS / spacing_seconds)
