"""Whether a stretch of work is one pass: then its samples are proven, else an upper bound.

A wait or idleness before and after a stretch proves it, with at most one slice between them that
the stretch fills from end to end: a longer pass is rare, and many short ones with waits between
look alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporter.activity.slices import Slice

_UNBROKEN_SLICES = 1
"""Slices that one stretch of work may fill from end to end and still be one pass."""
MANY = 1000
"""Filled slices of which nothing is known: too many."""
_DIP_RATIO = 0.05
"""A fall and rise by this share of the draw over waiting is a wait, not a pass's own wander."""


def filled_slices(slice_: Slice, level: float, waiting: float) -> int:
    """One for a slice that a single pass fills; many for any other.

    A pass rises, overshoots and decays; a draw that falls and rises again hides a wait.
    """
    watts = [piece.watts for piece in slice_.pieces]
    if not watts or min(watts) <= level:
        return MANY
    dip = _DIP_RATIO * (max(watts) - waiting)
    highest = lowest = watts[0]
    for value in watts:
        if value > lowest + dip and lowest < highest - dip:
            return MANY
        if value > highest:
            highest = lowest = value
        lowest = min(lowest, value)
    return 1


def proven_pieces(
    working: Sequence[float], filled: int, filled_before: int, filled_after: int
) -> list[bool]:
    """Which pieces are proven: those that rest, and stretches of work with rest on both sides.

    Args:
        working: Working seconds of each piece of a slice; 0 rests.
        filled: What a slice without rest counts for: 1 if one pass fills it.
        filled_before: Slices filled by work between this one and the last that had a rest.
        filled_after: The same towards the next that has one.
    """
    rests = [index for index, seconds in enumerate(working) if seconds == 0.0]
    if not rests:
        return [filled_before + filled + filled_after <= _UNBROKEN_SLICES] * len(working)
    first, last = rests[0], rests[-1]
    return [
        (index >= first or filled_before <= _UNBROKEN_SLICES)
        and (index <= last or filled_after <= _UNBROKEN_SLICES)
        for index in range(len(working))
    ]
