"""Pictures → what the page draws of them: rows, strips above them, and words for who cannot see them.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from exporter.diagnose.html_report.drawing import Bar, Tick, bar_of, line_marks, state_paths, ticks
from exporter.diagnose.html_report.texts import UNKNOWN, instant, percent, work_text
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.picture import Picture, Pictures
from exporter.palette import CellState
from exporter.pipeline.stage_cells import Shares


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A stage in the picture: its paths by state, marks of its lines, and its share of work."""

    pp_rank: int
    gpus: str
    paths: Sequence[tuple[CellState, str]]
    marks: str
    share: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture, ready to be put into a page.

    Attributes:
        name: Tells it from the page's other pictures.
        strips: Bars above the stages, by name.
        edges: The path of the window's two ends; empty without.
    """

    name: str
    title: str
    alt: str
    columns: int
    rows: Sequence[DrawnRow]
    ticks: Sequence[Tick]
    strips: Sequence[tuple[str, Sequence[Bar]]] = ()
    edges: str = ""


def drawings(shown: Pictures, figures: Figures) -> Iterator[Drawing]:
    """The overview and, where there is one, the zoom."""
    overview, zoom = shown.overview, shown.zoom
    if overview is None or not overview.rows:
        return
    origin = overview.started_at
    window = figures.window
    strips: list[tuple[str, list[Bar]]] = []
    if overview.loads:
        bars = [
            bar_of(
                overview,
                (load.start, load.end),
                "" if load.concurrency is None else f"C={load.concurrency}",
            )
            for load in overview.loads
        ]
        strips.append(("load", bars))
    if window is not None:
        strips.append(("window", [bar_of(overview, window)]))
    if zoom is not None:
        strips.append(("zoom", [bar_of(overview, (zoom.started_at, zoom.ended_at))]))
    seconds = overview.ended_at - overview.started_at
    title = f"{seconds:.0f} s, from {instant(origin)}"
    if window is None:
        yield replace(drawing("overview", title, overview, origin), strips=strips)
    else:
        ends = [(at - origin) / overview.cell_seconds for at in window]
        meant = math.ceil(ends[0]), math.floor(ends[1])
        drawn = drawing("overview", title, overview, origin, meant=meant)
        said = {stage.pp_rank: work_text(stage) for stage in figures.stages}
        yield replace(
            drawn,
            strips=strips,
            edges="".join(f"M{x:.2f} 0V100" for x in ends),
            # The very figure of the table: cells at the window's ends would move it a little.
            rows=[replace(row, share=said.get(row.pp_rank, row.share)) for row in drawn.rows],
        )
    if zoom is not None:
        title = f"Zoom: {zoom.ended_at - zoom.started_at:.0f} s of the steady window"
        yield drawing("zoom", title, zoom, origin)


def drawing(
    name: str,
    title: str,
    picture: Picture,
    origin: float,
    *,
    meant: tuple[int, int] | None = None,
    most: int | None = None,
) -> Drawing:
    """A picture as it is drawn.

    Args:
        name: Tells it from the page's other pictures.
        title: What it shows.
        picture: What is drawn.
        origin: The instant that the axis counts from.
        meant: The cells that shares of work speak of; all of them without.
        most: Requests of the highest mark; without, the most that the picture has.
    """
    meant = meant or (0, picture.columns)
    most = most or most_requests(picture)
    rows = [
        DrawnRow(
            row.pp_rank,
            ", ".join(map(str, row.gpus)),
            state_paths(row),
            line_marks(row, picture, most),
            _work(row.mean(*meant)),
        )
        for row in picture.rows
    ]
    told = "; ".join(_told(row.pp_rank, row.mean(*meant)) for row in picture.rows)
    cell = f"{1000 * picture.cell_seconds:.0f} ms" if picture.cell_seconds < 1 else None
    cell = cell or f"{picture.cell_seconds:.0f} s"
    return Drawing(
        name,
        f"{title}; a cell is {cell}",
        f"Stages over time. {told}.",
        picture.columns,
        rows,
        ticks(picture, origin),
    )


def most_requests(picture: Picture) -> int:
    """Requests of the largest batch that a line in a picture tells of."""
    return max((requests for row in picture.rows for _, requests in row.lines), default=0)


def _work(mean: Shares) -> str:
    """Working share of what was seen, or its bound."""
    seen = 1.0 - mean.unknown
    if seen <= 0.005:
        return UNKNOWN
    if mean.resident >= 0.005:
        return f"\u2264 {percent((mean.working + mean.resident) / seen)}"
    return percent(mean.working / seen)


def _told(pp_rank: int, mean: Shares) -> str:
    parts = [
        f"{name} {percent(share)}"
        for name, share in (
            ("works", mean.working),
            ("waits", mean.waiting),
            ("resident", mean.resident),
            ("idle", mean.idle),
            ("unknown", mean.unknown),
        )
        if share >= 0.005
    ]
    return f"Stage {pp_rank}: {', '.join(parts)}"
