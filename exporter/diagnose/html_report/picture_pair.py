"""Pictures before and after a change → two drawings on one time scale. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from exporter.diagnose.html_report.drawn_pictures import Drawing, drawing, most_requests
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.picture import Picture, Pictures
from exporter.pipeline.grid import CELL_SECONDS

NAMES = ("before", "after")
Shown = tuple[Pictures, Figures]


def pair(before: Shown, after: Shown) -> tuple[Drawing, Drawing] | None:
    """The finest pictures that both have, cut to one length; `None` where one shows nothing.

    Equal times are equally wide in both, equal batches equally high.
    """
    zooms = before[0].zoom, after[0].zoom
    first, second = zooms if None not in zooms else (_windowed(before), _windowed(after))
    if first is None or second is None:
        return None
    length = _shared_length(first, second)
    if not length:
        return None
    cut = [_cut(each, each.started_at, length) for each in (first, second)]
    most = max(map(most_requests, cut))
    title = f"{length:.0f} s of the steady window"
    drawn = [
        drawing(name, title, each, each.started_at, most=most)
        for name, each in zip(NAMES, cut, strict=True)
    ]
    return drawn[0], drawn[1]


def _shared_length(first: Picture, second: Picture) -> float:
    """The longest time, in seconds, that is whole cells of both."""
    both = first, second
    whole = math.lcm(*(round(each.cell_seconds / CELL_SECONDS) for each in both)) * CELL_SECONDS
    shorter = min(each.columns * each.cell_seconds for each in both)
    return math.floor(shorter / whole + 1e-6) * whole


def _windowed(shown: Shown) -> Picture | None:
    """The overview over the steady window; `None` without either."""
    overview, figures = shown[0].overview, shown[1]
    if overview is None or not overview.rows or figures.window is None:
        return None
    start, end = figures.window
    return _cut(overview, start, end - start)


def _cut(picture: Picture, start: float, seconds: float) -> Picture:
    """The whole cells of a picture from an instant on."""
    width = picture.cell_seconds
    first = max(math.ceil((start - picture.started_at) / width - 1e-6), 0)
    stop = first + int(seconds / width + 1e-6)
    started_at = picture.started_at + first * width
    ended_at = picture.started_at + stop * width
    rows = tuple(
        replace(
            row,
            cells=row.cells[first:stop],
            lines=tuple(line for line in row.lines if started_at <= line[0] < ended_at),
        )
        for row in picture.rows
    )
    return Picture(started_at, width, rows)
