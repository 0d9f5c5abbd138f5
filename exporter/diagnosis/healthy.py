"""The hypothesis that nothing is wrong: the faults are excluded and the stages work. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.diagnosis.figures import Figures
from exporter.diagnosis.findings import Evidence, Finding, Missing, Verdict
from exporter.diagnosis.slot_hypotheses import (
    FILLED_RATIO,
    filled_ratio,
    rests_on_count,
    slots_source,
)
from exporter.thresholds import FULL_POOL_RATIO

_WORKS_WELL = 0.85
_WORKS = 0.75
"""One stage's worth of bubble in four; POP's efficiency metrics accept 0.8."""
_ALIKE = 0.88
_RESIDENT = 0.9
_BY_LOG = 0.55
"""Even slots, no queue, no full pool: all that the log of a server without GPUs can say. Where there
are GPUs and they are not seen, a slow stage, slow transfers and launch gaps print the same."""
_SILENT_GAPS, _SILENT_SECONDS = 4.0, 0.8
_LEAST_WORK = 0.4
"""Least proven work of stages that a healthy verdict without known levels asks for."""


def healthy(figures: Figures, faults: Sequence[Finding]) -> Finding:
    """How surely the pipeline does what it can, once no fault holds."""
    missing = tuple(dict.fromkeys(m for fault in faults for m in fault.missing))
    if not figures.log.decode_lines:
        return Finding(Verdict.HEALTHY, 0.0, missing=(Missing.LINES, *missing))
    suspicion = max((fault.score for fault in faults), default=0.0)
    score, evidence = _pipeline(figures) if figures.is_pipeline else _single(figures)
    if suspicion >= 0.4:
        score = min(score, 0.6)
    sure = score >= _WORKS
    return Finding(Verdict.HEALTHY, score, evidence, missing=() if sure else missing)


def _single(figures: Figures) -> tuple[float, tuple[Evidence, ...]]:
    """One stage: nothing to split; its GPUs work while requests are there."""
    idle = figures.idle_ratio
    if idle is None:
        return 0.0, ()
    still = (figures.stopped_ratio or 0.0) + (figures.paused_ratio or 0.0)
    busy = (1.0 - idle) / max(1.0 - still, 0.01)
    source = "kernels on the only stage, while the clients did not pause"
    evidence = Evidence("resident_ratio", round(busy, 3), f">= {_WORKS_WELL:g}", source)
    if busy < _WORKS:
        return 0.4, (evidence,)
    sure = 0.9 if figures.measured else 0.65  # tensor-parallel ranks may wait for each other
    return (sure if busy >= _WORKS_WELL else min(sure, 0.75)), (evidence,)


def _pipeline(figures: Figures) -> tuple[float, tuple[Evidence, ...]]:
    filled = filled_ratio(figures)
    evidence = []
    if filled is not None:
        expected, source = f">= {FILLED_RATIO:g}", slots_source(figures)
        evidence.append(Evidence("filled_slots_ratio", round(filled, 2), expected, source))
    pool = figures.log.pool_ratio
    if pool is not None:
        evidence.append(
            Evidence("pool_ratio", round(pool, 2), f"< {FULL_POOL_RATIO:g}", "decode lines")
        )
    if figures.measured and figures.occupancy_ratio is not None:
        occupancy = figures.occupancy_ratio
        source = "working shares of the stages while in flight"
        evidence.append(
            Evidence("occupancy_ratio", round(occupancy, 3), f">= {_WORKS_WELL:g}", source)
        )
        full = occupancy >= _WORKS_WELL
        slots = figures.slots.slots
        if filled is None and (slots is None or slots > (figures.pp_size or 0)):
            return 0.3, tuple(evidence)  # full, but perhaps of batches that are too small
        if filled is None:
            return (0.75 if full else 0.3), tuple(evidence)
        partly = 0.3 if occupancy < _WORKS else 0.65 if rests_on_count(figures) else 0.72
        return (0.9 if full else partly), tuple(evidence)
    return _unmeasured(figures, filled), tuple(evidence)


def _unmeasured(figures: Figures, filled: float | None) -> float:
    """Never confident: by residency a stage that waits looks like one that works."""
    resident, least = figures.occupancy_at_most_ratio, figures.occupancy_at_least_ratio
    likeness = figures.stage_likeness
    if filled is None or filled < FILLED_RATIO:
        return 0.2
    if resident is None and not figures.stages:
        alone = figures.facts.get("device") == "cpu"
        return _BY_LOG if alone and _prints_evenly(figures) else 0.3
    if resident is None or resident < _RESIDENT:
        return 0.2
    if not likeness or min(likeness.values()) < _ALIKE:
        return 0.3
    return 0.65 if least is not None and least >= _LEAST_WORK else 0.4


def _prints_evenly(figures: Figures) -> bool:
    """Whether no silence stands out: all stages may have stopped in it."""
    silent, seconds = figures.log.silent_seconds, figures.window_seconds
    if silent is None or seconds is None:
        return True
    return silent <= max(_SILENT_GAPS * seconds / figures.log.decode_lines, _SILENT_SECONDS)
