"""What power says of a slice by what was learned: working seconds of each of its pieces.

What is not proven by this is marked so, or not said at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporter.activity.levels import STEADY_RATIO, WAITING_RANGE_RATIO, LevelLearner
from exporter.activity.proof import MANY, filled_slices, proven_pieces
from exporter.activity.slices import Piece, Slice
from exporter.activity.splits import Split, lowest, scaled

_OVERRUN_RATIO = 0.25
_OVERRUN_SECONDS = 0.02
"""How much more work the samples of a slice may show than the ring shows residency: edges."""
_BAND_RATIO = 0.05
_NOISE_BAND = 3.0
_SURE_BAND = 2.0
_FULLY_RESIDENT = 0.97
_REFERENCE_STEP = 0.05
_TURN_VALID_SECONDS = 30.0
_LEAST_TURN_SAMPLES = 5
"""Of a turn that holds at least so many samples, a wait that hides in the wander of the draw is
3 % at the most: 15 % of one sample."""
_STEADY = 1.0 - STEADY_RATIO
_IDLE_DRAW_RATIO = 0.025
"""Resident, yet within this share of the range from idle to the power limit: nothing works. An
NCCL receive of some bytes on an H200 adds up to 11.6 of 576 W (while its links are awake), the
least decode load there 290 W: a twentieth of that is the most that is taken for waiting."""
_LEAST_RESIDENT_RATIO = 0.05


class LearnedLevels:
    """Splits slices by what the learner has proven.

    Where passes are longer than a sample, a working sample is measured by the pass it lies in, so
    no working level is needed. Samples at the waiting level or below prove themselves. A stretch
    of work is proven if a wait or idleness shows before and after it, with one slice that it fills
    between them at the most: one pass that is longer is rare, and many short ones with waits
    between look alike. Where the log shows turns of many samples, every wait would show, and no
    rest is asked for.
    """

    def __init__(self, learner: LevelLearner) -> None:
        self._learner = learner
        self._reference_watts = 0.0
        self._filled_since_rest = MANY
        self._turn_seconds = 0.0
        self._turn_known_at = 0.0

    def note_turn(self, seconds: float, at: float) -> None:
        """Takes how often the log says that a pass begins: a wait comes once a turn at the most."""
        self._turn_seconds, self._turn_known_at = seconds, at

    def _shows_waits(self, slice_: Slice) -> bool:
        """Whether turns are so long that a wait of any weight shows in a sample or several."""
        longest = max(piece.sample_seconds for piece in slice_.pieces)
        fresh = abs(slice_.ended_at - self._turn_known_at) <= _TURN_VALID_SECONDS
        return fresh and self._turn_seconds >= _LEAST_TURN_SAMPLES * longest

    def split(self, slice_: Slice, following: Sequence[Slice]) -> Split | None:
        """Splits the next slice; `None` where nothing is proven.

        Args:
            slice_: Slices must be asked for in time order.
            following: Those after it that are known and follow at once.
        """
        waiting = self._learner.waiting_watts
        if waiting is None:
            return self._by_idle_draw(slice_) or self._by_steady_draw(slice_)
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
        elif self._shows_waits(slice_):
            proven = [True] * len(working)
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

    def _by_steady_draw(self, slice_: Slice) -> Split | None:
        """All work where every wait would show and none does, far above what waiting can draw.

        So works the stage that all others wait for: its own waiting level is never seen.
        """
        idle, limit = self._learner.idle_watts, self._learner.power_limit_watts
        if idle is None or limit is None or slice_.resident_ratio < _FULLY_RESIDENT:
            return None
        least = idle + WAITING_RANGE_RATIO * (limit - idle)
        if not self._shows_waits(slice_) or not all(
            lowest(piece) > least and lowest(piece) - idle >= _STEADY * (piece.watts - idle)
            for piece in slice_.pieces
        ):
            return None
        return Split.of([piece.seconds for piece in slice_.pieces])


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
    if idle is not None and lowest(piece) < (idle + waiting) / 2:
        base = idle  # a pass that idleness cut, not waiting
    return min((watts - base) / (max(top, highest) - base), 1.0)
