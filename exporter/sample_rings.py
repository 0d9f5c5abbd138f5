"""Ring samples → covered time and its integral; a gap is neither busy nor idle, it is missed.

    integral = Σ value x covered time        observed = Σ covered time        missed = Σ gaps

The mean over any range is the quotient of two differences, whatever the scrape interval or phase.
Pure arithmetic: no clock, no driver.
"""

from __future__ import annotations

import math
from array import array

GAP_FACTOR = 2.0
"""A sample further than this many nominal spans behind the one before covers its own span only:
what lies between was overwritten in the ring or never taken."""

KEPT_SECONDS = 16
"""Whole seconds whose means are kept."""
_NONE = -1
_FULL_SECOND = 0.9
"""Covered share from which a second counts as complete (samples do not end on its border)."""


class SignalIntegral:
    """One signal of one GPU, integrated over the time its samples cover.

    Attributes:
        observed_seconds: Time covered by samples.
        missed_seconds: Time between samples that none covers.
        value_seconds: Integral of the value over the covered time (share x s, watts x s).
        last_at: End of the newest sample, epoch seconds; `None` before the first.
    """

    __slots__ = (
        "_covered",
        "_seconds",
        "_sums",
        "last_at",
        "missed_seconds",
        "observed_seconds",
        "value_seconds",
    )

    def __init__(self, kept_seconds: int = KEPT_SECONDS) -> None:
        """Begins empty; `kept_seconds` whole seconds keep a mean of their own."""
        self.observed_seconds = 0.0
        self.missed_seconds = 0.0
        self.value_seconds = 0.0
        self.last_at: float | None = None
        # A place for each kept second, by its remainder: which it is, how long covered, integral.
        self._seconds = array("q", [_NONE]) * kept_seconds
        self._covered = array("d", [0.0]) * kept_seconds
        self._sums = array("d", [0.0]) * kept_seconds

    def add_sample(self, taken_at: float, nominal_seconds: float, value: float) -> None:
        """Adds a ring sample: it covers the time since the one before, unless that is a gap.

        A sample not newer than the last one was seen already and is ignored.
        """
        start = taken_at - nominal_seconds
        last = self.last_at
        if last is not None and taken_at - last < GAP_FACTOR * nominal_seconds:
            start = last
        self.add_window(start, taken_at, value)

    def add_window(self, start: float, end: float, value: float) -> None:
        """Adds a value that holds from `start` to `end`; what was covered before is clipped."""
        last = self.last_at
        if last is not None:
            if start < last:
                start = last
            else:
                self.missed_seconds += start - last
        if end <= start:
            return
        self.last_at = end
        self.observed_seconds += end - start
        self.value_seconds += (end - start) * value
        self._add_to_seconds(start, end, value)

    def _add_to_seconds(self, start: float, end: float, value: float) -> None:
        seconds, covered, sums = self._seconds, self._covered, self._sums
        kept = len(seconds)
        second = int(start)
        place = second % kept
        if seconds[place] == second and end <= second + 1:  # by far the most samples
            covered[place] += end - start
            sums[place] += (end - start) * value
            return
        second = math.floor(max(start, end - kept))
        start = max(start, second)
        while start < end:
            stop = min(end, second + 1)
            place = second % kept
            if seconds[place] != second:
                seconds[place], covered[place], sums[place] = second, 0.0, 0.0
            covered[place] += stop - start
            sums[place] += (stop - start) * value
            start = stop
            second += 1

    def second_mean(self, second: int) -> float | None:
        """Mean value over the epoch second that begins at `second`; `None` unless it is complete."""
        place = second % len(self._seconds)
        covered = self._covered[place]
        if self._seconds[place] != second or covered < _FULL_SECOND:
            return None
        return self._sums[place] / covered

    def last_complete_second(self) -> int | None:
        """The newest epoch second that lies behind the newest sample; `None` before the first."""
        return None if self.last_at is None else math.floor(self.last_at) - 1
