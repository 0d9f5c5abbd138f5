"""Samples of one signal → sums in bins of equal length, kept for the newest hour.

A sample covers the time since the one before it if that is shorter than twice its nominal span,
else its own span; time that no sample covers stays out of every mean. Pure arithmetic.
"""

from __future__ import annotations

import math

from exporter.sample_rings import GAP_FACTOR

KEPT_SECONDS = 3600.0
"""A diagnosis looks back this far at most."""


class TimeBins:
    """Covered time and integral of one signal, by bin.

    Attributes:
        width_seconds: Length of a bin.
    """

    def __init__(self, width_seconds: float) -> None:
        self.width_seconds = width_seconds
        self._bins: dict[int, list[float]] = {}  # index → [covered seconds, integral]
        self._last_at: float | None = None

    @property
    def last_at(self) -> float | None:
        """End of the newest sample; `None` before the first."""
        return self._last_at

    def add_sample(self, taken_at: float, nominal_seconds: float, value: float) -> None:
        """Takes a value that holds until `taken_at`."""
        start = taken_at - nominal_seconds
        before = self._last_at
        if before is not None and taken_at - before < GAP_FACTOR * nominal_seconds:
            start = before
        self.add_window(start, taken_at, value)

    def add_window(self, start: float, end: float, value: float) -> None:
        """Takes a value that holds between two instants; what overlaps the one before is cut off."""
        if self._last_at is not None:
            start = max(start, self._last_at)
        if end <= start:
            return
        self._last_at = end
        width = self.width_seconds
        while start < end:
            index = math.floor(start / width)
            stop = min(end, (index + 1) * width)
            if stop <= start:  # the float's own grain at the border of a bin
                index, stop = index + 1, min(end, (index + 2) * width)
            sums = self._bins.get(index)
            if sums is None:
                sums = self._bins[index] = [0.0, 0.0]
                self._forget(index)
            sums[0] += stop - start
            sums[1] += value * (stop - start)
            start = stop

    def _forget(self, newest: int) -> None:
        most = int(KEPT_SECONDS / self.width_seconds)
        if len(self._bins) > 2 * most:
            self._bins = {i: sums for i, sums in self._bins.items() if i > newest - most}

    def mean(self, start: float, end: float) -> float | None:
        """Mean over the covered time; `None` where there is none."""
        sums = [self._sums(index) for index in self._indexes(start, end)]
        covered = sum(each[0] for each in sums)
        return sum(each[1] for each in sums) / covered if covered > 0.0 else None

    def means(self, start: float, end: float, least_covered: float) -> dict[int, float]:
        """Mean of each bin of which at least that share is covered, by index."""
        found = {}
        for index in self._indexes(start, end):
            covered, integral = self._sums(index)
            if covered >= least_covered * self.width_seconds:
                found[index] = integral / covered
        return found

    def _indexes(self, start: float, end: float) -> range:
        return range(math.ceil(start / self.width_seconds), math.floor(end / self.width_seconds))

    def _sums(self, index: int) -> list[float]:
        return self._bins.get(index) or [0.0, 0.0]
