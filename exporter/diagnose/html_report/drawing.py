"""Pictures → the numbers of an SVG: paths of the rows, strips above them, ticks below. Pure.

A row is drawn in units of one cell by a height of 100. Each state is one path of steps from the
bottom, painted over the one that stands on it; what is unknown hangs from the top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from exporter.diagnosis.picture import Picture, Row
from exporter.diagnosis.steady_window import Span
from exporter.palette import CellState
from exporter.pipeline.stage_cells import Shares

_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_MOST_TICKS = 6
_LEAST_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a strip, in percent of its width."""

    x: float
    width: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """An instant on the axis: percent of its width, its text, and where the text is anchored."""

    x: float
    text: str
    anchor: str


_PAINTED: tuple[tuple[CellState, Callable[[Shares], float], Callable[[Shares], float]], ...] = (
    (CellState.RESIDENT, lambda s: s.resident, lambda s: s.working + s.waiting + s.resident),
    (CellState.WAITING, lambda s: s.waiting, lambda s: s.working + s.waiting),
    (CellState.WORKING, lambda s: s.working, lambda s: s.working),
)
"""By state: its own share, and where it ends above those below it."""


def state_paths(row: Row) -> list[tuple[CellState, str]]:
    """Paths of a row in the order they are painted; a state that does not occur has none."""
    paths = [
        (state, _steps((top(cell) for cell in row.cells), len(row.cells), from_top=False))
        for state, share, top in _PAINTED
        if any(share(cell) >= _LEAST_SHARE for cell in row.cells)
    ]
    unknown = _steps((cell.unknown for cell in row.cells), len(row.cells), from_top=True)
    return [*paths, (CellState.UNKNOWN, unknown)] if unknown else paths


def line_marks(row: Row, picture: Picture, most: int) -> str:
    """A stroke for each batch line of a row, as high as its batch is of the largest; one a column."""
    highest: dict[int, int] = {}
    for at, requests in row.lines:
        column = int((at - picture.started_at) / picture.cell_seconds)
        highest[column] = max(highest.get(column, 0), requests)
    return "".join(
        f"M{column}.5 100V{100 - round(90 * max(requests, 1) / max(most, 1))}"
        for column, requests in sorted(highest.items())
    )


def _steps(shares: Iterable[float], count: int, *, from_top: bool) -> str:
    base = 0 if from_top else 100
    parts: list[str] = []
    height = 0
    for x, share in enumerate(shares):
        now = min(round(100 * share), 100)
        if now == height:
            continue
        y = now if from_top else 100 - now
        parts.append(f"H{x}V{y}" if height else f"M{x} {base}V{y}")
        if not now:
            parts.append("Z")
        height = now
    return "".join([*parts, f"H{count}V{base}Z"] if height else parts)


def bar_of(picture: Picture, span: Span, text: str = "") -> Bar:
    """A stretch of time, cut to what the picture shows."""
    length = picture.ended_at - picture.started_at
    start = min(max(span[0] - picture.started_at, 0.0), length)
    end = min(max(span[1] - picture.started_at, start), length)
    return Bar(round(100 * start / length, 2), round(100 * (end - start) / length, 2), text)


def ticks(picture: Picture, origin: float) -> Sequence[Tick]:
    """Round instants, in seconds from an origin."""
    first, last = picture.started_at - origin, picture.ended_at - origin
    length = last - first
    step = next((s for s in _STEPS if length / s <= _MOST_TICKS), _STEPS[-1])
    digits = 1 if step < 1 else 0
    found = []
    for number in range(round(first / step) - 1, round(last / step) + 2):
        at = number * step
        if not first - 1e-6 <= at <= last + 1e-6:
            continue
        x = round(100 * (at - first) / length, 2)
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"
        found.append(Tick(x, f"{at:.{digits}f} s", anchor))
    return found
