"""What a stage did in each 20 ms of a second, kept small: the finest picture of it there is.

In: a stage's second. Out: the same as bytes, and sums over any number of cells. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from exporter.pipeline.bubbles import TELLS_WAITING, StageSecond
from exporter.pipeline.grid import CELL_SECONDS, METHODS

UNITS = 250
"""Of a whole cell; its parts are kept to 0.4 % of it."""
_UNITS_PER_SECOND = UNITS / CELL_SECONDS


class Shares(NamedTuple):
    """How a stretch of a stage's time is divided; what they leave of 1 was not seen.

    `resident` is time with a kernel (or in a forward pass, by SGLang's own word) of which nothing
    tells work from waiting: an upper bound on work.
    """

    working: float = 0.0
    waiting: float = 0.0
    resident: float = 0.0
    idle: float = 0.0

    @property
    def unknown(self) -> float:
        """What was not seen."""
        return max(1.0 - sum(self), 0.0)


@dataclass(frozen=True, slots=True)
class StageCells:
    """One second of a stage, a byte a cell: seconds observed, worked and waited; the method."""

    observed: bytes
    working: bytes
    waiting: bytes
    methods: bytes
    """As an index of `METHODS`; any where nothing is observed."""

    @classmethod
    def of(cls, stage: StageSecond) -> StageCells:
        """Rounds the cells of a stage's second."""
        return cls(
            _rounded(stage.observed),
            _rounded(stage.working),
            _rounded(stage.waiting),
            bytes([method if method > 0 else 0 for method in stage.methods]),
        )

    def planes(self) -> bytes:
        """All of it: the bytes of one kind after those of the other, in the order of the fields."""
        return self.observed + self.working + self.waiting + self.methods

    def shares(self, first: int, stop: int) -> Shares:
        """How the time from cell `first` before `stop` is divided."""
        working = waiting = resident = idle = 0.0
        for cell in range(first, stop):
            seen = self.observed[cell]
            works = min(self.working[cell], seen)
            if METHODS[self.methods[cell]] in TELLS_WAITING:
                waits = min(self.waiting[cell], seen - works)
                working += works
                waiting += waits
                idle += seen - works - waits
            else:
                resident += works
                idle += seen - works
        whole = UNITS * max(stop - first, 1)
        return Shares(working / whole, waiting / whole, resident / whole, idle / whole)


def _rounded(seconds: Sequence[float]) -> bytes:
    return bytes([min(int(each * _UNITS_PER_SECOND + 0.5), UNITS) for each in seconds])
