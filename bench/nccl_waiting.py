"""What a waiting NCCL receive looks like: the probe's recording, phase by phase, and the levels in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, quantiles

from bench.nccl_truth import Play, Span
from exporter.recordings.reader import read_records
from exporter.records import ActivityLevel, GpmWindow, GpuLevels, Record, RingSamples, Signal

SETTLE_SECONDS = 1.0
"""At the begin of a phase, not looked at; 0.5 s at its end."""
GPM_LAG_SECONDS = 0.2
MEGAHERTZ = 1e6


@dataclass(frozen=True, slots=True)
class Seen:
    """One GPU in one phase; means, `None` where nothing was measured."""

    phase: str
    gpu: int
    resident: float | None
    watts: float | None
    watts_low: float | None
    watts_high: float | None
    """5th and 95th percentile of 20 ms samples."""
    sm: float | None
    occupancy: float | None
    dram: float | None
    tensor: float | None
    graphics: float | None
    clock_megahertz: float | None
    polled: float | None


def seen(recording: Path, play: Play) -> list[Seen]:
    """Every phase of the probe on every GPU."""
    records = list(read_records(recording))
    return [
        _seen(phase, gpu, _settled(span), records, play)
        for phase, span in play.phases.items()
        for gpu in range(play.stages)
        if span[1] - span[0] > 2 * SETTLE_SECONDS
    ]


def levels(found: Iterable[Seen]) -> list[GpuLevels]:
    """Levels of each GPU: idle, in a receive that waits, at work.

    Stage 0 has nobody before it: its waiting level is that of the other cards.
    """
    table = {(each.phase, each.gpu): each for each in found}
    received = [each for each in table.values() if each.phase == "receive" and each.gpu > 0]
    known = []
    for gpu in sorted({gpu for _, gpu in table}):
        waiting = _level([each for each in received if each.gpu == gpu] or received)
        idle = _level([table["idle", gpu]])
        working = _level([table["work", gpu]] if ("work", gpu) in table else [])
        known.append(GpuLevels(gpu, idle, waiting, working))
    return known


def table(found: Iterable[Seen]) -> list[str]:
    """The rows, as Markdown."""
    lines = [
        "| phase | GPU | resident | W (5-95 %) | SM | occupancy | DRAM | tensor | graphics | SM MHz | polled gauge |",
        "|" + "---|" * 11,
    ]
    for each in found:
        spread = f"{_text(each.watts_low, 0)}-{_text(each.watts_high, 0)}"
        ratios = (each.sm, each.occupancy, each.dram, each.tensor, each.graphics)
        cells = (
            each.phase,
            str(each.gpu),
            _text(each.resident, 3),
            f"{_text(each.watts, 1)} ({spread})",
            *(_text(ratio, 4) for ratio in ratios),
            _text(each.clock_megahertz, 0),
            _text(each.polled, 2),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _settled(span: Span) -> Span:
    return span[0] + SETTLE_SECONDS, span[1] - SETTLE_SECONDS / 2


def _seen(phase: str, gpu: int, span: Span, records: Iterable[Record], play: Play) -> Seen:
    rings: dict[Signal, list[float]] = {Signal.UTILIZATION: [], Signal.POWER: []}
    windows = []
    for record in records:
        if isinstance(record, RingSamples) and record.gpu == gpu:
            rings[record.signal] += [value for at, value in record.samples if _inside(at, span)]
        elif isinstance(record, GpmWindow) and record.gpu == gpu:
            lagging = (span[0], span[1] + GPM_LAG_SECONDS)
            if _inside(record.started_at, lagging) and _inside(record.ended_at, lagging):
                windows.append(record)
    watts = sorted(rings[Signal.POWER])
    cuts = quantiles(watts, n=20) if len(watts) > 1 else [None, None]

    def gpm(value: Callable[[GpmWindow], float | None]) -> float | None:
        return _mean(value(window) for window in windows)

    clock = _mean(_read(play.clocks, gpu, span))
    return Seen(
        phase,
        gpu,
        _mean(rings[Signal.UTILIZATION]),
        _mean(watts),
        cuts[0],
        cuts[-1],
        gpm(lambda w: w.sm_ratio),
        gpm(lambda w: w.occupancy_ratio),
        gpm(lambda w: w.dram_ratio),
        gpm(lambda w: w.tensor_ratio),
        gpm(lambda w: w.graphics_ratio),
        None if clock is None else clock / MEGAHERTZ,
        _mean(_read(play.polled, gpu, span)),
    )


def _read(readings: Mapping[int, list[Span]], gpu: int, span: Span) -> list[float]:
    return [value for at, value in readings.get(gpu, []) if _inside(at, span)]


def _inside(at: float, span: Span) -> bool:
    return span[0] <= at <= span[1]


def _level(found: list[Seen]) -> ActivityLevel | None:
    if not found:
        return None
    means = (_mean(getattr(each, name) for each in found) for name in ("watts", "sm", "dram"))
    return ActivityLevel(*means)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _text(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
