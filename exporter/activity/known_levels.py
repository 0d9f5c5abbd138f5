"""What power says of a slice by known levels of idle, waiting and work.

watts = idle (1 - r) + waiting (r - w) + working w        r: resident share, from the ring
                                                          w: working share
"""

from __future__ import annotations

from exporter.activity.levels import STEADY_RATIO
from exporter.activity.slices import Piece, Slice
from exporter.activity.splits import scaled

_OVERDRAW_SHARE = 0.1
"""Working share over one from which a sample shows other work than the known working level."""
_USUAL_STEP = 0.05
_TOP_DECAY = 0.01
_CUT_STEP = 0.1


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
        if self._top_watts <= self._usual_watts or _is_inside(piece, overdraw):
            return 1.0
        filled = (watts - self._usual_watts) / (self._top_watts - self._usual_watts)
        if filled < 0.0:
            return share
        return filled + (1.0 - filled) * self._usual_share


def _is_inside(piece: Piece, level: float) -> bool:
    """Whether a sample and both its neighbors lie above a level."""
    return all(n is not None and n > level for n in (piece.before, piece.watts, piece.after))


def _is_alone(piece: Piece) -> bool:
    """Whether both neighbors lie well below a sample."""
    reach = (1.0 - STEADY_RATIO) * piece.watts
    return all(n is None or n < reach for n in (piece.before, piece.after))
