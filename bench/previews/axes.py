"""Axes, and the two shapes that everything is drawn with, as SVG."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from html import escape

from bench.previews.data import Window
from bench.previews.reading import DIM, LINE, Field, Json

LEFT = 58.0
"""Room for the values of an axis."""
_DIVISIONS = 4


def text(x: float, y: float, words: str, *, size: float = 11, color: str = DIM, **at: str) -> str:
    """One line of text; `anchor` and `weight` as in SVG."""
    anchor, weight = at.get("anchor", "start"), at.get("weight", "400")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{color}" '
        f'text-anchor="{anchor}" font-weight="{weight}">{escape(words)}</text>'
    )


def box(x: float, y: float, width: float, height: float, color: str, radius: float = 0) -> str:
    """A filled rectangle."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
        f'height="{max(height, 0):.1f}" rx="{radius:g}" fill="{color}"/>'
    )


def value_range(panel: Json, lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Bottom and top of the value axis; without a maximum of its own, round numbers above all."""
    defaults = panel["fieldConfig"]["defaults"]
    values = [value for line in lines for _, value in line]
    floor = min(defaults.get("min", 0.0), 0.0)
    top = defaults.get("max")
    if top is None:
        top = floor + _DIVISIONS * _round_above((max(values) - floor) / _DIVISIONS)
    return floor, top


def _round_above(step: float) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that is not below; a quarter for nothing."""
    if step <= 0.0:
        return 1.0 / _DIVISIONS
    power = 10.0 ** math.floor(math.log10(step))
    return next(
        round_step * power for round_step in (1, 2, 2.5, 5, 10) if step <= round_step * power
    )


def value_axis(field: Field, floor: float, top: float, width: float, plot: float) -> str:
    """Lines and values from the bottom to the top."""
    parts = []
    for at in range(_DIVISIONS + 1):
        value = floor + (top - floor) * at / _DIVISIONS
        y = plot - plot * at / _DIVISIONS
        parts.append(box(LEFT, y, width - LEFT, 0.6, LINE))
        parts.append(text(LEFT - 6, y + 4, field.text(value), anchor="end"))
    return "".join(parts)


def time_axis(window: Window, width: float, plot: float) -> str:
    """Times of day below the plot, in UTC."""
    span = window.end - window.begin
    every = next(s for s in (15, 30, 60, 120, 300, 900, 3600) if span / s <= width / 90)
    at = math.ceil(window.begin / every) * every
    parts = []
    while at < window.end:
        x = LEFT + (at - window.begin) / span * (width - LEFT)
        stamp = time.strftime("%H:%M:%S", time.gmtime(at))
        if x + 24 < width:
            parts.append(text(x, plot + 14, stamp, anchor="middle"))
        at += every
    return "".join(parts)
