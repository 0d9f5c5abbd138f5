"""Learns what one GPU draws when it idles and when a resident kernel only waits.

In: slices. Out: the idle and the waiting level in watts, as far as the samples prove them. A level
is only believed where samples are pure, that is where the card stays in one state for longer than
a sample: then its draw is a narrow peak among the samples, and the utilization ring agrees with
the share of samples at and above it. Passes shorter than a sample make a peak too, in the middle
between waiting and working; nothing in one card's own signals tells such a mixture from lighter
work, so no working level is ever learned from a peak.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

from exporter.activity.slices import Slice

WAITING_RANGE_RATIO = 0.2
"""A kernel that only waits draws at most this share of the range from idle to the power limit: a
spin on every SM of an H200 draws 250 W, where it idles at 124 and is limited at 700, and NCCL
takes a quarter of the SMs at most: its receives waited at 0.3 to 54 W over idle (.00 to .09 of
the range), most while messages went back and forth. Decode of an 8B model draws over half of it."""
WORKING_EXCESS_RATIO = 2.0
"""Work draws at least so many times what waiting does, both over idle; 6 to 11 times beside NCCL."""
PASS_EXCESS_RATIO = 3.0
"""A peak lower than this many times waiting may be made by passes shorter than a sample."""
LONGEST_SAMPLE_SECONDS = 0.05
"""Longer samples average over so many passes and waits that hardly one is pure."""
STEADY_RATIO = 0.15
"""Two samples this close, against their height over the waiting level, show one state: a matrix
product on an H200 wanders by so much from sample to sample."""

_MEMORY_SAMPLES = 3000
"""The peaks speak of about so many samples: a minute of a ring of 20 ms."""
_KEPT_SLICES = 150
_RESOLVED_SLICES = 75
"""Whether passes are resolved is asked of these: the last 15 s."""
_LOOK_SECONDS = 2.0
_FEWEST_SAMPLES = 15
_FEWEST_SHARE = 0.01
_FEWEST_VISITS = 4
_SHARPNESS = 2.5
"""How much fuller than the background beside it a peak must be; a flat background gives 1."""
_SIGNIFICANCE = 4.0
"""By how many standard deviations of its own count it must overtop that background."""
_LEAST_IDLE = 0.05
_IDLE_TOLERANCE = 0.5
_LEAST_NOISE_WATTS = 2.0
_MOST_NOISE_WATTS = 8.0
_MAD_TO_DEVIATION = 1.48
_IDLE_STEP = 0.2
_RING_TOLERANCE = 0.22
_STEADY_RUN = 4
_LEAST_RESOLVED = 0.5
_LEAST_AGREEING = 0.7
_PEAK_REACH = 0.1


class _Peak(NamedTuple):
    watts: float
    samples: int


class LevelLearner:
    """Learns from slices in time order; a few thousand counters, looked at every other second.

    Attributes:
        power_limit_watts: The card's limit; `None` if not known, then the most it drew of late.
        idle_watts: Draw with no kernel resident; `None` while none was seen.
        waiting_watts: Draw of a resident kernel that waits; `None` while not proven.
        working_peaks: Narrow peaks above waiting, lowest first; they prove nothing by themselves.
        passes_resolved: Whether of late enough working samples lay inside a pass to measure the
            others by them; false where passes are shorter than a sample.
        noise_watts: Scatter of samples of a steady state (standard deviation).
    """

    def __init__(self, power_limit_watts: float | None = None) -> None:
        self.power_limit_watts = power_limit_watts
        self.idle_watts: float | None = None
        self.waiting_watts: float | None = None
        self.working_peaks: list[float] = []
        self.passes_resolved = False
        self.noise_watts = _LEAST_NOISE_WATTS
        self._counts: Counter[int] = Counter()
        self._total = 0
        self._looked_at: float | None = None
        self._slices: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=_KEPT_SLICES)
        self._denied_watts: float | None = None

    @property
    def rest_watts(self) -> float | None:
        """Below this a sample was idle rather than waiting; `None` while that is not known."""
        if self.idle_watts is None or self.waiting_watts is None:
            return None
        return (self.idle_watts + self.waiting_watts) / 2

    def observe_idle(self, slice_: Slice) -> None:
        """Takes the idle level from a slice in which no kernel was resident."""
        if slice_.resident_ratio > 0.0:
            return
        # A sample that reaches over the border may hold work of the slice beside it.
        watts = [
            piece.watts for piece in slice_.pieces if piece.seconds > 0.99 * piece.sample_seconds
        ]
        if not watts:
            return
        middle = statistics.median(watts)
        spread = _MAD_TO_DEVIATION * statistics.median(abs(value - middle) for value in watts)
        if self.idle_watts is None:
            self.idle_watts = middle
        self.idle_watts += _IDLE_STEP * (middle - self.idle_watts)
        bounded = min(max(spread, _LEAST_NOISE_WATTS), _MOST_NOISE_WATTS)
        self.noise_watts += _IDLE_STEP * (bounded - self.noise_watts)

    def observe(self, slice_: Slice) -> None:
        """Takes a slice; every other second, looks for the waiting level."""
        # A sample that a slice's border cuts counts where the larger part of it lies.
        watts = tuple(
            piece.watts
            for piece in slice_.pieces
            if LONGEST_SAMPLE_SECONDS >= piece.sample_seconds < 2 * piece.seconds
        )
        if not watts:
            return
        self._counts.update(map(round, watts))
        self._total += len(watts)
        self._slices.append((slice_.resident_ratio, watts))
        if self._looked_at is None or slice_.ended_at - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = slice_.ended_at
            self._look()

    def deny(self) -> None:
        """What was taken for waiting is work: neither that level nor one above it waits."""
        self._denied_watts = self.waiting_watts
        self.waiting_watts = None
        self.passes_resolved = False

    # --- looking -------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._total > _MEMORY_SAMPLES:
            self._counts = Counter({w: c // 2 for w, c in self._counts.items() if c > 1})
            self._total = sum(self._counts.values())
        peaks = self._peaks()
        if not peaks:
            return
        idle = self.idle_watts
        if idle is None and self._is_idle(peaks[0].watts):
            idle = peaks[0].watts
        if idle is None:
            return
        for peak in peaks:
            if self._is_waiting(peak, idle):
                # Only together with a waiting level above it is a lowest peak known to be idle.
                self.waiting_watts, self.idle_watts = peak.watts, idle
                break
        if self.waiting_watts is None:
            return
        excess = max(self.waiting_watts - idle, 2 * self.noise_watts)
        least = idle + PASS_EXCESS_RATIO * excess
        self.working_peaks = [peak.watts for peak in peaks if peak.watts > least]
        self.passes_resolved = self._are_passes_resolved(self.waiting_watts)

    def _peaks(self) -> list[_Peak]:
        """Narrow peaks among the samples, lowest first."""
        unit = max(1, round(1.5 * self.noise_watts))
        margin = 3 * unit + 2
        counts = self._counts
        lowest, highest = min(counts, default=0), max(counts, default=0)
        every = range(lowest - margin, highest + margin + 1)
        dense = [0] * len(every)
        for watts, count in counts.items():
            dense[watts - every[0]] = count
        before = [0, *accumulate(dense)]
        peaks: list[_Peak] = []
        fewest = max(_FEWEST_SAMPLES, _FEWEST_SHARE * self._total)
        for at in range(margin, margin + highest - lowest + 1):
            near = before[at + unit + 1] - before[at - unit]
            if near < fewest:
                continue
            left = before[at - unit] - before[at - 3 * unit - 1]
            right = before[at + 3 * unit + 2] - before[at + unit + 1]
            beside = max(left, right)
            if near < _SHARPNESS * beside or near - beside < _SIGNIFICANCE * math.sqrt(near):
                continue
            inside = range(every[at] - unit, every[at] + unit + 1)
            mean = sum(watts * counts[watts] for watts in inside) / near
            if not peaks or mean - peaks[-1].watts > 2 * unit:
                peaks.append(_Peak(mean, near))
            elif near > peaks[-1].samples:
                peaks[-1] = _Peak(mean, near)
        return peaks

    def _is_idle(self, watts: float) -> bool:
        """Whether the ring shows as much idleness as samples at this level, the lowest peak."""
        high = watts + 2 * self.noise_watts
        samples = idle = below = 0.0
        for resident, values in self._slices:
            samples += len(values)
            idle += len(values) * (1.0 - resident)
            below += sum(map(high.__ge__, values))
        return idle >= _LEAST_IDLE * samples and abs(below - idle) <= _IDLE_TOLERANCE * idle

    def _is_waiting(self, peak: _Peak, idle: float) -> bool:
        noise = self.noise_watts
        if peak.watts - idle < 2 * noise:
            return False
        if self._denied_watts is not None and peak.watts > self._denied_watts - 4 * noise:
            return False
        excess = peak.watts - idle
        top = self.power_limit_watts or max(self._counts)
        most = WAITING_RANGE_RATIO * (top - idle)
        if self.waiting_watts is not None:
            # Light work is not waiting, though the peak of waiting may hide beside that of idle.
            most = min(most, PASS_EXCESS_RATIO * max(self.waiting_watts - idle, 2 * noise))
        if excess > most:
            return False
        works_from = idle + WORKING_EXCESS_RATIO * excess
        if sum(c for watts, c in self._counts.items() if watts > works_from) < _FEWEST_SAMPLES:
            return False
        if self.waiting_watts is not None and abs(peak.watts - self.waiting_watts) < 2 * noise:
            return True  # proven before; it drifts
        return self._visits(peak.watts) >= _FEWEST_VISITS and self._ring_agrees(idle, peak.watts)

    def _visits(self, watts: float) -> int:
        """How many separate times the samples of late stayed at a level, or went up from or to it.

        A sample that overtops both its neighbors is no visit: a pass shorter than it does that.
        """
        low, high = watts - 2 * self.noise_watts, watts + 2 * self.noise_watts
        visits, was_there, before = 0, False, 0.0
        for _, samples in self._slices:
            for sample in samples:
                # Of two neighbors that are not below, one at least is at the level.
                stays = before >= low and sample >= low and (before <= high or sample <= high)
                visits += stays and not was_there
                was_there = stays
                before = sample
        return visits

    def _ring_agrees(self, idle: float, waiting: float) -> bool:
        """Whether the samples from the peak up are resident and those below are not."""
        errors = shares = 0.0
        for resident, watts in self._slices:
            above = sum(min(max((w - idle) / (waiting - idle), 0.0), 1.0) for w in watts)
            errors += abs(above / len(watts) - resident)
            shares += resident
        return errors <= _RING_TOLERANCE * shares

    def _are_passes_resolved(self, waiting: float) -> bool:
        """Whether most stretches over the waiting level show the level of the pass they hold."""
        least = waiting + 4 * self.noise_watts
        reach = 2 * self.noise_watts
        peaks = [(p, max(reach, _PEAK_REACH * (p - waiting))) for p in self.working_peaks]
        stretch: list[float] = []
        stretches = clear = pairs = agreeing = 0
        for _, samples in islice(self._slices, max(len(self._slices) - _RESOLVED_SLICES, 0), None):
            for sample in samples:
                if sample > least:
                    stretch.append(sample)
                elif stretch:
                    stretches += 1
                    clear += _shows_level(stretch, waiting, peaks)
                    for before, after in pairwise(stretch[1:-1]):
                        pairs += 1
                        agreeing += abs(after - before) <= STEADY_RATIO * (before - waiting)
                    stretch.clear()
        if pairs >= _FEWEST_SAMPLES and agreeing < _LEAST_AGREEING * pairs:
            return False  # inside a pass the draw wanders; across passes and waits it jumps
        return clear >= max(_FEWEST_VISITS, _LEAST_RESOLVED * stretches)


def _shows_level(stretch: list[float], waiting: float, peaks: list[tuple[float, float]]) -> bool:
    """Whether a stretch over the waiting level holds a sample that lies inside a pass.

    It has a steady run, or its top is one of the levels seen often. A sample alone proves nothing:
    the borders of a pass as long as a sample cut it in two, and what stands between two waits is
    shorter, at a height that only looks like a level.
    """
    if len(stretch) < 2:
        return False
    top, run = stretch[0], 1
    for before, sample in pairwise(stretch):
        top = max(top, sample)
        run = run + 1 if abs(sample - before) <= STEADY_RATIO * (before - waiting) else 1
        if run >= _STEADY_RUN:
            return True
    return any(abs(top - peak) <= reach for peak, reach in peaks)
