"""How a stage's time is drawn: one color and one texture for each state, on light and dark ground.

Blue and orange stay apart for every kind of color vision, and each state differs from its
neighbors in lightness too (3 : 1 at least from working to waiting to idle), so that the picture
reads in gray. Textures are horizontal or vertical lines: they keep their look when a picture is
stretched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class CellState(StrEnum):
    """What a part of a cell shows."""

    WORKING = "working"
    WAITING = "waiting"
    RESIDENT = "resident"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Stripes:
    """Lines over a surface.

    Attributes:
        period: Distance of two lines, as a share of a row's height.
        line: Share of the period that a line is thick.
        upright: Whether they are vertical; else horizontal.
    """

    period: float
    line: float
    upright: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Colors on light and on dark ground: the surface, and the stripes over it if there are any."""

    light: str
    dark: str
    stripes: Stripes | None = None
    light_lines: str = ""
    dark_lines: str = ""


LOOKS: Final[dict[CellState, Look]] = {
    CellState.WORKING: Look("#003468", "#b5e0ff"),
    CellState.WAITING: Look("#c47a00", "#a3670f", Stripes(0.22, 0.36), "#9c5f00", "#7d4e0a"),
    CellState.RESIDENT: Look("#9cc3e3", "#3b6f9c", Stripes(0.34, 0.44), "#5f9ccb", "#5c93c2"),
    CellState.IDLE: Look("#f5f7f9", "#1c232b"),
    CellState.UNKNOWN: Look(
        "#d9dce0", "#343c45", Stripes(0.43, 0.3, upright=True), "#b4bac1", "#4d5762"
    ),
}
MEANINGS: Final[dict[CellState, str]] = {
    CellState.WORKING: "working",
    CellState.WAITING: "waiting: a kernel is there and does no work",
    CellState.RESIDENT: "resident: works or waits, an upper bound on work",
    CellState.IDLE: "idle: no kernel",
    CellState.UNKNOWN: "unknown: not seen",
}
"""For a legend."""
