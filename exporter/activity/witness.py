"""GPM beside power: learns from the windows that power has proven, tells those it has not.

Power speaks of 20 ms samples, GPM of windows of a second that begin anywhere: here they are cut to
the same stretch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from exporter.activity.gpm import Bracket
from exporter.activity.levels import LevelLearner
from exporter.activity.slices import Slice
from exporter.activity.splits import Split
from exporter.activity.work import Seen, WorkLearner
from exporter.records import GpmWindow

_KEPT_STRETCHES = 512
_LEAST_COVERED = 0.98
_LEAST_PROVEN = 0.5
"""Share of a window that power has proven, below which what was learned is not used for it. Other
passes are other work: batches of another size read and compute at other rates, which shows in both
signals alike, and nothing on one card tells it from shorter work."""


class _Stretch(NamedTuple):
    """One power sample, cut to its slice; `working` in seconds, `None` if not proven."""

    started_at: float
    ended_at: float
    watts: float
    working: float | None


class _Inside(NamedTuple):
    """Mean draw and working share inside a window; `working` is `None` unless all is proven."""

    watts: float
    working: float | None


class GpmWitness:
    """Asked in time order; a window is learned from when power has passed its end."""

    def __init__(self, levels: LevelLearner) -> None:
        self._levels = levels
        self._work = WorkLearner()
        self._stretches: deque[_Stretch] = deque(maxlen=_KEPT_STRETCHES)
        self._last: tuple[GpmWindow, float] | None = None

    def ask(
        self,
        window: GpmWindow,
        resident_ratio: float,
        judged: Iterable[tuple[Slice, Split | None]],
        following: Slice | None,
    ) -> Bracket | None:
        """Working share of a window; `None` where no two signals say the same.

        Args:
            window: What GPM says.
            resident_ratio: Of the window.
            judged: The window's slices, and what power says of them.
            following: The slice after those, if it is known.
        """
        if not self._levels.passes_resolved:
            # Nothing is proven but rests: nothing to learn, and nobody to ask.
            self._last = None
            self._stretches.clear()
            return None
        proven = observed = 0.0
        for slice_, split in judged:
            for stretch in _stretches(slice_, split):
                self._stretches.append(stretch)
                seconds = stretch.ended_at - stretch.started_at
                observed += seconds
                proven += seconds if stretch.working is not None else 0.0
        self._learn()
        self._last = (window, resident_ratio)
        if proven < _LEAST_PROVEN * observed:
            return None
        ahead = () if following is None else _stretches(following, None)
        inside = _inside((*self._stretches, *ahead), window)
        watts = None if inside is None else inside.watts
        return self._work.bracket(self._seen(window, resident_ratio, watts))

    def _learn(self) -> None:
        """From the window before, whose last samples have come by now."""
        if self._last is None:
            return
        window, resident = self._last
        inside = _inside(self._stretches, window)
        if inside is not None and inside.working is not None:
            seen = self._seen(window, resident, inside.watts)
            self._work.observe(seen, min(inside.working, resident))
        while self._stretches and self._stretches[0].ended_at <= window.ended_at:
            self._stretches.popleft()

    def _seen(self, window: GpmWindow, resident: float, watts: float | None) -> Seen:
        idle, waiting, excess = self._levels.idle_watts, self._levels.waiting_watts, None
        if watts is not None and idle is not None and waiting is not None:
            excess = watts - idle * (1.0 - resident) - waiting * resident
        return Seen(resident, window.sm_ratio, window.dram_ratio, window.tensor_ratio, excess)


def _stretches(slice_: Slice, split: Split | None) -> Iterator[_Stretch]:
    for index, piece in enumerate(slice_.pieces):
        working = split.working[index] if split is not None and split.proven[index] else None
        yield _Stretch(piece.started_at, piece.ended_at, piece.watts, working)


def _inside(stretches: Iterable[_Stretch], window: GpmWindow) -> _Inside | None:
    """What power says of a window; `None` unless it covers it."""
    covered = joules = working = 0.0
    proven = True
    for started_at, ended_at, watts, works in stretches:
        seconds = min(ended_at, window.ended_at) - max(started_at, window.started_at)
        if seconds <= 0.0:
            continue
        covered += seconds
        joules += seconds * watts
        proven = proven and works is not None
        working += (works or 0.0) * seconds / (ended_at - started_at)
    if covered < _LEAST_COVERED * (window.ended_at - window.started_at):
        return None
    return _Inside(joules / covered, working / covered if proven else None)
