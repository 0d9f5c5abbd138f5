"""Batch lines of a window → what they say about the whole server. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from exporter.diagnosis.figures import LogFigures
from exporter.records import Batch, EventKind, Mode, ServerEvent

Span = tuple[float, float]

_LEAST_GAPS = 5
_LEAST_SPREAD = 0.01
_REQUEST_POOLS = ("kv", "full", "swa", "mamba")


def log_figures(
    batches: Sequence[Batch],
    events: Sequence[ServerEvent],
    stops: Sequence[Span] = (),
    resolution_seconds: float = 0.0,
) -> LogFigures:
    """The figures of the stage that printed most: all stages print copies of the same lines.

    `stops` are stretches in which no stage had a kernel: no prefill took that time. With stamps of
    whole seconds, gaps between lines say nothing of prefill, and silences count in whole seconds.
    """
    lines = one_stage(batches)
    decodes = [batch for batch in lines if batch.mode is Mode.DECODE]
    return LogFigures(
        decode_lines=len(decodes),
        mean_batch_requests=_mean([b.running_reqs for b in decodes]),
        graph_ratio=_mean([b.graph for b in decodes]),
        queued_requests=_mean([b.queued_reqs for b in lines]),
        queued_ratio=_mean([b.queued_reqs > 0 for b in lines if b.queued_reqs is not None]),
        pool_ratio=_mean([_fullest(b) for b in decodes]),
        retracted_requests=_retracted(events),
        tokens_per_second=_tokens_per_second(decodes),
        prefill_ratio=None if resolution_seconds else prefill_ratio(lines, stops),
        prefill_tokens_per_second=_prefill_rate(lines),
        forward_occupancy_ratio=_mean([b.forward_occupancy_ratio for b in batches]),
        silent_seconds=_silent_seconds(lines, resolution_seconds),
    )


def _silent_seconds(lines: Sequence[Batch], resolution_seconds: float) -> float | None:
    gaps = (after.logged_at - before.logged_at for before, after in pairwise(lines))
    longest = max(gaps, default=None)
    if longest is None or not resolution_seconds:
        return longest
    return math.floor(longest / resolution_seconds) * resolution_seconds


def one_stage(batches: Sequence[Batch]) -> list[Batch]:
    """The lines of the rank that printed most, in time order."""
    by_rank: defaultdict[tuple[int, int], list[Batch]] = defaultdict(list)
    for batch in batches:
        by_rank[batch.pp_rank, batch.tp_rank].append(batch)
    if not by_rank:
        return []
    best = max(sorted(by_rank), key=lambda rank: len(by_rank[rank]))
    return sorted(by_rank[best], key=lambda batch: batch.logged_at)


def prefill_ratio(lines: Sequence[Batch], stops: Sequence[Span] = ()) -> float | None:
    """Share of the time between decode lines that goes to prefill.

    A line comes every D decode batches, whatever is prefilled between: gap = a + b x tokens, by
    least squares, with and without the longest gap: one alone proves nothing. `None` with too few
    gaps, or where prefill is always the same.
    """
    gaps: list[tuple[float, float]] = []
    tokens, last_at = 0.0, None
    for line in lines:
        if line.mode is Mode.PREFILL:
            tokens += line.new_tokens or 0
            continue
        if last_at is not None:
            still = sum(
                max(min(end, line.logged_at) - max(start, last_at), 0.0) for start, end in stops
            )
            gaps.append((max(line.logged_at - last_at - still, 0.0), tokens))
        tokens, last_at = 0.0, line.logged_at
    if len(gaps) < _LEAST_GAPS:
        return None
    fits = (_fitted_ratio(gaps), _fitted_ratio(sorted(gaps)[:-1]))
    return None if fits[0] is None else min(fit for fit in fits if fit is not None)


def _fitted_ratio(gaps: Sequence[tuple[float, float]]) -> float | None:
    mean_gap, mean_tokens = fmean(gap for gap, _ in gaps), fmean(count for _, count in gaps)
    if mean_tokens == 0.0:
        return 0.0
    spread = sum((count - mean_tokens) ** 2 for _, count in gaps)
    if spread < _LEAST_SPREAD * mean_tokens**2 * len(gaps) or mean_gap <= 0.0:
        return None
    slope = sum((gap - mean_gap) * (count - mean_tokens) for gap, count in gaps) / spread
    return min(max(slope * mean_tokens / mean_gap, 0.0), 1.0)


def _mean(values: Sequence[float | bool | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return fmean(known) if known else None


def _fullest(batch: Batch) -> float | None:
    pools = [batch.token_usage_ratios[p] for p in _REQUEST_POOLS if p in batch.token_usage_ratios]
    return max(pools, default=None)


def _retracted(events: Sequence[ServerEvent]) -> int:
    """Requests thrown back; every rank prints the same event."""
    by_rank: Counter[tuple[int, int]] = Counter()
    for event in events:
        if event.kind is EventKind.RETRACTION:
            by_rank[event.pp_rank or 0, event.tp_rank or 0] += event.count or 0
    return max(by_rank.values(), default=0)


def _tokens_per_second(decodes: Sequence[Batch]) -> float | None:
    """Mean of the printed throughput over the time it speaks of: since the line before."""
    seconds = tokens = 0.0
    for before, after in pairwise(decodes):
        if after.gen_throughput_tokens_per_second is not None:
            gap = after.logged_at - before.logged_at
            seconds += gap
            tokens += gap * after.gen_throughput_tokens_per_second
    if seconds > 0.0:
        return tokens / seconds
    return decodes[-1].gen_throughput_tokens_per_second if decodes else None


def _prefill_rate(lines: Sequence[Batch]) -> float | None:
    if len(lines) < 2 or lines[-1].logged_at <= lines[0].logged_at:
        return None
    tokens = sum(line.new_tokens or 0 for line in lines[1:] if line.mode is Mode.PREFILL)
    return tokens / (lines[-1].logged_at - lines[0].logged_at)
