"""Windows of GPUs → cells of one common grid, second by second.

The windows of different GPUs are not aligned (20 ms of power with a phase of their own, 200 ms of
residency, 1 s of GPM). They meet on a fixed grid of 20 ms, the shortest window any driver gives:
a cell holds exactly the time and work that fell into it, so sums stay exact, and work and memory
are bounded whatever the phases. Pure arithmetic: no clock.
"""

from __future__ import annotations

from exporter.records import ActivityWindow, Method

CELLS_PER_SECOND = 50
CELL_SECONDS = 1.0 / CELLS_PER_SECOND

METHODS = tuple(Method)
"""Best first, as the evidence ranks."""

_RANK_OF = {method: rank for rank, method in enumerate(METHODS)}
_LONGEST_WINDOW_SECONDS = 10.0
_OPEN_SECONDS = 64
"""Seconds of windows kept until they are taken, at most: the longest hold (levels not yet known)
and some."""


class GpuSecond:
    """What one GPU did in one second, by cell.

    Attributes:
        covered: Seconds of each cell that windows cover.
        working: Seconds worked in each cell.
        waiting: Seconds waited in each cell; 0 where the method cannot tell.
        methods: Worst method in each cell, as an index of `METHODS`; -1 where nothing is covered.
        length_seconds: Window lengths weighted by covered time.
    """

    __slots__ = ("covered", "length_seconds", "methods", "waiting", "working")

    def __init__(self) -> None:
        self.covered = [0.0] * CELLS_PER_SECOND
        self.working = [0.0] * CELLS_PER_SECOND
        self.waiting = [0.0] * CELLS_PER_SECOND
        self.methods = [-1] * CELLS_PER_SECOND
        self.length_seconds = 0.0

    def lay(self, start: float, stop: float, window: ActivityWindow, method: int) -> None:
        """Lays the part of a window between two offsets of the second on the cells."""
        covered, working, waiting, methods = self.covered, self.working, self.waiting, self.methods
        work, wait = window.working_ratio, window.waiting_ratio or 0.0
        self.length_seconds += (stop - start) * (window.ended_at - window.started_at)
        cell = int(start * CELLS_PER_SECOND)
        while start < stop and cell < CELLS_PER_SECOND:
            border = (cell + 1) * CELL_SECONDS
            until = min(border, stop)
            span = until - start
            if span > 0.0:
                covered[cell] += span
                working[cell] += span * work
                waiting[cell] += span * wait
                methods[cell] = max(methods[cell], method)
                start = until
            cell += 1


class ActivityGrid:
    """Collects windows until their second is taken.

    Attributes:
        taken_until: Everything before this epoch second was taken; later windows are cut there.
        late_seconds: Time of windows that came after their second was taken.
    """

    def __init__(self) -> None:
        self.taken_until = 0
        self.late_seconds = 0.0
        self._seconds: dict[int, dict[int, GpuSecond]] = {}
        self._reached: dict[int, float] = {}

    def add(self, window: ActivityWindow) -> bool:
        """Takes one window; whether its GPU's time went on into another second.

        A GPU's windows come in time order; what overlaps the one before is cut off.
        """
        gpu, start, end = window.gpu, window.started_at, window.ended_at
        if not 0.0 < end - start <= _LONGEST_WINDOW_SECONDS:
            return False
        reached = self._reached.get(gpu)
        if reached is not None and start < reached:
            start = reached
        if start < self.taken_until:
            self.late_seconds += max(min(end, self.taken_until) - start, 0.0)
            start = self.taken_until
        if end <= start:
            return False
        self._reached[gpu] = end
        self._lay(window, start, end)
        return reached is None or int(reached) != int(end)

    def _lay(self, window: ActivityWindow, start: float, end: float) -> None:
        method = _RANK_OF[window.method]
        while start < end:
            second = int(start)
            stop = min(end, second + 1.0)
            gpus = self._seconds.get(second)
            if gpus is None:
                gpus = self._seconds[second] = {}
                if len(self._seconds) > _OPEN_SECONDS:
                    self.take(min(self._seconds))
            entry = gpus.get(window.gpu)
            if entry is None:
                entry = gpus[window.gpu] = GpuSecond()
            entry.lay(start - second, stop - second, window, method)
            start = stop

    def reached(self, gpu: int) -> float | None:
        """How far the windows of a GPU reach; `None` before the first."""
        return self._reached.get(gpu)

    def oldest(self) -> int | None:
        """The oldest second with a window that was not taken; `None` if there is none."""
        return min(self._seconds, default=None)

    def take(self, second: int) -> dict[int, GpuSecond]:
        """Hands out one second by GPU and closes it with everything before."""
        self.taken_until = max(self.taken_until, second + 1)
        return self._seconds.pop(second, {})

    def forget(self, gpu: int) -> None:
        """Nothing more is expected of a GPU; what it sent stays until it is taken."""
        self._reached.pop(gpu, None)
