"""A watch → stages by time: how each stage spent each cell, and what was not seen. Pure.

The overview covers the steady window and what lies around it; the zoom a few seconds of the window
at the finest resolution of the records. What no sample covers stays unknown, never idle.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from exporter.diagnosis.figures import Figures
from exporter.diagnosis.steady_window import Load, Span, loads_of
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.pipeline.bubbles import TELLS_WAITING
from exporter.pipeline.clock import Second, StageSummary
from exporter.pipeline.grid import CELL_SECONDS, CELLS_PER_SECOND
from exporter.pipeline.server_facts import count_of
from exporter.pipeline.stage_cells import Shares
from exporter.records import Method

MOST_COLUMNS = 600
MOST_ROWS = 128
LEAST_SPAN_SECONDS = 120.0
"""The overview shows this much where there is so much, and half a window more at least."""

_CELLS_OF_OVERVIEW = (10, 25, 50, 100, 250, 500, 1500)  # 20 ms each: 0.2 s to 30 s
_FINE_SECONDS, _RING_SECONDS = 0.05, 0.3  # windows up to these show 20 ms, 200 ms
_FINE_ZOOM_SECONDS, _RING_ZOOM_SECONDS = 3, 15


@dataclass(frozen=True, slots=True)
class Row:
    """One stage over the picture's time.

    Attributes:
        lines: Instant and requests of its batch lines, where nothing else is known of it.
    """

    pp_rank: int
    gpus: tuple[int, ...]
    cells: tuple[Shares, ...]
    lines: tuple[tuple[float, int], ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether nothing was seen of it."""
        return not any(map(any, self.cells))

    def mean(self, first: int = 0, stop: int | None = None) -> Shares:
        """How its time from cell `first` before `stop` is divided; all unknown without cells."""
        cells = self.cells[first:stop]
        return Shares(*(sum(parts) / len(cells) for parts in zip(*cells, strict=True)))


@dataclass(frozen=True, slots=True)
class Picture:
    """What the stages did over a stretch of time, in cells of equal length."""

    started_at: float
    cell_seconds: float
    rows: tuple[Row, ...]
    loads: tuple[Load, ...] = ()

    @property
    def columns(self) -> int:
        """Cells of each row."""
        return len(self.rows[0].cells) if self.rows else 0

    @property
    def ended_at(self) -> float:
        """End of the last cell."""
        return self.started_at + self.columns * self.cell_seconds


@dataclass(frozen=True, slots=True)
class Pictures:
    """What there is to show of a pipeline.

    Attributes:
        overview: `None` where nothing dated was seen.
        zoom: `None` where nothing finer than the overview is known.
        missing: Sentences about what cannot be shown, and why.
    """

    overview: Picture | None
    zoom: Picture | None
    missing: tuple[str, ...]


def pictures(watch: Watch, key: PipelineKey, figures: Figures) -> Pictures:
    """The pictures of one pipeline around its steady window."""
    window = figures.window
    if watch.first_at is None or watch.last_at is None:
        return Pictures(None, None, ("Nothing dated was seen: there is no time to show.",))
    span = _around(window, (watch.first_at, watch.last_at))
    ticks = next(
        (t for t in _CELLS_OF_OVERVIEW if (span[1] - span[0]) / (t * CELL_SECONDS) <= MOST_COLUMNS),
        _CELLS_OF_OVERVIEW[-1],
    )
    overview = _drawn(watch, key, figures, span, ticks)
    seconds = [s for s in watch.seconds.get(key, ()) if window is None or _inside(s, window)]
    zoom, why = None, ""
    if window is not None and seconds:
        zoom, why = _zoomed(watch, key, figures, seconds, overview)
    missing = [*_unseen(overview, watch, key), *([why] if why else [])]
    return Pictures(overview, zoom, tuple(missing))


def _inside(second: Second, span: Span) -> bool:
    return span[0] <= second.second and second.second + 1 <= span[1]


def _around(window: Span | None, watched: Span) -> Span:
    """The window with what lies around it, as far as it was watched."""
    if window is None:
        return watched
    length = max(1.5 * (window[1] - window[0]), LEAST_SPAN_SECONDS)
    spare = (length - (window[1] - window[0])) / 2
    start = max(watched[0], min(window[0] - spare, watched[1] - length))
    return start, min(watched[1], start + length)


def _zoomed(
    watch: Watch, key: PipelineKey, figures: Figures, seconds: Sequence[Second], overview: Picture
) -> tuple[Picture | None, str]:
    """A few seconds where most is seen, as fine as the records are; else why there are none."""
    resolution = median(second.window_seconds for second in seconds)
    if resolution > _RING_SECONDS:
        return None, (
            f"No zoom: activity is known by stretches of {resolution:.1f} s here; the power ring "
            "beside it would show 20 ms."
        )
    fine = resolution <= _FINE_SECONDS and any(
        summary.cells is not None for second in seconds for summary in second.stages.values()
    )
    ticks, length = (1, _FINE_ZOOM_SECONDS) if fine else (10, _RING_ZOOM_SECONDS)
    if overview.cell_seconds <= ticks * CELL_SECONDS and overview.columns * ticks <= (
        1.5 * length * CELLS_PER_SECOND
    ):
        return None, ""
    start = _best_start(seconds, min(length, len(seconds)))
    end = start + min(length, len(seconds))
    return _drawn(watch, key, figures, (start, end), ticks), ""


def _best_start(seconds: Sequence[Second], length: int) -> int:
    """The second from which most is seen for so long; of equals the one nearest the middle."""
    seen: defaultdict[int, float] = defaultdict(float)
    for second in seconds:
        for summary in second.stages.values():
            proven = 1.0 if summary.method in TELLS_WAITING else 0.5
            seen[second.second] += round(summary.observed, 1) * proven
    first, last = seconds[0].second, max(seconds[-1].second + 1 - length, seconds[0].second)
    middle = (first + last) / 2
    return max(
        range(first, last + 1),
        key=lambda start: (
            round(sum(seen[start + offset] for offset in range(length)), 1),
            -abs(start - middle),
        ),
    )


# --- cells -------------------------------------------------------------------------------------


def _drawn(watch: Watch, key: PipelineKey, figures: Figures, span: Span, ticks: int) -> Picture:
    width = ticks * CELL_SECONDS
    first = math.floor(span[0] / width + 1e-6)
    count = max(math.ceil(span[1] / width - 1e-6) - first, 1)
    known: defaultdict[int, dict[int, list[StageSummary]]] = defaultdict(dict)
    for second in watch.seconds.get(key, ()):
        for pp_rank, summary in second.stages.items():
            known[pp_rank].setdefault(second.second, []).append(summary)
    places = watch.stage_gpus(key)
    alone = figures.pp_size == 1 and count_of(figures.facts, "tp_size") == 1
    lines = _lines(watch, key, (first * width, (first + count) * width))
    rows = []
    for pp_rank in sorted({*places, *known, *lines, *range(figures.pp_size or 0)})[:MOST_ROWS]:
        cells = tuple(_cells(known[pp_rank], first * ticks, ticks, count, alone=alone))
        row = Row(pp_rank, places.get(pp_rank, ()), cells)
        if row.is_unknown:
            row = Row(pp_rank, row.gpus, cells, tuple(lines.get(pp_rank, ())))
        rows.append(row)
    start, end = first * width, (first + count) * width
    loads = tuple(
        load
        for load in loads_of(watch)
        if load.concurrency != 0 and load.start < end and start < load.end
    )
    return Picture(start, width, tuple(rows), loads)


def _cells(
    known: Mapping[int, Iterable[StageSummary]], first: int, ticks: int, count: int, *, alone: bool
) -> Iterable[Shares]:
    """Cells of so many 20 ms ticks from tick `first` on; `alone`: residency is work there."""
    for start in range(first, first + count * ticks, ticks):
        sums = [0.0, 0.0, 0.0, 0.0]
        stop = start + ticks
        for second in range(start // CELLS_PER_SECOND, (stop - 1) // CELLS_PER_SECOND + 1):
            begin = max(start - second * CELLS_PER_SECOND, 0)
            end = min(stop - second * CELLS_PER_SECOND, CELLS_PER_SECOND)
            for summary in known.get(second, ()):
                for index, share in enumerate(_shares(summary, begin, end)):
                    sums[index] += share * (end - begin) / ticks
        shares = Shares(*sums)
        if alone:
            shares = shares._replace(working=shares.working + shares.resident, resident=0.0)
        yield shares


def _shares(summary: StageSummary, first: int, stop: int) -> Shares:
    if summary.cells is not None:
        return summary.cells.shares(first, stop)
    seen, works = min(summary.observed, 1.0), min(summary.working, summary.observed, 1.0)
    if summary.method not in TELLS_WAITING:
        return Shares(resident=works, idle=seen - works)
    waits = min(summary.waiting or 0.0, seen - works)
    return Shares(works, waits, 0.0, seen - works - waits)


def _lines(watch: Watch, key: PipelineKey, span: Span) -> dict[int, list[tuple[float, int]]]:
    found: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for batch in watch.batches.get(key, ()):
        requests = batch.running_reqs if batch.running_reqs is not None else batch.new_seqs
        if span[0] <= batch.logged_at < span[1] and requests is not None:
            found[batch.pp_rank].append((batch.logged_at, requests))
    return dict(found)


# --- what is not shown -------------------------------------------------------------------------


def _unseen(picture: Picture, watch: Watch, key: PipelineKey) -> Iterable[str]:
    rows = picture.rows
    dark = [row.pp_rank for row in rows if row.is_unknown]
    if not rows:
        yield "No stage was seen: neither batch lines nor a map of stages to GPUs."
    elif len(dark) == len(rows):
        yield (
            "No GPU was seen: when a stage works, waits or idles is not known. Marks are batch "
            "lines, as high as their batch is large; a stage prints one in many batches only."
        )
    elif dark:
        yield (
            f"Nothing was seen of {_named(dark)}: on another node, not mapped to a GPU, or its GPU "
            "sent no sample."
        )
    gaps = [
        f"stage {row.pp_rank} {100 * row.mean().unknown:.0f} %"
        for row in rows
        if not row.is_unknown and row.mean().unknown >= 0.01
    ]
    if gaps:
        yield f"Not seen of the time shown: {', '.join(gaps)}."
    used = {s.method for second in watch.seconds.get(key, ()) for s in second.stages.values()}
    if Method.FORWARD_OCCUPANCY in used:
        yield "By SGLang's own forward occupancy, which counts launch gaps as work."
    if any(row.mean().resident >= 0.01 for row in rows):
        yield (
            "Where a stage is drawn as resident, nothing tells its work from its waiting: it "
            "worked at most that much."
        )


def _named(ranks: Sequence[int]) -> str:
    return f"stage{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
