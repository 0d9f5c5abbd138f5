"""One GPU's time, split into working, waiting and idle.

In: ring samples, GPM windows, levels known beforehand. Out: windows in time order that cover what
the utilization ring covers, each instant once. Evidence in order: GPM and power against known or
learned levels, residency as an upper bound. What cannot be proven from this GPU's own signals is
left to residency, never guessed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, TypeGuard

from exporter.activity.gpm import Bracket, least_working_ratio, working_bracket
from exporter.activity.known_levels import KnownLevels
from exporter.activity.learned_levels import LearnedLevels
from exporter.activity.levels import LONGEST_SAMPLE_SECONDS, LevelLearner
from exporter.activity.power_lag import LAG_RATIOS, PowerLag
from exporter.activity.slices import Alignment, Slice, following_at_once
from exporter.activity.splits import Split, scaled
from exporter.activity.windows import pieces_of, whole
from exporter.activity.witness import GpmWitness
from exporter.records import (
    ActivityLevel,
    ActivityWindow,
    GpmWindow,
    GpuLevels,
    Method,
    RingSamples,
    Signal,
)

HOLD_SECONDS = 30.0
"""How long the first windows wait for levels; afterwards nothing waits for them."""
_LEAST_STEP_WATTS = 5.0
"""Waiting and working level closer than the noise of a sample tell nothing."""
_DENIAL_STEP = 0.2
_DENIAL_MARGIN = 0.05


class _Block(NamedTuple):
    """Slices that are judged together: those of one GPM window, or a single one without GPM."""

    slices: tuple[Slice, ...]
    gpm: GpmWindow | None
    gpm_resident_ratio: float | None

    @property
    def resident_seconds(self) -> float:
        return sum(slice_.resident_seconds for slice_ in self.slices)


class GpuActivity:
    """Folds the records of one GPU in time order; memory and work per sample are bounded.

    Attributes:
        has_peers: Whether a kernel on this GPU can have somebody to wait for. Set it to false for
            the only rank of a server: residency is the truth there, and nothing is held back.
        multiprocessors: SMs of the card; `None` if not known.
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
        self._lag = PowerLag()
        self._learner = LevelLearner(power_limit_watts)
        self._learned = LearnedLevels(self._learner)
        self._witness = GpmWitness(self._learner)
        self._known: KnownLevels | None = None
        self._given: GpuLevels | None = None
        self._open: list[Slice] = []
        self._open_gpm: GpmWindow | None = None
        self._held: deque[_Block] = deque()
        self._holding = True
        self._denials = 0.0

    @property
    def power_limit_watts(self) -> float | None:
        """The card's power limit, which bounds what waiting can draw; `None` if not known."""
        return self._learner.power_limit_watts

    @power_limit_watts.setter
    def power_limit_watts(self, watts: float | None) -> None:
        self._learner.power_limit_watts = watts

    def note_model(self, model: str | None) -> None:
        """Takes what card it is, as the driver says: some lag in a known way."""
        self._lag.ratio = LAG_RATIOS.get(model or "", 0.0)

    def note_turn(self, seconds: float, at: float) -> None:
        """Takes how many seconds lie between the starts of two passes, by the log at an instant."""
        self._learned.note_turn(seconds, at)

    def fold(self, record: RingSamples | GpmWindow | GpuLevels) -> list[ActivityWindow]:
        """Takes a record; returns the windows it completed."""
        if isinstance(record, GpuLevels):
            self._take(record)
        elif self._known is None and _is_power(record):
            # Against known levels sums count, which a lag leaves as they are.
            self._alignment.add(self._lag.undone(record))
        else:
            self._alignment.add(record)
        return self._advance(flush=False)

    def flush(self) -> list[ActivityWindow]:
        """The end of a recording: everything held."""
        return self._advance(flush=True)

    def levels(self) -> GpuLevels | None:
        """What is known of this GPU's levels, given or learned; `None` if nothing is.

        The working level is there only if it was given: it is not learned.
        """
        given, learner = self._given, self._learner
        idle, waiting, working = (
            (None, None, None) if given is None else (given.idle, given.waiting, given.working)
        )
        if learner.idle_watts is not None:
            idle = replace(idle or ActivityLevel(), watts=learner.idle_watts)
        if learner.waiting_watts is not None:
            waiting = replace(waiting or ActivityLevel(), watts=learner.waiting_watts)
        if idle is None and waiting is None and working is None:
            return None
        return GpuLevels(self._gpu, idle, waiting, working)

    def _take(self, levels: GpuLevels) -> None:
        self._given, self._known = levels, None
        idle, waiting, working = (
            None if level is None else level.watts
            for level in (levels.idle, levels.waiting, levels.working)
        )
        if idle is not None:
            self._learner.idle_watts = idle
        if waiting is None or (working is not None and working - waiting < _LEAST_STEP_WATTS):
            return
        self._learner.waiting_watts = waiting
        if working is not None:
            self._known = KnownLevels(waiting, working)

    # --- what arrived, in blocks ---------------------------------------------------------------

    def _advance(self, *, flush: bool) -> list[ActivityWindow]:
        while (slice_ := self._alignment.next_slice(flush=flush)) is not None:
            self._learner.observe_idle(slice_)
            if self.has_peers and self._known is None:
                self._learner.observe(slice_)
            self._add(slice_)
        if flush:
            self._close()
        if self._holding and not flush and self._must_hold():
            return []
        windows: list[ActivityWindow] = []
        while self._held:
            after = self._held[1].slices if len(self._held) > 1 else self._open
            if not after and not flush and self._known is None:
                break  # the slice after a block takes part in judging it
            windows.extend(self._judge(self._held.popleft(), after[0] if after else None))
        return windows

    def _add(self, slice_: Slice) -> None:
        gpm = self._alignment.gpm_window((slice_.started_at + slice_.ended_at) / 2)
        if gpm is not self._open_gpm:
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

    def _must_hold(self) -> bool:
        known = self._given is not None or self._learner.passes_resolved
        over = self._alignment.now - self._alignment.first_at >= HOLD_SECONDS
        self._holding = self.has_peers and not known and not over
        return self._holding

    # --- judging -------------------------------------------------------------------------------

    def _judge(self, block: _Block, following: Slice | None) -> Iterator[ActivityWindow]:
        if self._known is None or not self.has_peers:
            splits = self._by_learned_levels(block, following)
            shapes = [None if split is None else split.working for split in splits]
        else:
            shapes = [self._known_shape(self._known, slice_) for slice_ in block.slices]
            splits = [None if shape is None else Split.of(shape) for shape in shapes]
        bracket = self._by_gpm(block, splits, following)
        if bracket is not None:
            yield from self._windows_by_gpm(block, bracket, shapes)
            return
        self._check(block, shapes)
        for slice_, split in zip(block.slices, splits, strict=True):
            if split is None:
                yield whole(self._gpu, slice_, slice_.resident_ratio, Method.RESIDENCY)
            else:
                yield from self._pieces_of(slice_, split, Method.POWER)

    def _known_shape(self, known: KnownLevels, slice_: Slice) -> list[float] | None:
        if not slice_.pieces:
            return None
        return known.working_seconds(slice_, self._learner.idle_watts)

    def _by_learned_levels(self, block: _Block, following: Slice | None) -> list[Split | None]:
        splits: list[Split | None] = []
        known = block.slices if following is None else (*block.slices, following)
        for index, slice_ in enumerate(block.slices):
            if not slice_.pieces or not self.has_peers:
                splits.append(None)
                continue
            splits.append(self._learned.split(slice_, following_at_once(known, index)))
        return splits

    def _by_gpm(
        self, block: _Block, splits: list[Split | None], following: Slice | None
    ) -> Bracket | None:
        """Working share of the residency in the block's GPM window; `None`: GPM does not tell."""
        gpm, resident = block.gpm, block.gpm_resident_ratio
        if gpm is None or resident is None or not self.has_peers:
            return None
        found = None
        if self._given is not None:
            found = working_bracket(gpm, resident, self._given.waiting, self._given.working)
        if found is None and self._known is None:
            judged = zip(block.slices, splits, strict=True)
            found = self._witness.ask(gpm, resident, judged, following)
        if found is None:
            return None
        return Bracket(*(share / resident if resident else 0.0 for share in found))

    def _check(self, block: _Block, shapes: list[list[float] | None]) -> None:
        """Forgets a waiting level where GPM shows, again and again, that work was taken for it."""
        gpm, resident = block.gpm, block.gpm_resident_ratio
        known = [shape for shape in shapes if shape is not None]
        if gpm is None or resident is None or len(known) < len(shapes):
            return
        found = sum(map(sum, known)) / sum(slice_.seconds for slice_ in block.slices)
        least = least_working_ratio(gpm, resident, self.multiprocessors)
        self._denials += _DENIAL_STEP * ((least > found + _DENIAL_MARGIN) - self._denials)
        if self._denials > 0.5 and self._learner.waiting_watts is not None:
            self._learner.deny()
            self._denials = 0.0

    # --- windows -------------------------------------------------------------------------------

    def _windows_by_gpm(
        self, block: _Block, bracket: Bracket, shapes: list[list[float] | None]
    ) -> Iterator[ActivityWindow]:
        """GPM says how much; power says when, and how much where GPM leaves room."""
        resident = block.resident_seconds
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            for slice_ in block.slices:
                yield whole(self._gpu, slice_, bracket.likely * slice_.resident_ratio, Method.GPM)
            return
        have = sum(map(sum, known))
        bounded = min(max(have, bracket.low * resident), bracket.high * resident)
        total = (bounded + bracket.likely * resident) / 2
        if any(slice_.pieces[0].sample_seconds > LONGEST_SAMPLE_SECONDS for slice_ in block.slices):
            total = bracket.likely * resident  # such samples say no more of mixed work than GPM
        for slice_, shape in zip(block.slices, known, strict=True):
            part = sum(shape)
            if total <= have:
                part *= total / have if have > 0.0 else 0.0
            elif resident > have:
                spare = slice_.resident_seconds - part
                part += spare * (total - have) / (resident - have)
            working = scaled(shape, slice_.pieces, part)
            yield from self._pieces_of(slice_, Split.of(working), Method.GPM)

    def _pieces_of(self, slice_: Slice, split: Split, method: Method) -> Iterator[ActivityWindow]:
        return pieces_of(self._gpu, slice_, split, method, self._learner.rest_watts)


def _is_power(record: RingSamples | GpmWindow) -> TypeGuard[RingSamples]:
    return isinstance(record, RingSamples) and record.signal is Signal.POWER
