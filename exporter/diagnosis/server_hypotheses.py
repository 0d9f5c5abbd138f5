"""Hypotheses about the server: its CPU, its graphs, its KV pool, prefill between decode. Pure."""

from __future__ import annotations

from exporter.diagnosis.figures import Figures
from exporter.diagnosis.findings import (
    Evidence,
    Finding,
    Gain,
    Missing,
    Verdict,
    excluded,
    undecided,
)
from exporter.diagnosis.slot_hypotheses import FILLED_RATIO, filled_ratio, less_sure_by_count
from exporter.diagnosis.slots_in_window import BY_WORKING
from exporter.thresholds import FULL_POOL_RATIO, THRESHOLDS

_WITHOUT_GRAPH = THRESHOLDS["DecodeWithoutGraph"].value
_IDLE = 0.25
_SOME_IDLE = 0.12
_TIMER_OVER_WORK = 1.5
"""SGLang's forward timer over residency: launch gaps count in it (measured 86 over 20 %)."""
_PREFILL = 0.2
_SOME_PREFILL = 0.12
_QUEUED = 0.5
_MOST_KV_GAIN = 2.0


def idle_between_batches(figures: Figures) -> float | None:
    """Mean share of stage time without a kernel, less what all stages spend stopped together."""
    if figures.idle_ratio is None:
        return None
    together = (figures.stopped_ratio or 0.0) + (figures.paused_ratio or 0.0)
    return max(figures.idle_ratio - together, 0.0)


def host_bound(figures: Figures) -> Finding:
    """Work is ready, yet every stage idles between its batches: launches or scheduler CPU."""
    verdict, idle = Verdict.HOST_BOUND, idle_between_batches(figures)
    if idle is None:
        return undecided(verdict, Missing.GPUS)
    gaps = Evidence(
        "idle_between_batches_ratio",
        round(idle, 3),
        f">= {_IDLE:g}",
        "residency: no kernel, while not all stages have stopped",
        idle >= _IDLE,
    )
    if idle < _SOME_IDLE or (figures.measured and (figures.waiting_ratio or 0.0) > idle):
        return excluded(verdict, gaps)
    gain = Gain(1.0 / (1.0 - min(idle, 0.99)), "kernels follow each other without a gap")
    timer = _timer_evidence(figures)
    if timer is not None and timer.supports and idle >= _IDLE:
        return Finding(verdict, 0.9, (gaps, timer), gain)
    ready = _work_ready(figures)
    evidence = tuple(each for each in (gaps, timer, ready) if each is not None)
    if ready is None:
        missing = Missing.SLOTS if figures.log.decode_lines else Missing.LINES
        return Finding(verdict, 0.3, evidence, gain, (missing,))
    if not ready.supports:
        return excluded(verdict, *evidence)
    clear = idle >= _IDLE and (figures.log.prefill_ratio or 0.0) < _PREFILL
    return less_sure_by_count(Finding(verdict, 0.8 if clear else 0.4, evidence, gain), figures)


def _timer_evidence(figures: Figures) -> Evidence | None:
    """SGLang's forward timer counts launch gaps, residency does not."""
    timer, idle = figures.log.forward_occupancy_ratio, figures.idle_ratio
    if timer is None or idle is None:
        return None
    resident = 1.0 - idle
    return Evidence(
        "forward_occupancy_ratio",
        round(timer, 3),
        f"> {_TIMER_OVER_WORK:g} x resident {resident:.2f}",
        "SGLang's forward timer counts launch gaps, residency does not",
        timer > _TIMER_OVER_WORK * resident,
    )


def _work_ready(figures: Figures) -> Evidence | None:
    """Whether there is a batch for every stage; `None` if that is not known."""
    if not figures.is_pipeline:
        lines = figures.log.decode_lines
        return Evidence("decode_lines", lines, "> 0", "decode goes on") if lines else None
    filled, requests = filled_ratio(figures), figures.requests
    if filled is None or requests is None or figures.slots.active_from == BY_WORKING:
        return None
    ready = filled >= FILLED_RATIO and requests >= (figures.pp_size or 0)
    expected = f">= {FILLED_RATIO:g}, requests for all stages"
    return Evidence("filled_slots_ratio", round(filled, 2), expected, "decode lines", ready)


def graph_off(figures: Figures) -> Finding:
    """Decode batches are launched kernel by kernel."""
    verdict, ratio = Verdict.GRAPH_OFF, figures.log.graph_ratio
    source = "decode lines"
    if figures.facts.get("device") == "cpu":
        return excluded(verdict)  # nothing is launched on a card
    if ratio is None:
        if figures.facts.get("disable_cuda_graph") is not True:
            missing = () if figures.facts.get("disable_cuda_graph") is False else (Missing.GRAPHS,)
            return undecided(verdict, *missing)
        ratio, source = 0.0, "disable_cuda_graph"
    evidence = Evidence(
        "graph_ratio", round(ratio, 3), f"< {_WITHOUT_GRAPH:g}", source, ratio < _WITHOUT_GRAPH
    )
    if ratio >= _WITHOUT_GRAPH:
        return excluded(verdict, evidence)
    idle = idle_between_batches(figures)
    if idle is None:
        # Nothing shows what it costs; and a CPU server prints the same.
        why = (
            "unknown: no GPU is seen; on an H200 kernels ran in a fifth of the time without graphs"
        )
        return Finding(verdict, 0.45, (evidence,), Gain(None, why), (Missing.GPUS,))
    gain = Gain(1.0 / (1.0 - min(idle, 0.99)), "a graph's kernels follow each other without a gap")
    return Finding(verdict, 0.95 if idle >= _SOME_IDLE else 0.6, (evidence,), gain)


def kv_limited(figures: Figures) -> Finding:
    """Requests wait or are thrown back because the KV pool is full."""
    verdict, log = Verdict.KV_LIMITED, figures.log
    if log.pool_ratio is None:
        return undecided(verdict, Missing.LINES)
    full = log.pool_ratio >= FULL_POOL_RATIO
    waits = (log.queued_ratio or 0.0) >= _QUEUED
    evidence = (
        Evidence(
            "pool_ratio", round(log.pool_ratio, 3), f">= {FULL_POOL_RATIO:g}", "decode lines", full
        ),
        Evidence(
            "queued_requests",
            _rounded(log.queued_requests),
            "> 0 most of the time",
            "decode lines",
            waits,
        ),
        Evidence(
            "retracted_requests",
            log.retracted_requests,
            "> 0",
            "event lines",
            log.retracted_requests > 0,
        ),
    )
    thrown_back = log.retracted_requests > 0
    if not (full and (waits or thrown_back)) and not (thrown_back and waits):
        return excluded(verdict, *evidence)
    running = figures.requests
    ratio = None
    if running and log.queued_requests:
        ratio = min((running + log.queued_requests) / running, _MOST_KV_GAIN)
    gain = Gain(
        ratio, "the waiting requests run too, and throughput grows with them: an upper bound"
    )
    return Finding(verdict, 0.9, evidence, gain)


def prefill_interference(figures: Figures) -> Finding:
    """Decode waits behind prefill chunks."""
    verdict, ratio = Verdict.PREFILL_INTERFERENCE, figures.log.prefill_ratio
    if ratio is None:
        if figures.log.prefill_tokens_per_second == 0.0:
            return excluded(verdict)
        return undecided(verdict, Missing.PREFILL if figures.log.decode_lines else Missing.LINES)
    evidence = Evidence(
        "prefill_ratio",
        round(ratio, 3),
        f">= {_PREFILL:g}",
        "time between decode lines that grows with the tokens prefilled in it",
        ratio >= _PREFILL,
    )
    if ratio < _SOME_PREFILL:
        return excluded(verdict, evidence)
    gain = Gain(
        1.0 / (1.0 - min(ratio, 0.9)), "prefill runs elsewhere, or in chunks that hide in bubbles"
    )
    if ratio < _PREFILL:
        return Finding(verdict, 0.45, (evidence,), gain)
    if figures.stopped_ratio is None:
        # Clients that pause and then send new requests leave the same gaps in the log.
        return Finding(verdict, 0.65, (evidence,), gain, (Missing.GPUS,))
    return Finding(verdict, 0.85, (evidence,), gain)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
