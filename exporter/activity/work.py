"""Learns what one GPU shows while it works, from windows that power has proven, for those it has not.

In: GPM windows with the mean draw beside them. Out: the working share of a window, between two
bounds. One signal proves nothing: lighter work and shorter work look alike in it. A window is
only told where two signals that change differently with the kind of work say the same: what comes
with work alone (DRAM activity; tensor activity where the work needs no memory), and what waiting
shows too (SM activity; the draw where the SM levels cannot be told apart).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from exporter.activity.gpm import LEAST_SM_STEP, SILENT_DRAM, Bracket

_KEPT = 30
_FEWEST = 6
_FEWEST_WORKING = 0.02
"""A window with less work says nothing of its level."""
_MOST_SPREAD = 0.06
"""Two signals agree if the working shares they give lie this close; the truth is taken to lie in
the middle, so half of it is the error where one of them is wrong."""
_MOST_ERROR = 0.04
"""Scatter of the proven windows around a level, as a working share, up to which it is one level."""
_MOST_DOUBT = 0.02
"""How uncertain the share by SM activity may be because its two levels are."""
_LEAST_TENSOR = 0.005
_LEAST_STEP_WATTS = 15.0


class Seen(NamedTuple):
    """A GPM window and what power says beside it; ratios of the window, `None` if not measured."""

    resident: float
    sm: float | None
    dram: float | None
    tensor: float | None
    excess_watts: float | None
    """Mean draw over what the same residency would draw if it only waited."""


class _Proven(NamedTuple):
    seen: Seen
    working: float


class SmLevels(NamedTuple):
    """SM activity of a kernel that waits and of one that works, and how sure that is."""

    waiting: float
    working: float
    covariance: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Of the two levels: variance, covariance, variance."""

    @property
    def step(self) -> float:
        """How much more work shows than waiting."""
        return self.working - self.waiting

    def share(self, active: float, resident: float) -> float | None:
        """Working share of a window; `None` if its mix is too far from those learned."""
        share = (active - self.waiting * resident) / self.step
        waits, works = max(resident - share, 0.0), max(share, 0.0)
        first, both, second = self.covariance
        doubt = first * waits * waits + 2 * both * waits * works + second * works * works
        return share if math.sqrt(max(doubt, 0.0)) <= _MOST_DOUBT * self.step else None


class WorkLearner:
    """Keeps the newest windows that power has proven, and fits levels to them."""

    def __init__(self) -> None:
        self._proven: deque[_Proven] = deque(maxlen=_KEPT)
        self._sm: SmLevels | None = None
        self._dram: float | None = None
        self._tensor: float | None = None
        self._excess_watts: float | None = None

    def observe(self, seen: Seen, working: float) -> None:
        """Takes a window whose working share is proven."""
        self._proven.append(_Proven(seen, working))
        for newest in (_KEPT, _KEPT // 2, _FEWEST):
            self._fit(list(self._proven)[-newest:])
            if self._dram is not None or self._tensor is not None:
                break

    def bracket(self, seen: Seen) -> Bracket | None:
        """Working share of a window; `None` where two signals do not say the same."""
        shares = [
            share for share in (self._by_work_alone(seen), self._by_both(seen)) if share is not None
        ]
        if len(shares) < 2 or max(shares) - min(shares) > _MOST_SPREAD:
            return None
        low, high = (min(max(share, 0.0), seen.resident) for share in (min(shares), max(shares)))
        return Bracket(low, (low + high) / 2, high)

    def _by_work_alone(self, seen: Seen) -> float | None:
        if self._dram is not None and seen.dram is not None:
            return seen.dram / self._dram
        if self._tensor is not None and seen.tensor is not None:
            return seen.tensor / self._tensor
        return None

    def _by_both(self, seen: Seen) -> float | None:
        share = None
        if self._sm is not None and seen.sm is not None:
            share = self._sm.share(seen.sm, seen.resident)
        if share is None and self._excess_watts is not None and seen.excess_watts is not None:
            share = seen.excess_watts / self._excess_watts
        return share

    # --- fitting -------------------------------------------------------------------------------

    def _fit(self, proven: Sequence[_Proven]) -> None:
        if sum(each.working >= _FEWEST_WORKING for each in proven) < _FEWEST:
            return
        self._dram = _level((each.working, each.seen.dram) for each in proven)
        self._tensor = _level((each.working, each.seen.tensor) for each in proven)
        self._excess_watts = _level((each.working, each.seen.excess_watts) for each in proven)
        if self._dram is not None and self._dram < SILENT_DRAM:
            self._dram = None
        if self._tensor is not None and self._tensor < _LEAST_TENSOR:
            self._tensor = None
        if self._excess_watts is not None and self._excess_watts < _LEAST_STEP_WATTS:
            self._excess_watts = None
        self._sm = _sm_levels(proven)


def _level(points: Iterable[tuple[float, float | None]]) -> float | None:
    """Slope of what is shown over the working share; `None` if the windows do not share one."""
    known = [(share, shown) for share, shown in points if shown is not None]
    square = sum(share * share for share, _ in known)
    if len(known) < _FEWEST or square <= 0.0:
        return None
    level = sum(share * shown for share, shown in known) / square
    if level <= 0.0:
        return None
    scatter = sum((shown - level * share) ** 2 for share, shown in known) / len(known)
    return level if math.sqrt(scatter) <= _MOST_ERROR * level else None


def _sm_levels(proven: Iterable[_Proven]) -> SmLevels | None:
    """Least squares of SM activity over the waiting and the working share."""
    points = [
        (each.seen.resident - each.working, each.working, each.seen.sm)
        for each in proven
        if each.seen.sm is not None
    ]
    xx = sum(x * x for x, _, _ in points)
    xy = sum(x * y for x, y, _ in points)
    yy = sum(y * y for _, y, _ in points)
    determinant = xx * yy - xy * xy
    if len(points) < _FEWEST or determinant <= 1e-9 * xx * yy:
        return None
    xs = sum(x * sm for x, _, sm in points)
    ys = sum(y * sm for _, y, sm in points)
    waiting = (yy * xs - xy * ys) / determinant
    working = (xx * ys - xy * xs) / determinant
    levels = SmLevels(waiting, working)
    if levels.step < LEAST_SM_STEP:
        return None
    square = sum((sm - waiting * x - working * y) ** 2 for x, y, sm in points)
    variance = square / max(len(points) - 2, 1)
    if math.sqrt(variance) > _MOST_ERROR * levels.step:
        return None
    return levels._replace(
        covariance=(
            variance * yy / determinant,
            -variance * xy / determinant,
            variance * xx / determinant,
        )
    )
