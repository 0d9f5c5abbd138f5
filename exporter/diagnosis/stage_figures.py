"""GPU samples and settled seconds of a window → the figures of each stage. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from exporter.diagnosis.figures import StageFigures
from exporter.diagnosis.time_bins import TimeBins
from exporter.diagnosis.watch import GpuWatch, PipelineKey, Watch
from exporter.pipeline.bubbles import TELLS_WAITING
from exporter.pipeline.clock import Second, StageSummary
from exporter.records import Method
from exporter.thresholds import LEAST_MEASURED_RATIO

FAULT_REASONS = frozenset(
    {
        "hw_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "sw_thermal_slowdown",
    }
)
"""Throttle reasons of heat or the power supply; a software power cap is a card's normal work."""
LEAST_LOST_SECONDS = 3.0
"""A GPU without samples this long, while others send theirs, has been lost."""

_LEAST_WORKING = 0.3

Span = tuple[float, float]


def stage_figures(
    watch: Watch, key: PipelineKey, seconds: Sequence[Second], span: Span, *, alone: bool
) -> tuple[StageFigures, ...]:
    """Every stage that is mapped or was seen, by pp_rank.

    `alone`: the only rank of a server, whose kernels wait for nobody: residency is work there.
    """
    places = watch.stage_gpus(key)
    seen = {pp_rank for second in seconds for pp_rank in second.stages}
    lines = Counter(b.pp_rank for b in watch.batches.get(key, ()) if _inside(b.logged_at, span))
    found = []
    for pp_rank in sorted(places.keys() | seen):
        figures = _shares(pp_rank, seconds, span, alone=alone)
        gpus = places.get(pp_rank, ())
        found.append(_with_gpus(replace(figures, lines=lines[pp_rank]), watch, gpus, span))
    return tuple(found)


def _shares(pp_rank: int, seconds: Sequence[Second], span: Span, *, alone: bool) -> StageFigures:
    """What the settled seconds say of one stage."""
    half = (span[0] + span[1]) / 2
    own = [(s.second < half, s.stages[pp_rank]) for s in seconds if pp_rank in s.stages]
    summaries = [summary for _, summary in own]
    measured = _measured(summaries, alone)
    working = _working(summaries)
    if measured is None or measured < LEAST_MEASURED_RATIO:
        return StageFigures(pp_rank, measured_ratio=measured, working_at_most_ratio=working)
    waiting = [summary.waiting for summary in summaries if summary.waiting is not None]
    observed = sum(summary.observed for summary in summaries)
    return StageFigures(
        pp_rank,
        measured_ratio=measured,
        working_ratio=working,
        waiting_ratio=sum(waiting) / observed if waiting else None,
        working_at_most_ratio=working,
        working_at_least_ratio=working,
        first_half_working_ratio=_working(summary for first, summary in own if first),
        second_half_working_ratio=_working(summary for first, summary in own if not first),
    )


def _with_gpus(
    figures: StageFigures, watch: Watch, gpus: tuple[int, ...], span: Span
) -> StageFigures:
    """Adds what the drivers of the stage's GPUs say."""
    used = [watch.gpus[gpu] for gpu in gpus]
    power = _mean_of([gpu.watts for gpu in used], span)
    limits = [gpu.identity.power_limit_watts for gpu in used if gpu.identity is not None]
    limit = min((each for each in limits if each), default=None)
    throttled, reasons = _throttled(used, span)
    least = figures.working_at_least_ratio
    return replace(
        figures,
        gpus=gpus,
        working_at_least_ratio=_highest([g.least_working for g in used], span)
        if least is None
        else least,
        idle_ratio=_idle(used, span),
        watts=power,
        working_watts=_working_watts(figures, used[0], power) if len(used) == 1 else None,
        sm_ratio=_mean_of([gpu.sm for gpu in used], span),
        dram_ratio=_mean_of([gpu.dram for gpu in used], span),
        power_limit_share=power / limit if power is not None and limit else None,
        throttled_ratio=throttled,
        throttle_reasons=reasons,
        momentary_utilization_ratio=_momentary(used),
        lost_seconds=_lost_seconds(watch, used),
        xids=tuple(sorted({xid.xid for gpu in used for xid in gpu.xids})),
    )


def _inside(at: float, span: Span) -> bool:
    return span[0] <= at <= span[1]


def _measured(summaries: Sequence[StageSummary], alone: bool) -> float | None:
    observed = sum(summary.observed for summary in summaries)
    if observed <= 0.0:
        return None
    kinds = TELLS_WAITING | {Method.RESIDENCY} if alone else TELLS_WAITING
    return sum(s.observed for s in summaries if s.method in kinds) / observed


def _working(summaries: Iterable[StageSummary]) -> float | None:
    observed = working = 0.0
    for summary in summaries:
        observed += summary.observed
        working += summary.working
    return min(working / observed, 1.0) if observed > 0.0 else None


def _mean_of(signals: Sequence[TimeBins], span: Span) -> float | None:
    """Mean over the GPUs of a stage; `None` if one of them is not known."""
    means = [signal.mean(*span) for signal in signals]
    known = [mean for mean in means if mean is not None]
    return fmean(known) if known and len(known) == len(means) else None


def _highest(signals: Sequence[TimeBins], span: Span) -> float | None:
    """A stage works while any of its ranks does."""
    means = [signal.mean(*span) for signal in signals]
    return max((mean for mean in means if mean is not None), default=None)


def _idle(gpus: Sequence[GpuWatch], span: Span) -> float | None:
    """Share in which no rank has a kernel: at least one less the highest residency, at most that."""
    means = [gpu.resident.mean(*span) for gpu in gpus]
    known = [mean for mean in means if mean is not None]
    return 1.0 - max(known) if known and len(known) == len(means) else None


def _throttled(gpus: Sequence[GpuWatch], span: Span) -> tuple[float | None, tuple[str, ...]]:
    """The worst GPU's share of readings with a reason of heat or power supply, and the reasons."""
    worst: float | None = None
    reasons: set[str] = set()
    for gpu in gpus:
        known = [
            gauges.throttle_reasons
            for gauges in gpu.gauges
            if _inside(gauges.read_at, span) and gauges.throttle_reasons is not None
        ]
        if known:
            bad = [FAULT_REASONS & set(each) for each in known]
            worst = max(worst or 0.0, sum(bool(each) for each in bad) / len(known))
            reasons |= set().union(*bad)
    return worst, tuple(sorted(reasons))


def _working_watts(figures: StageFigures, gpu: GpuWatch, watts: float | None) -> float | None:
    """By its known levels; `None` without them, or where it hardly works."""
    working, waiting, levels = figures.working_ratio, figures.waiting_ratio, gpu.levels
    if watts is None or working is None or waiting is None or working < _LEAST_WORKING:
        return None
    if levels is None or levels.idle is None or levels.waiting is None:
        return None
    idle_watts, waiting_watts = levels.idle.watts, levels.waiting.watts
    if idle_watts is None or waiting_watts is None:
        return None
    idle = max(1.0 - working - waiting, 0.0)
    return (watts - waiting * waiting_watts - idle * idle_watts) / working


def _momentary(gpus: Sequence[GpuWatch]) -> float | None:
    """The newest reading of the gauge, where there is no ring."""
    if any(gpu.resident.last_at is not None or not gpu.gauges for gpu in gpus):
        return None
    readings = [gpu.gauges[-1].polled_utilization_ratio for gpu in gpus]
    return max((reading for reading in readings if reading is not None), default=None)


def _lost_seconds(watch: Watch, gpus: Sequence[GpuWatch]) -> float | None:
    """Time without residency samples of a GPU while others sent theirs.

    In and out of the window: what was in flight is no longer when a card is lost.
    """
    others = [gpu for gpu in watch.gpus.values() if gpu.resident.last_at is not None]
    if not gpus or len(others) < 2 or watch.first_at is None or watch.last_at is None:
        return None
    span = (watch.first_at, watch.last_at)
    width = others[0].resident.width_seconds
    everywhere: set[int] = set()
    for other in others:
        everywhere |= other.resident.means(*span, least_covered=0.5).keys()
    lost = 0.0
    for gpu in gpus:
        missing = everywhere - gpu.resident.means(*span, least_covered=0.01).keys()
        lost = max(lost, len(missing) * width)
    return lost if lost >= LEAST_LOST_SECONDS else 0.0
