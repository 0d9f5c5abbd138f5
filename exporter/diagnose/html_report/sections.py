"""An outcome → what the report's tables say, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from exporter.diagnose.html_report.drawing import Bar
from exporter.diagnose.html_report.texts import UNKNOWN, latency, number, percent, work_text
from exporter.diagnose.outcome import Outcome
from exporter.diagnosis.figures import Figures, StageFigures
from exporter.diagnosis.steady_window import loads_of
from exporter.load.measurements import Percentiles
from exporter.load.result import LoadResult
from exporter.records import Mode


def key_figures(figures: Figures) -> Iterator[tuple[str, str]]:
    """The few numbers at the top, with their names; those not known are left out."""
    log, slots = figures.log, figures.slots
    if figures.measured:
        yield "stages work", percent(figures.occupancy_ratio)
        if figures.waiting_ratio is not None:
            yield "they wait", percent(figures.waiting_ratio)
    elif figures.occupancy_at_most_ratio is not None:
        yield "stages work at most", percent(figures.occupancy_at_most_ratio)
    if figures.idle_ratio is not None:
        yield "no kernel", percent(figures.idle_ratio)
    if slots.effective is not None:
        yield "effective micro-batches", f"{slots.effective:.1f} of {slots.slots or UNKNOWN}"
    if figures.requests is not None:
        yield "requests in flight", number(figures.requests)
    if log.tokens_per_second is not None:
        yield "tokens/s printed", number(log.tokens_per_second)
    if figures.scaling_ratio is not None:
        yield f"output over {figures.pp_size} single streams", f"{figures.scaling_ratio:.2f}"
    if log.queued_requests is not None:
        yield "requests queued", number(log.queued_requests, 1)


@dataclass(frozen=True, slots=True)
class StageLine:
    """A stage in the table, as text."""

    pp_rank: int
    gpus: str
    working: str
    waiting: str
    idle: str
    watts: str
    batch: str
    lines: int


def stage_lines(outcome: Outcome) -> list[StageLine]:
    """Every stage over the steady window; those without a GPU by their lines alone."""
    figures = outcome.diagnosis.figures
    if figures.window is None:
        return []
    start, end = figures.window
    sizes: dict[int, list[int]] = {}
    lines: dict[int, int] = {}
    for batch in outcome.watch.batches.get(outcome.pipeline, ()):
        if start <= batch.logged_at <= end:
            lines[batch.pp_rank] = lines.get(batch.pp_rank, 0) + 1
            if batch.mode is Mode.DECODE and batch.running_reqs is not None:
                sizes.setdefault(batch.pp_rank, []).append(batch.running_reqs)
    known = {stage.pp_rank: stage for stage in figures.stages}
    found = []
    for pp_rank in sorted(known.keys() | lines.keys()):
        stage = known.get(pp_rank, StageFigures(pp_rank))
        mean = fmean(sizes[pp_rank]) if pp_rank in sizes else None
        found.append(_stage_line(stage, mean, lines.get(pp_rank, 0)))
    return found


def _stage_line(stage: StageFigures, batch: float | None, lines: int) -> StageLine:
    return StageLine(
        stage.pp_rank,
        ", ".join(map(str, stage.gpus)) or UNKNOWN,
        work_text(stage),
        percent(stage.waiting_ratio),
        percent(stage.idle_ratio),
        number(stage.watts),
        number(batch, 1),
        lines,
    )


def slot_bars(figures: Figures, most: int | None = None) -> list[Bar]:
    """The size of every slot, empty ones too; none where the sizes are not seen.

    `most` requests are as wide as can be; without, those of the fullest slot are.
    """
    slots = figures.slots
    if slots.sizes is None or slots.slots is None or slots.slots > 1024:
        return []
    sizes = [*slots.sizes, *[0] * (slots.slots - len(slots.sizes))]
    most = most or max(sizes, default=0) or 1
    return [Bar(slot, round(100 * size / most, 1), str(size)) for slot, size in enumerate(sizes)]


@dataclass(frozen=True, slots=True)
class LoadLine:
    """A driven load in the table, as text."""

    concurrency: str
    rate: str
    seconds: str
    tokens: str
    answered: str
    failed: str
    latencies: Sequence[tuple[str, str, str, str]]


def load_lines(outcome: Outcome) -> list[LoadLine]:
    """What our loads measured; of a recording, what it says of those that were driven."""
    if outcome.points:
        return [_measured(point) for point in outcome.points]
    found = []
    for load in loads_of(outcome.watch):
        if load.concurrency == 0:
            continue
        rate = None
        if load.output_tokens is not None and load.seconds:
            rate = load.output_tokens / load.seconds
        found.append(
            LoadLine(
                UNKNOWN if load.concurrency is None else str(load.concurrency),
                number(rate, 1),
                number(load.seconds or load.end - load.start, 1),
                number(load.output_tokens),
                UNKNOWN,
                UNKNOWN,
                (),
            )
        )
    return found


def _measured(point: LoadResult) -> LoadLine:
    latencies = point.latencies
    named = (
        ("time to first token", latencies.time_to_first_token),
        ("between tokens", latencies.inter_token),
        ("whole answer", latencies.end_to_end),
    )
    return LoadLine(
        str(point.plan.concurrency),
        number(point.output_tokens_per_second, 1),
        number(point.seconds, 1),
        number(point.output_tokens),
        number(point.completed),
        number(sum(point.errors.values()) + sum(point.warmup_errors.values())),
        [(name, *_percentiles(each)) for name, each in named if each is not None],
    )


def _percentiles(seconds: Percentiles) -> tuple[str, str, str]:
    p50, p90, p99 = map(latency, (seconds.p50_seconds, seconds.p90_seconds, seconds.p99_seconds))
    return p50, p90, p99


def server_facts(figures: Figures) -> list[tuple[str, str]]:
    """Everything known of the server's configuration, by name."""
    return [
        (name, str(value)) for name, value in sorted(figures.facts.items()) if value is not None
    ]
