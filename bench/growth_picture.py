"""Cost by size as one SVG: a panel a quantity, both axes logarithmic, beside them linear growth. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDE, _HIGH, _LEFT, _TOP, _GAP = 300, 170, 52, 34, 60
_INK, _FRAME, _LINEAR, _MEASURED = "#333", "#ccc", "#999", "#2a6f97"


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity against one size.

    Attributes:
        size: What grows, in words.
        unit: Of the quantity.
        points: (size, value), sizes rising.
    """

    size: str
    unit: str
    points: Sequence[tuple[float, float]]


def picture(panels: Sequence[Panel]) -> str:
    """The panels, two a row."""
    rows = math.ceil(len(panels) / 2)
    wide, high = 2 * (_LEFT + _WIDE) + 30, rows * (_TOP + _HIGH + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11">'
        f'<rect width="{wide}" height="{high}" fill="#fff"/>'
    ]
    for number, panel in enumerate(panels):
        left = _LEFT + number % 2 * (_WIDE + _LEFT)
        top = _TOP + number // 2 * (_TOP + _HIGH + _GAP - _TOP)
        parts += _panel(panel, left, top)
    return "\n".join([*parts, "</svg>\n"])


class _Axis:
    """A logarithmic axis of whole decades around some values."""

    def __init__(self, values: Sequence[float], start: float, length: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)
        self._start, self._length = start, length

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * self._length

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]

    def holds(self, value: float) -> float:
        return min(max(value, 10.0**self._low), 10.0**self._high)


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    across = _Axis([size for size, _ in panel.points], left, _WIDE)
    up = _Axis([value for _, value in panel.points], top + _HIGH, -_HIGH)
    parts = [_text(left, top - 8, f"{panel.unit}, by {panel.size}")]
    for value in up.decades():
        y = up.at(value)
        parts.append(_line(left, y, left + _WIDE, y, _FRAME))
        parts.append(_text(left - 6, y + 4, f"{value:g}", "end"))
    for size in across.decades():
        x = across.at(size)
        parts.append(_line(x, top, x, top + _HIGH, _FRAME))
        parts.append(_text(x, top + _HIGH + 15, f"{size:,.0f}", "middle"))
    parts += _linear(panel, across, up)
    path = " ".join(f"{across.at(size):.1f},{up.at(value):.1f}" for size, value in panel.points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{_MEASURED}" stroke-width="2"/>')
    for size, value in panel.points:
        x, y = across.at(size), up.at(value)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_MEASURED}"/>')
        parts.append(_text(x + 6, y - 6, f"{value:.3g}"))
    return parts


def _linear(panel: Panel, across: _Axis, up: _Axis) -> list[str]:
    """In proportion to the size, through the largest point."""
    size, value = panel.points[-1]
    lowest = up.decades()[0]
    from_size = max(panel.points[0][0], size * lowest / value)
    return [
        _line(across.at(from_size), up.at(up.holds(value * from_size / size)), across.at(size), up.at(value), _LINEAR, dashed=True)
    ]  # fmt: skip


def _line(x1: float, y1: float, x2: float, y2: float, color: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{dash}/>'


def _text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{_INK}" text-anchor="{anchor}">{said}</text>'
