"""What power says of a slice: working seconds of each of its pieces, or that power does not tell.

watts = idle (1 - r) + waiting (r - w) + working w        r: resident share, from the ring
                                                          w: working share
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from exporter.activity.levels import STEADY_RATIO, LevelLearner
from exporter.activity.proof import MANY, filled_slices, proven_pieces
from exporter.activity.slices import Piece, Slice

_OVERDRAW_SHARE = 0.1
"""Working share over one from which a sample shows other work than the known working level."""
_USUAL_STEP = 0.05
_TOP_DECAY = 0.01
_CUT_STEP = 0.1

_OVERRUN_RATIO = 0.25
_OVERRUN_SECONDS = 0.02
"""How much more work the samples of a slice may show than the ring shows residency: edges."""
_BAND_RATIO = 0.05
_NOISE_BAND = 3.0
_SURE_BAND = 2.0
_FULLY_RESIDENT = 0.97
_REFERENCE_STEP = 0.05
_IDLE_DRAW_RATIO = 0.02
"""Resident, yet within this share of the range from idle to the power limit: nothing works. The
smallest NCCL-like spin on an H200 adds 8 of 576 W, the least decode load there 290 W."""
_LEAST_RESIDENT_RATIO = 0.05


class KnownLevels:
    """Splits slices when idle, waiting and working level are known, however short the passes are.

    Power lags by part of a sample and samples straddle slices, so what a slice cannot hold is
    carried to the next, up to one sample's length: bounding each slice alone would lose it.
    """

    def __init__(self, waiting_watts: float, working_watts: float) -> None:
        """Takes the levels; `working_watts` must be the higher."""
        self._waiting_watts = waiting_watts
        self._step_watts = working_watts - waiting_watts
        self._carried_seconds = 0.0
        self._usual_watts: float | None = None
        self._usual_share = 0.0
        self._top_watts = 0.0
        self._cut_short_ratio = 0.0

    def working_seconds(self, slice_: Slice, idle_watts: float | None) -> list[float] | None:
        """Working seconds of each piece; `None` where other work comes shorter than a sample."""
        resident = slice_.resident_seconds
        idle = self._waiting_watts if idle_watts is None else idle_watts
        # A resting card draws less than a waiting one, which the shares below take for less work.
        rest = (slice_.seconds - resident) * (self._waiting_watts - idle) / self._step_watts
        total = self._carried_seconds + rest
        shape: list[float] = []
        for piece in slice_.pieces:
            share, seconds = self._share(piece), piece.seconds
            total += share * seconds
            shape.append(seconds * min(max(share, 0.0), 1.0))
        bounded = min(max(total, 0.0), resident)
        longest = max(piece.seconds for piece in slice_.pieces)
        self._carried_seconds = min(max(total - bounded, -longest), longest)
        if self._cut_short_ratio > 0.5 and bounded > 0.0:
            return None
        return scaled(shape, slice_.pieces, bounded)

    def _share(self, piece: Piece) -> float:
        """Working share as if all the sample were resident; below 0 where it was idle."""
        watts = piece.watts
        share = (watts - self._waiting_watts) / self._step_watts
        if self._usual_watts is None:
            self._usual_watts, self._usual_share = watts, min(share, 1.0)
        overdraw = self._waiting_watts + (1.0 + _OVERDRAW_SHARE) * self._step_watts
        beside = max(piece.before or 0.0, piece.after or 0.0) > overdraw
        if watts <= overdraw and not (beside and self._top_watts):
            self._usual_watts += _USUAL_STEP * (watts - self._usual_watts)
            self._usual_share += _USUAL_STEP * (min(share, 1.0) - self._usual_share)
            return share
        # Other work, which draws more (prefill between decodes), or its edge: what of the sample it
        # filled, by the most it draws; the rest of the sample was as usual.
        if watts > overdraw:
            self._cut_short_ratio += _CUT_STEP * (_is_alone(piece) - self._cut_short_ratio)
            self._top_watts = max(watts, self._top_watts - _TOP_DECAY * (self._top_watts - watts))
        if self._top_watts <= self._usual_watts:
            return 1.0
        filled = (watts - self._usual_watts) / (self._top_watts - self._usual_watts)
        if filled < 0.0:
            return share
        return filled + (1.0 - filled) * self._usual_share


class Split(NamedTuple):
    """Working seconds of each piece, and whether they are proven or only an upper bound."""

    working: list[float]
    proven: list[bool]

    @classmethod
    def of(cls, working: list[float]) -> Split:
        """All proven."""
        return cls(working, [True] * len(working))


class LearnedLevels:
    """Splits slices by what the learner has proven.

    Where passes are longer than a sample, a working sample is measured by the pass it lies in, so
    no working level is needed. Samples at the waiting level or below prove themselves. A stretch
    of work is proven if a wait or idleness shows before and after it, with one slice that it fills
    between them at the most: one pass that is longer is rare, and many short ones with waits
    between look alike.
    """

    def __init__(self, learner: LevelLearner) -> None:
        self._learner = learner
        self._reference_watts = 0.0
        self._filled_since_rest = MANY

    def split(self, slice_: Slice, following: Sequence[Slice]) -> Split | None:
        """Splits the next slice; `None` where nothing is proven.

        Args:
            slice_: Slices must be asked for in time order.
            following: Those after it that are known and follow at once.
        """
        waiting = self._learner.waiting_watts
        if waiting is None:
            return self._by_idle_draw(slice_)
        least = _NOISE_BAND * self._learner.noise_watts
        band = max(least, _BAND_RATIO * (self._reference_watts - waiting))
        working = self._by_passes(slice_, waiting, band)
        total, resident = sum(working), slice_.resident_seconds
        level = waiting + band
        filled_before = self._filled_since_rest
        filled = filled_slices(slice_, level, waiting)
        self._filled_since_rest = 0 if 0.0 in working else filled_before + filled
        if total > resident * (1 + _OVERRUN_RATIO) + _OVERRUN_SECONDS:
            return None
        filled_after = 0
        for after in following:
            if any(piece.watts <= level for piece in after.pieces):
                break
            filled_after += filled_slices(after, level, waiting)
        else:
            filled_after = MANY
        proven = proven_pieces(working, filled, filled_before, filled_after)
        if not self._learner.passes_resolved:
            proven = [self._surely_rests(slice_, piece, waiting) for piece in slice_.pieces]
        if total > resident:
            working = scaled(working, slice_.pieces, resident)
        return Split(working, proven)

    def _surely_rests(self, slice_: Slice, piece: Piece, waiting: float) -> bool:
        """Whether a sample holds no work, though passes shorter than it may be about.

        A little work between waits, or work and idleness together, draw what waiting draws: the
        samples beside it must rest too, and no idleness be near.
        """
        level = waiting + _SURE_BAND * self._learner.noise_watts
        highest = max(n for n in (piece.watts, piece.before, piece.after) if n is not None)
        return highest <= level and slice_.resident_ratio >= _FULLY_RESIDENT

    def _by_passes(self, slice_: Slice, waiting: float, band: float) -> list[float]:
        learner = self._learner
        tops = learner.working_peaks or [self._reference_watts]
        working = []
        for piece in slice_.pieces:
            share = pass_share(piece, (learner.idle_watts, waiting), band, tops)
            if share == 1.0:
                step = _REFERENCE_STEP if self._reference_watts else 1.0
                self._reference_watts += step * (piece.watts - self._reference_watts)
            working.append(share * piece.seconds)
        return working

    def _by_idle_draw(self, slice_: Slice) -> Split | None:
        """All waiting where a kernel is resident and the card draws what it draws when idle."""
        idle, limit = self._learner.idle_watts, self._learner.power_limit_watts
        if idle is None or limit is None or slice_.resident_ratio < _LEAST_RESIDENT_RATIO:
            return None
        excess_joules = sum((piece.watts - idle) * piece.seconds for piece in slice_.pieces)
        if excess_joules > _IDLE_DRAW_RATIO * (limit - idle) * slice_.resident_seconds:
            return None
        return Split.of([0.0] * len(slice_.pieces))


def pass_share(
    piece: Piece, levels: tuple[float | None, float], band: float, tops: Sequence[float]
) -> float:
    """Working share of one sample where passes are longer than samples.

    A sample as high as both its neighbors lies inside a pass, whatever that pass draws. One that
    is not may be cut by the pass's border, and is measured by what passes draw.

    Args:
        piece: The sample, with its neighbors.
        levels: Watts idle (`None`: not known) and waiting.
        band: Watts over the waiting level that are still waiting.
        tops: What passes drew of late, lowest first.
    """
    (idle, waiting), watts = levels, piece.watts
    excess = watts - waiting
    if excess <= band:
        return 0.0
    neighbors = [n for n in (piece.before, piece.after) if n is not None]
    agreeing = sum(abs(n - watts) <= STEADY_RATIO * excess for n in neighbors)
    if agreeing == 2:
        return 1.0
    highest = max(watts, *neighbors, waiting)
    top = next((top for top in tops if top > highest - band), highest)
    # As high as passes draw; or two that agree far below: a kind of work not seen before.
    ratio = excess / (top - waiting)
    if agreeing and (ratio >= 1.0 - STEADY_RATIO or highest - waiting < 0.5 * (top - waiting)):
        return 1.0
    base = waiting
    if idle is not None and _lowest(piece) < (idle + waiting) / 2:
        base = idle  # a pass that idleness cut, not waiting
    return min((watts - base) / (max(top, highest) - base), 1.0)


def scaled(shape: Sequence[float], pieces: Sequence[Piece], total: float) -> list[float]:
    """The shape with another sum, no piece over its length: lowered in proportion, filled evenly."""
    have = sum(shape)
    if total <= have:
        return [value * total / have for value in shape] if have > 0.0 else [0.0] * len(shape)
    room = sum(piece.seconds for piece in pieces) - have
    share = min((total - have) / room, 1.0) if room > 0.0 else 0.0
    return [
        value + (piece.seconds - value) * share for value, piece in zip(shape, pieces, strict=True)
    ]


def waiting_seconds(
    working: Sequence[float],
    pieces: Sequence[Piece],
    resident_seconds: float,
    rest_watts: float | None,
) -> list[float]:
    """Shares the rest of the residency out: the pieces that drew most were resident first.

    A piece beside one that drew less than `rest_watts` was cut by idleness: it comes last.
    """
    left = max(resident_seconds - sum(working), 0.0)
    waiting = [0.0] * len(pieces)
    if left == 0.0:
        return waiting

    def place(index: int) -> tuple[bool, float]:
        piece = pieces[index]
        cut = working[index] > 0.0 and _lowest(piece) < (rest_watts or 0.0)
        return cut, -piece.watts

    for index in sorted(range(len(pieces)), key=place):
        waiting[index] = taken = min(max(pieces[index].seconds - working[index], 0.0), left)
        left -= taken
    return waiting


def _lowest(piece: Piece) -> float:
    return min(n for n in (piece.watts, piece.before, piece.after) if n is not None)


def _is_alone(piece: Piece) -> bool:
    """Whether both neighbors lie well below a sample."""
    reach = (1.0 - STEADY_RATIO) * piece.watts
    return all(n is None or n < reach for n in (piece.before, piece.after))
