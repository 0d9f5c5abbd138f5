"""When no stage had a kernel: a stall, a pause of the clients, or a stop outside the window. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from exporter.diagnosis.log_figures import one_stage
from exporter.diagnosis.steady_window import loads_of, stops
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.records import Batch, Mode

STOP_SECONDS = 0.4
"""All stages without a kernel this long is no gap between two passes."""
LONG_STOP_SECONDS = 3.0
"""Outside the window only stops this long are told: warm-up begins with short ones."""

_RESUMED_SECONDS = 1.5
_NEW_REQUESTS = 0.5  # share of the running requests that must be new after a pause of the clients

Span = tuple[float, float]


def standing_still(
    watch: Watch, span: Span, found: Sequence[Span], batches: Sequence[Batch]
) -> tuple[float | None, float | None, float | None]:
    """Shares of the window stopped with requests there, and paused by the clients; longest stop."""
    if all(gpu.resident.mean(*span) is None for gpu in watch.gpus.values()):
        return None, None, None
    lines = one_stage(batches)
    paused = sum(end - start for start, end in found if _clients_paused(lines, start, end))
    total = sum(end - start for start, end in found)
    length = span[1] - span[0]
    longest = max((end - start for start, end in found), default=0.0)
    return (total - paused) / length, paused / length, longest


def _clients_paused(lines: Sequence[Batch], start: float, end: float) -> bool:
    """Whether work went on with the prefill of new requests, as many as had been running.

    After a stall the requests go on where they were. With no line at all it is not known, and no
    fault is made of it.
    """
    before = [b for b in lines if b.logged_at <= start + STOP_SECONDS and b.mode is Mode.DECODE]
    after = [b for b in lines if start + STOP_SECONDS < b.logged_at <= end + _RESUMED_SECONDS]
    if not after:
        return not lines
    new = list(takewhile(lambda b: b.mode is Mode.PREFILL, after))
    running = before[-1].running_reqs if before else None
    return sum(b.new_seqs or 0 for b in new) >= max(_NEW_REQUESTS * (running or 0), 1.0)


def stopped_outside(watch: Watch, key: PipelineKey, span: Span | None) -> float | None:
    """Time that all stages stood still under a driven load, before the window or after it."""
    loads = loads_of(watch)
    if not loads or not watch.stage_gpus(key):
        return None
    total = 0.0
    for load in loads:
        for start, end in stops(watch, key, (load.start, load.end), LONG_STOP_SECONDS):
            if span is None or end <= span[0] or start >= span[1]:
                total += end - start
    return total
