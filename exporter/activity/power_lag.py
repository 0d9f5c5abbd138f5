"""Undoes the lag of a power ring, where it was measured: samples as if the card were read at once.

Each sample of an H200's 20 ms ring holds a fifth of the one before: the driver smooths. A wait of
two samples after work then never shows the level of waiting. Other models are left as they are.
"""

from __future__ import annotations

from dataclasses import replace

from exporter.records import RingSamples

LAG_RATIOS = {"NVIDIA H200": 0.21}
"""By model: what a sample keeps of the one before. Check: where the draw falls to a steady level,
the steps between three samples shrink by so much (medians .208 to .219 in recordings of several
cards, driver 580; of simulated ones, which do not lag, .00)."""

_LONGEST_GAP_SECONDS = 0.03
"""Between two samples of the ring, which come every 20 ms; after a longer one less is left."""


class PowerLag:
    """Folds the power samples of one GPU.

    Attributes:
        ratio: What a sample keeps of the one before; 0 leaves all as it is.
    """

    def __init__(self) -> None:
        self.ratio = 0.0
        self._last: tuple[float, float] | None = None

    def undone(self, record: RingSamples) -> RingSamples:
        """The samples without what they keep of those before; the first after a gap stays."""
        if self.ratio == 0.0:
            return record
        samples = []
        for taken_at, watts in record.samples:
            before, at_once = self._last, watts
            if before is not None:
                if taken_at <= before[0]:
                    continue  # handed in again
                if taken_at - before[0] <= _LONGEST_GAP_SECONDS:
                    at_once = max((watts - self.ratio * before[1]) / (1.0 - self.ratio), 0.0)
            self._last = (taken_at, watts)
            samples.append((taken_at, at_once))
        return replace(record, samples=tuple(samples))
