"""What a load measured → figures for JSON, and text for a terminal of 80 columns. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from exporter.load.failures import MEANINGS, FailureKind
from exporter.load.measurements import Percentiles
from exporter.load.result import EndReason, LoadProgress, LoadResult

REMEDIES = {
    FailureKind.NOT_ALLOWED: "give it with --token-file, or in SGLANG_API_KEY",
    FailureKind.OVERLOADED: "try a lower --concurrency, or later",
    FailureKind.REJECTED: "try a lower --max-tokens",
    FailureKind.ABORTED: "its log may say why",
}
"""What to do where the meaning of a failure does not say it."""


_BROKEN_OFF = {
    EndReason.STOPPED: "stopped by a signal",
    EndReason.ALL_FAILED: "broken off: nothing but failures came",
}


def load_figures(points: Sequence[LoadResult]) -> list[dict[str, object]]:
    """Every point by name, seconds and counts; `None` where it was not measured."""
    return [
        {
            "concurrency": point.plan.concurrency,
            "rate_per_second": point.plan.rate_per_second,
            "prompt_tokens": point.plan.prompt_tokens,
            "max_tokens": point.plan.output_tokens,
            "ended_by": point.ended_by,
            "seconds": point.seconds,
            "output_tokens": point.output_tokens,
            "output_tokens_per_second": point.output_tokens_per_second,
            "completed": point.completed,
            "short": point.short,
            "delayed_arrivals": point.delayed_arrivals,
            "errors": dict(point.errors),
            "warmup_errors": dict(point.warmup_errors),
            **asdict(point.latencies),
        }
        for point in points
    ]


def load_lines(points: Sequence[LoadResult]) -> Iterator[str]:
    """The points as a table, with the latencies of each."""
    yield "load    requests  tokens/s  seconds  answered  failed"
    for point in points:
        rate = point.output_tokens_per_second
        failed = sum(point.errors.values()) + sum(point.warmup_errors.values())
        yield (
            f"        {point.plan.concurrency:>8}  {_number(rate):>8}  {_number(point.seconds):>7}"
            f"  {point.completed:>8}  {failed:>6}"
        )
        if point.ended_by in _BROKEN_OFF:
            yield f"        {_BROKEN_OFF[point.ended_by]}{_far(point)}"
        latencies = point.latencies
        yield from _latency("first token", latencies.time_to_first_token)
        yield from _latency("next token", latencies.inter_token)
        yield from _latency("whole answer", latencies.end_to_end)


def troubles(points: Sequence[LoadResult]) -> list[str]:
    """A sentence for each kind of failure of a load, the most frequent first."""
    errors: Counter[FailureKind] = Counter()
    for point in points:
        errors.update(point.errors)
        errors.update(point.warmup_errors)
    return [f"{count} requests failed: {_meaning(kind)}" for kind, count in errors.most_common()]


def progress_text(progress: LoadProgress | None) -> str:
    """How far a load is, in half a line; `None`: it has not begun."""
    if progress is None:
        return "waiting for a first answer"
    stage = progress.stage.replace("_", " ")
    spent = f"{progress.seconds:.0f} s"
    if progress.planned_seconds is not None:
        spent = f"{max(0.0, progress.planned_seconds - progress.seconds):.0f} s left"
    rate = "?" if progress.tokens_per_second is None else f"{progress.tokens_per_second:.0f}"
    failed = sum(progress.errors.values())
    errors = f", {failed} failed" if failed else ""
    return f"C={progress.concurrency} {stage}, {spent}, {rate} tokens/s{errors}"


def _meaning(kind: FailureKind) -> str:
    return "; ".join(filter(None, (MEANINGS[kind], REMEDIES.get(kind))))


def _far(point: LoadResult) -> str:
    return "" if point.started_at is not None else ", before the warm-up was over"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _latency(name: str, percentiles: Percentiles | None) -> Iterator[str]:
    if percentiles is not None:
        p50, p90, p99 = (
            f"{seconds:.3f} s"
            for seconds in (
                percentiles.p50_seconds,
                percentiles.p90_seconds,
                percentiles.p99_seconds,
            )
        )
        yield f"        {name:<12}  p50 {p50:>10}  p90 {p90:>10}  p99 {p99:>10}"
