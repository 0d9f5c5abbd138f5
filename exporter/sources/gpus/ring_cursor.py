"""Where the drain of one ring has come to: nothing twice, nothing from before the start."""

from __future__ import annotations

import statistics
from collections import deque
from operator import sub

from exporter.gpu_driver import RingReading
from exporter.records import RingSamples, Signal

_SPACINGS = 127
MICROSECONDS = 1_000_000


class RingCursor:
    """The newest timestamp seen of one ring of one GPU, and the spacing of its samples.

    Attributes:
        newest_us: What to ask the driver to be newer than: 0, the whole ring, at first. If the
            driver's clock is set back, nothing is new until it has caught up: unknown, not idle.
    """

    def __init__(self, gpu: int, signal: Signal, since: float) -> None:
        self.newest_us = 0
        self._gpu = gpu
        self._signal = signal
        self._since_us = since * MICROSECONDS
        self._spacings: deque[int] = deque(maxlen=_SPACINGS)

    def take(self, reading: RingReading) -> RingSamples | None:
        """The samples that count, with their nominal span; `None` if there are none.

        The first reading is the whole ring: it teaches the spacing, and of its samples only those
        taken after the start count. The spacing is the median of the newest 127: a gap does not
        move it.
        """
        times = [taken_us for taken_us, _ in reading.samples]
        self._spacings.extend(map(sub, times[1:], times))
        if not times or not self._spacings:
            return None  # one sample, span not known yet: it stays in the ring until there are two
        self.newest_us = times[-1]
        fresh = tuple(
            (taken_us / MICROSECONDS, value)
            for taken_us, value in reading.samples
            if taken_us > self._since_us
        )
        if not fresh:
            return None
        nominal_seconds = statistics.median(self._spacings) / MICROSECONDS
        return RingSamples(self._gpu, self._signal, nominal_seconds, fresh)
