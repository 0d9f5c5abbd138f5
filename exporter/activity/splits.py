"""A slice, split: working and waiting seconds of each of its pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from exporter.activity.slices import Piece


class Split(NamedTuple):
    """Working seconds of each piece, and whether they are proven or only an upper bound."""

    working: list[float]
    proven: list[bool]

    @classmethod
    def of(cls, working: list[float]) -> Split:
        """All proven."""
        return cls(working, [True] * len(working))


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
        cut = working[index] > 0.0 and lowest(piece) < (rest_watts or 0.0)
        return cut, -piece.watts

    for index in sorted(range(len(pieces)), key=place):
        waiting[index] = taken = min(max(pieces[index].seconds - working[index], 0.0), left)
        left -= taken
    return waiting


def lowest(piece: Piece) -> float:
    """Of a sample and its neighbors, in watts."""
    return min(n for n in (piece.watts, piece.before, piece.after) if n is not None)
