"""One GPU's time, split into working, waiting and idle.

In: ring samples, GPM windows, levels known beforehand. Out: windows in time order that cover what
the utilization ring covers, each instant once. Evidence in order: GPM against known levels; power
against known levels, or against the waiting level and the passes' own height where passes are
longer than a sample; residency, as an upper bound, where these do not tell. A better method is
never used on a guess: what it says must be provable from this GPU's own samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from exporter.activity_levels import LevelLearner
from exporter.activity_slices import Alignment, Slice
from exporter.activity_split import (
    OVERDRAW_RATIO,
    LinearSplit,
    Bracket,
    gpm_bracket,
    is_waiting_only,
    least_working_ratio,
    plateau_share,
    scaled,
    waiting_seconds,
)
from exporter.records import (
    ActivityLevel,
    ActivityWindow,
    GpmWindow,
    GpuLevels,
    Method,
    RingSamples,
)

HOLD_SECONDS = 30.0
"""How long the first windows wait for levels; afterwards nothing waits for them."""
_UNBROKEN_SECONDS = 0.5
"""A stretch of work that shows no wait for longer is left to residency: one pass that long is
rare, and many short ones with waits between them look the same."""
_BAND_RATIO = 0.05
_NOISE_BAND = 3.0
_REFERENCE_STEP = 0.05
_IDLE_DRAW_RATIO = 0.02
"""Resident, yet within this share of the range from idle to the power limit: nothing works. The
smallest NCCL-like spin on an H200 adds 8 of 576 W, the least decode load there 290 W."""
_LEAST_RESIDENT_RATIO = 0.05
_DENIAL_STEP = 0.2
_DENIAL_MARGIN = 0.05


class _Block(NamedTuple):
    """Slices that are judged together: those of one GPM window, or a single one without GPM."""

    slices: tuple[Slice, ...]
    gpm: GpmWindow | None
    gpm_resident_ratio: float | None


class GpuActivity:
    """Folds the records of one GPU in time order; memory and work per sample are bounded.

    Attributes:
        has_peers: Whether a kernel on this GPU can have somebody to wait for. Set to false for the
            only rank of a server: there residency is the truth, and nothing is held back.
    """

    def __init__(
        self,
        gpu: int,
        *,
        power_limit_watts: float | None = None,
        multiprocessors: int | None = None,
        has_peers: bool = True,
    ) -> None:
        self.has_peers = has_peers
        self.multiprocessors = multiprocessors
        self._gpu = gpu
        self._alignment = Alignment()
        self._learner = LevelLearner(power_limit_watts)
        self._given: GpuLevels | None = None
        self._open: list[Slice] = []
        self._open_gpm: GpmWindow | None = None
        self._held: deque[_Block] = deque()
        self._holding = True
        self._linear = LinearSplit()
        self._denials = 0.0
        self._low_at = -1.0
        self._reference_watts = 0.0

    @property
    def power_limit_watts(self) -> float | None:
        """The card's power limit, which bounds what waiting can draw; `None` if not known."""
        return self._learner.power_limit_watts

    @power_limit_watts.setter
    def power_limit_watts(self, watts: float | None) -> None:
        self._learner.power_limit_watts = watts

    def fold(self, record: RingSamples | GpmWindow | GpuLevels) -> list[ActivityWindow]:
        """Takes a record; returns the windows it completed."""
        if isinstance(record, GpuLevels):
            self._given = record
            if record.idle is not None and record.idle.watts is not None:
                self._learner.idle_watts = record.idle.watts
        else:
            self._alignment.add(record)
        return self._advance(flush=False)

    def flush(self) -> list[ActivityWindow]:
        """The end of a recording: everything held."""
        return self._advance(flush=True)

    def levels(self) -> GpuLevels | None:
        """What is known of this GPU's levels, given or learned; `None` if nothing is."""
        given, learner = self._given, self._learner
        idle = given.idle if given is not None else None
        waiting = given.waiting if given is not None else None
        if learner.idle_watts is not None:
            idle = replace(idle or ActivityLevel(), watts=learner.idle_watts)
        if waiting is None and learner.waiting_watts is not None:
            waiting = ActivityLevel(watts=learner.waiting_watts)
        working = given.working if given is not None else None
        if idle is None and waiting is None and working is None:
            return None
        return GpuLevels(self._gpu, idle, waiting, working)

    # --- what arrived, in blocks ---------------------------------------------------------------

    def _advance(self, *, flush: bool) -> list[ActivityWindow]:
        while (slice_ := self._alignment.next_slice(flush=flush)) is not None:
            self._learner.observe(slice_)
            self._add(slice_)
        if flush:
            self._close()
        return self._released(flush=flush)

    def _add(self, slice_: Slice) -> None:
        middle = (slice_.started_at + slice_.ended_at) / 2
        gpm = self._alignment.gpm_window(middle)
        if self._open and (gpm is None or gpm is not self._open_gpm):
            self._close()
        self._open.append(slice_)
        self._open_gpm = gpm
        if gpm is None:
            self._close()

    def _close(self) -> None:
        if not self._open:
            return
        gpm, resident = self._open_gpm, None
        if gpm is not None:
            resident = gpm.graphics_ratio
            if resident is None:
                resident = self._alignment.resident_ratio(gpm.started_at, gpm.ended_at)
        self._held.append(_Block(tuple(self._open), gpm, resident))
        self._open = []

    def _released(self, *, flush: bool) -> list[ActivityWindow]:
        if self._holding and not flush and self._must_hold():
            return []
        windows: list[ActivityWindow] = []
        while self._held:
            windows.extend(self._judged(self._held.popleft()))
        return windows

    def _must_hold(self) -> bool:
        known = self._learner.passes_resolved or self._given is not None
        over = self._alignment.now - self._alignment.first_at >= HOLD_SECONDS
        self._holding = self.has_peers and not known and not over
        return self._holding

    # --- judging -------------------------------------------------------------------------------

    def _judged(self, block: _Block) -> Iterable[ActivityWindow]:
        bracket = self._by_gpm(block)
        if bracket is not None:
            return self._windows_by_gpm(block, bracket, [self._by_power(s) for s in block.slices])
        shapes = [self._by_power(each) if self.has_peers else None for each in block.slices]
        self._check(block, shapes)
        windows: list[ActivityWindow] = []
        for slice_, working in zip(block.slices, shapes, strict=True):
            if working is None:
                windows.append(self._by_residency(slice_))
            else:
                windows.extend(self._windows(slice_, working, Method.POWER))
        return windows

    def _check(self, block: _Block, shapes: list[list[float] | None]) -> None:
        """Forgets the waiting level where GPM shows, again and again, that work was taken for it."""
        gpm, resident = block.gpm, block.gpm_resident_ratio
        if gpm is None or resident is None or None in shapes or self._learner.waiting_watts is None:
            return
        seconds = sum(slice_.seconds for slice_ in block.slices)
        found = sum(sum(shape) for shape in shapes if shape is not None) / seconds
        least = least_working_ratio(gpm, resident, self.multiprocessors)
        self._denials += _DENIAL_STEP * ((least > found + _DENIAL_MARGIN) - self._denials)
        if self._denials > 0.5:
            self._learner.deny()
            self._denials = 0.0

    def _by_gpm(self, block: _Block) -> Bracket | None:
        """Working share of the residency in the block's GPM window."""
        gpm, resident = block.gpm, block.gpm_resident_ratio
        if gpm is None or resident is None or resident <= 0.0 or not self.has_peers:
            return None
        given = self._given
        if given is not None:
            bracket = gpm_bracket(gpm, resident, given.waiting, given.working)
            if bracket is not None:
                return Bracket(*(share / resident for share in bracket))
        if any(slice_.pieces for slice_ in block.slices):
            return None
        return Bracket(0.0, 0.0, 0.0) if is_waiting_only(gpm, resident, self.multiprocessors) else None

    def _windows_by_gpm(
        self, block: _Block, bracket: Bracket, shapes: list[list[float] | None]
    ) -> Iterable[ActivityWindow]:
        """GPM says how much; power says when, and how much where GPM leaves room."""
        resident = sum(slice_.resident_seconds for slice_ in block.slices)
        have = sum(sum(shape) for shape in shapes if shape is not None)
        total = bracket.likely * resident
        if None not in shapes:
            total = min(max(have, bracket.low * resident), bracket.high * resident)
        for slice_, shape in zip(block.slices, shapes, strict=True):
            if shape is None or None in shapes:
                share = total / resident if resident else 0.0
                yield self._whole(slice_, share * slice_.resident_ratio, Method.GPM)
                continue
            if total <= have:
                part = sum(shape) * total / have if have else 0.0
            else:
                spare, all_spare = slice_.resident_seconds - sum(shape), resident - have
                part = sum(shape) + (spare * (total - have) / all_spare if all_spare > 0 else 0.0)
            yield from self._windows(slice_, scaled(shape, slice_.pieces, part), Method.GPM)

    def _by_power(self, slice_: Slice) -> list[float] | None:
        """Working seconds of each piece by power; `None` where power does not tell."""
        if not slice_.pieces:
            return None
        given, learner = self._given, self._learner
        idle, waiting = learner.idle_watts, learner.waiting_watts
        if given is not None and given.waiting is not None and given.waiting.watts is not None:
            waiting = given.waiting.watts
            if given.working is not None and given.working.watts is not None:
                low = idle if idle is not None else waiting
                return self._linear.working_seconds(
                    slice_, low, waiting, given.working.watts
                )
        if waiting is not None:
            return self._by_plateaus(slice_, waiting)
        return self._by_idle_draw(slice_, idle)

    def _by_idle_draw(self, slice_: Slice, idle: float | None) -> list[float] | None:
        """All waiting where a kernel is resident and the card draws what it draws when idle."""
        limit = self._learner.power_limit_watts
        if idle is None or limit is None or slice_.resident_ratio < _LEAST_RESIDENT_RATIO:
            return None
        energy = sum((p.watts - idle) * (p.ended_at - p.started_at) for p in slice_.pieces)
        if energy <= _IDLE_DRAW_RATIO * (limit - idle) * slice_.resident_seconds:
            return [0.0] * len(slice_.pieces)
        return None

    def _by_plateaus(self, slice_: Slice, waiting: float) -> list[float] | None:
        learner = self._learner
        band = max(
            _NOISE_BAND * learner.noise_watts, _BAND_RATIO * (self._reference_watts - waiting)
        )
        tops = learner.working_peaks or [self._reference_watts]
        working, total = [], 0.0
        unbroken = True
        for piece in slice_.pieces:
            share = plateau_share(piece, learner.idle_watts, waiting, band, tops)
            if share == 0.0:
                unbroken = False
            elif share == 1.0:
                step = _REFERENCE_STEP if self._reference_watts else 1.0
                self._reference_watts += step * (piece.watts - self._reference_watts)
            seconds = share * (piece.ended_at - piece.started_at)
            working.append(seconds)
            total += seconds
        resident = slice_.resident_seconds
        if total > 0.0 and not learner.passes_resolved:
            return None
        if unbroken or total > resident * (1 + OVERDRAW_RATIO) + 0.02:
            return None
        return scaled(working, slice_.pieces, resident) if total > resident else working

    # --- windows -------------------------------------------------------------------------------

    def _windows(
        self, slice_: Slice, working: list[float], method: Method
    ) -> Iterable[ActivityWindow]:
        waiting = waiting_seconds(working, slice_.pieces, slice_.resident_seconds)
        for piece, works, waits in zip(slice_.pieces, working, waiting, strict=True):
            seconds = piece.ended_at - piece.started_at
            yield ActivityWindow(
                self._gpu, piece.started_at, piece.ended_at, works / seconds, waits / seconds, method
            )

    def _whole(self, slice_: Slice, working_ratio: float, method: Method) -> ActivityWindow:
        waiting = max(slice_.resident_ratio - working_ratio, 0.0)
        return ActivityWindow(
            self._gpu, slice_.started_at, slice_.ended_at, working_ratio, waiting, method
        )

    def _by_residency(self, slice_: Slice) -> ActivityWindow:
        return ActivityWindow(
            self._gpu,
            slice_.started_at,
            slice_.ended_at,
            slice_.resident_ratio,
            None,
            Method.RESIDENCY,
        )
