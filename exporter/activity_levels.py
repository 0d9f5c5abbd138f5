"""Learns what one GPU draws when it idles and when a resident kernel only waits.

In: slices. Out: the idle and the waiting level in watts, as far as the samples prove them. A level
is only believed where samples are pure, that is where the card stays in one state for longer than
a sample: then its draw is a narrow peak among the samples, and the utilization ring agrees with
the share of samples at and above it. Passes shorter than a sample make a peak too, in the middle
between waiting and working; nothing in one card's own signals tells such a mixture from lighter
work, so no working level is ever learned from peaks.
"""

from __future__ import annotations

import statistics
from collections import Counter, deque
from typing import NamedTuple

from exporter.activity_slices import Piece, Slice
from exporter.activity_split import STEADY_RATIO

WAITING_RANGE_RATIO = 0.2
"""A kernel that only waits draws at most this share of the range from idle to the power limit:
a spin on every SM of an H200 draws 250 W where it idles at 124 and is limited at 700, and NCCL
uses a quarter of the SMs at most. Decode draws over half of the range there."""
WORKING_EXCESS_RATIO = 2.0
"""Over idle, work draws at least twice what waiting does; a lower peak proves nothing."""

_MEMORY_SAMPLES = 3000
"""The peaks speak of about this many samples: a minute of a ring of 20 ms."""
_FEWEST_SAMPLES = 15
_FEWEST_VISITS = 4
_LEAST_NOISE_WATTS = 2.0
_MOST_NOISE_WATTS = 8.0
_IDLE_STEP = 0.2
_LOOK_SECONDS = 1.0
_RESOLVED_SLICES = 75
_PEAK_REACH = 0.1
_STEADY_RUN = 4
_LEAST_RESOLVED = 0.2
_RING_TOLERANCE = 0.12


class _Peak(NamedTuple):
    watts: float
    samples: float


class LevelLearner:
    """Learns from slices in time order; a few thousand counters, looked at once a second.

    Attributes:
        idle_watts: Draw with no kernel resident; `None` while none was seen.
        waiting_watts: Draw of a resident kernel that waits; `None` while not proven.
        noise_watts: Scatter of samples of a steady state (standard deviation).
        passes_resolved: Whether of late enough working samples lay inside a pass to measure the
            others by them; false where passes are shorter than a sample.
        working_peaks: Narrow peaks above waiting, lowest first; proves nothing by itself.
    """

    def __init__(self, power_limit_watts: float | None = None) -> None:
        self.power_limit_watts = power_limit_watts
        self.idle_watts: float | None = None
        self.waiting_watts: float | None = None
        self.noise_watts = _LEAST_NOISE_WATTS
        self.passes_resolved = False
        self._denied_watts: float | None = None
        self.working_peaks: list[float] = []
        self._counts: Counter[int] = Counter()
        self._total = 0.0
        self._looked_at: float | None = None
        self._slices: deque[tuple[float, float, tuple[float, ...]]] = deque(maxlen=150)

    def observe(self, slice_: Slice) -> None:
        """Takes a slice with power."""
        if not slice_.pieces:
            return
        watts = [piece.watts for piece in slice_.pieces if _is_most(piece)]
        if slice_.resident_ratio == 0.0:
            self._observe_idle(watts)
        for value in watts:
            self._counts[round(value)] += 1
        self._total += len(watts)
        self._slices.append((slice_.ended_at, slice_.resident_ratio, tuple(watts)))
        if self._looked_at is None or slice_.ended_at - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = slice_.ended_at
            self._look()

    def deny(self) -> None:
        """What was taken for waiting is work: that level and those above it wait no more."""
        self._denied_watts = self.waiting_watts
        self.waiting_watts = None
        self.passes_resolved = False

    def _observe_idle(self, watts: list[float]) -> None:
        if len(watts) < 2:
            return
        middle = statistics.median(watts)
        spread = 1.48 * statistics.median(abs(value - middle) for value in watts)
        if self.idle_watts is None:
            self.idle_watts = middle
        self.idle_watts += _IDLE_STEP * (middle - self.idle_watts)
        bounded = min(max(spread, _LEAST_NOISE_WATTS), _MOST_NOISE_WATTS)
        self.noise_watts += _IDLE_STEP * (bounded - self.noise_watts)

    def _look(self) -> None:
        if self._total > _MEMORY_SAMPLES:
            self._counts = Counter({w: c / 2 for w, c in self._counts.items() if c > 0.3})
            self._total = sum(self._counts.values())
        peaks = self._peaks()
        for number, peak in enumerate(peaks):
            if self._is_waiting(peak, peaks[:number]):
                self.waiting_watts = peak.watts
                break
        if self.waiting_watts is not None:
            least = self.waiting_watts + 4 * self.noise_watts
            self.working_peaks = [peak.watts for peak in peaks if peak.watts > least]
            self.passes_resolved = self._are_passes_resolved(
                self.waiting_watts, self.working_peaks
            )

    def _peaks(self) -> list[_Peak]:
        """Narrow peaks among the samples, lowest first."""
        unit = max(1, round(1.5 * self.noise_watts))
        counts = self._counts
        peaks: list[_Peak] = []
        if not counts:
            return peaks
        for center in sorted(counts):
            near = sum(counts[center + k] for k in range(-unit, unit + 1))
            if near < _FEWEST_SAMPLES or near < 0.01 * self._total:
                continue
            left = sum(counts[center + k] for k in range(-3 * unit - 1, -unit))
            right = sum(counts[center + k] for k in range(unit + 1, 3 * unit + 2))
            # As wide as the peak is each side; a flat background fills all three alike.
            if near < 2.5 * left or near < 2.5 * right:
                continue
            mean = sum((center + k) * counts[center + k] for k in range(-unit, unit + 1)) / near
            if peaks and mean - peaks[-1].watts <= 2 * unit:
                if near > peaks[-1].samples:
                    peaks[-1] = _Peak(mean, near)
            else:
                peaks.append(_Peak(mean, near))
        return peaks

    def _is_waiting(self, peak: _Peak, lower: list[_Peak]) -> bool:
        idle = self.idle_watts if self.idle_watts is not None else self._idle_peak(lower)
        if idle is None or peak.watts - idle < 2 * self.noise_watts:
            return False
        if self._denied_watts is not None and peak.watts > self._denied_watts - 4 * self.noise_watts:
            return False
        excess = peak.watts - idle
        top = self.power_limit_watts or max(self._counts)
        if excess > WAITING_RANGE_RATIO * (top - idle):
            return False
        works_from = idle + WORKING_EXCESS_RATIO * excess
        working = sum(c for w, c in self._counts.items() if w > works_from)
        if working < _FEWEST_SAMPLES:
            return False
        return self._ring_agrees(idle, peak.watts) and self._visits(peak.watts) >= _FEWEST_VISITS

    def _idle_peak(self, lower: list[_Peak]) -> float | None:
        return lower[0].watts if lower else None

    def _ring_agrees(self, idle: float, waiting: float) -> bool:
        """Whether the samples from the peak up are resident and those below are not."""
        slices = [s for s in self._slices if s[2]]
        if not slices:
            return False
        errors = shares = 0.0
        for _, resident, watts in slices:
            above = sum(min(max((w - idle) / (waiting - idle), 0.0), 1.0) for w in watts)
            errors += abs(above / len(watts) - resident)
            shares += resident
        return errors <= _RING_TOLERANCE * len(slices) and errors <= 0.5 * shares

    def _visits(self, watts: float) -> int:
        """How many separate times the samples of late stayed at a level."""
        reach = 2 * self.noise_watts
        visits, was_there = 0, False
        for _, _, samples in self._slices:
            for sample in samples:
                is_there = abs(sample - watts) <= reach
                visits += is_there and not was_there
                was_there = is_there
        return visits


    def _are_passes_resolved(self, waiting: float, peaks: list[float]) -> bool:
        """Whether enough samples over the waiting level lie on a peak or in a steady run."""
        reach = 2 * self.noise_watts
        near = [(peak, max(reach, _PEAK_REACH * (peak - waiting))) for peak in peaks]
        run: list[float] = []
        above = clean = 0
        for _, _, samples in list(self._slices)[-_RESOLVED_SLICES:]:
            for sample in samples:
                if run and abs(sample - run[-1]) > STEADY_RATIO * (run[-1] - waiting):
                    clean += _clean(run, near)
                    run.clear()
                if sample > waiting + 2 * reach:
                    above += 1
                    run.append(sample)
        clean += _clean(run, near)
        return above >= _FEWEST_SAMPLES and clean >= _LEAST_RESOLVED * above


def _clean(run: list[float], peaks: list[tuple[float, float]]) -> int:
    """How many samples of a run of agreeing samples lie inside a pass."""
    if len(run) >= _STEADY_RUN:
        return len(run)
    return sum(any(abs(sample - peak) <= reach for peak, reach in peaks) for sample in run)


def _is_most(piece: Piece) -> bool:
    """Whether a piece is no sliver of a sample that the slice's border cut."""
    return piece.ended_at - piece.started_at > 0.008
