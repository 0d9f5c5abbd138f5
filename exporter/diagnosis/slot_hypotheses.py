"""Hypotheses about how requests are spread over the micro-batches. Pure."""

from __future__ import annotations

from dataclasses import replace

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
from exporter.diagnosis.slots_in_window import BY_MOMENTS, BY_PERIOD, BY_WORKING
from exporter.thresholds import HIGH_BUBBLE_RATIO, LEAST_BATCH_REQUESTS, THRESHOLDS

FILLED_RATIO = 0.8
"""Effective micro-batches over those possible, from which the slots count as filled: there the
variation of their sizes over P slots is 0.5."""
_HERD = THRESHOLDS["ThunderingHerd"]
_FULL_OCCUPANCY = 0.95
_LEAST_GAIN = 1.1
_SMALL_BATCH = 4.0
_BY_WORKING = 0.6
_SUSPECTED = 0.4
_NEAR_BOUND = 0.65
_BY_COUNT = 0.65
_ESTIMATED = 0.25  # how far an estimate may be from the truth while requests come and go


def herd_bound(stages: int) -> float:
    """Most effective micro-batches that are still a herd."""
    return max(_HERD.value, stages / _HERD.gates["stages to a micro-batch"])


def filled_ratio(figures: Figures) -> float | None:
    """Effective micro-batches over those possible (stages, or requests if fewer); `None` unknown."""
    effective, stages, requests = figures.slots.effective, figures.pp_size, figures.requests
    if effective is None or not stages or not requests:
        return None
    return effective / min(stages, requests)


def _slots_evidence(figures: Figures, expected: str, *, supports: bool = True) -> Evidence:
    value = figures.slots.effective
    return Evidence(
        "effective_microbatches",
        None if value is None else round(value, 2),
        expected,
        slots_source(figures),
        supports,
    )


def rests_on_count(figures: Figures) -> bool:
    """Whether the filled slots are as many as counted requests need.

    Requests that were answered at once are counted too, so fewer slots may be filled; but no more:
    a herd or too few clients are not in doubt.
    """
    return figures.counted_requests is not None and figures.slots.active_from != BY_PERIOD


def less_sure_by_count(finding: Finding, figures: Figures) -> Finding:
    """The same finding, not confident where its filled slots rest on counted requests."""
    if not rests_on_count(figures):
        return finding
    missing = (*finding.missing, Missing.SLOTS)
    return replace(finding, score=min(finding.score, _BY_COUNT), missing=missing)


def slots_source(figures: Figures) -> str:
    """Where the sizes of the slots are known from, for people."""
    source, counted = (
        f"decode lines; {figures.slots.active_from or figures.slots.reason}",
        figures.counted_requests,
    )
    if counted is None:
        return source
    by_count = f"{counted} requests, counted by their prefill since the stages were idle,"
    return source.replace("known concurrency", by_count)


def _bubble_evidence(figures: Figures, least: float) -> Evidence | None:
    """The bubble, or its lower bound; against the hypothesis where the stages are busier."""
    occupancy = figures.occupancy_ratio if figures.measured else figures.occupancy_at_most_ratio
    if occupancy is None:
        return None
    source = "working shares of the stages" if figures.measured else "residency: a lower bound"
    supports = 1.0 - occupancy >= least
    if not supports and not figures.measured:
        return None  # residency hides waiting: a low lower bound says nothing
    return Evidence("bubble_ratio", round(1.0 - occupancy, 3), f">= {least:g}", source, supports)


def _score(figures: Figures, base: float, bubble: Evidence | None) -> float:
    """A split seen in the log, more or less sure by what the GPUs say."""
    if figures.slots.active_from == BY_WORKING:
        return _BY_WORKING  # a host that leaves gaps looks the same
    if figures.slots.active_from == BY_MOMENTS:
        base -= 0.1
        if _near_bound(figures):
            return _NEAR_BOUND
    if bubble is None:
        return base
    return min(base + 0.1, 0.95) if bubble.supports else 0.4


def _near_bound(figures: Figures) -> bool:
    """Whether an estimate of the effective micro-batches may lie on the other side of the bound."""
    bound = herd_bound(figures.pp_size or 1)
    return abs((figures.slots.effective or 0.0) - bound) <= _ESTIMATED * bound


def thundering_herd(figures: Figures) -> Finding:
    """Few slots hold the requests; the batch travels."""
    verdict, slots, stages = Verdict.THUNDERING_HERD, figures.slots, figures.pp_size
    if not figures.is_pipeline or stages is None:
        return excluded(verdict)
    bound = herd_bound(stages)
    expected = f"<= {bound:g} of {stages}"
    batch = figures.log.mean_batch_requests
    if batch is not None and batch < LEAST_BATCH_REQUESTS:
        return excluded(
            verdict, Evidence("batch_requests", round(batch, 2), ">= 2", "decode lines", False)
        )
    if slots.effective is None:
        return _herd_at_least(figures, bound)
    if slots.effective > bound:
        return excluded(verdict, _slots_evidence(figures, expected, supports=False))
    bubble = _bubble_evidence(figures, HIGH_BUBBLE_RATIO)
    evidence = [_slots_evidence(figures, expected), *([bubble] if bubble else [])]
    if figures.variance_ratio is not None and figures.measured:
        low = figures.variance_ratio < 0.5
        value = round(figures.variance_ratio, 3)
        source = "number of working stages over time: far below 1 a batch travels"
        evidence.append(Evidence("active_stages_variance_ratio", value, "< 0.5", source, low))
    return Finding(verdict, _score(figures, 0.85, bubble), tuple(evidence), _even_gain(figures))


def _herd_at_least(figures: Figures, bound: float) -> Finding:
    """One slot is seen that leaves the hidden ones next to nothing, as long as it was seen."""
    verdict, most = Verdict.THUNDERING_HERD, figures.effective_at_most
    if most is None or most > bound:
        return _unseen(figures, verdict)
    bubble = _bubble_evidence(figures, HIGH_BUBBLE_RATIO)
    known = (_bound_evidence(figures, most, f"<= {bound:g}"), *([bubble] if bubble else []))
    score = min(_score(figures, 0.6, bubble), _NEAR_BOUND)
    return Finding(verdict, score, known, _even_gain(figures), (Missing.SLOTS,))


def _bound_evidence(figures: Figures, most: float, expected: str) -> Evidence:
    source = f"the largest batch seen, {figures.slots.active_from}"
    return Evidence("effective_at_most", round(most, 2), f"{expected} of {figures.pp_size}", source)


def uneven_split(figures: Figures) -> Finding:
    """More than a herd, but some slots hold much more than others."""
    verdict, slots, stages = Verdict.UNEVEN_SPLIT, figures.slots, figures.pp_size
    if not figures.is_pipeline or stages is None:
        return excluded(verdict)
    filled = filled_ratio(figures)
    if slots.effective is None or filled is None:
        return _uneven_at_least(figures)
    expected = f"> {herd_bound(stages):g}, < {FILLED_RATIO:g} of the possible"
    if slots.effective <= herd_bound(stages) or filled >= FILLED_RATIO:
        return excluded(verdict, _slots_evidence(figures, expected, supports=False))
    bubble = _bubble_evidence(figures, 1.0 - _FULL_OCCUPANCY)
    variation = Evidence(
        "slot_size_variation",
        None if slots.size_variation is None else round(slots.size_variation, 2),
        "> 0.5",
        f"micro-batches of {', '.join(map(str, slots.sizes))}" if slots.sizes else "decode lines",
    )
    evidence = (_slots_evidence(figures, expected), variation, *([bubble] if bubble else []))
    score = _score(figures, 0.8, bubble)
    if slots.active_from == BY_WORKING and len(set(slots.sizes or ())) <= 1:
        # Nothing uneven is seen, only fewer working stages than slots: gaps of the host, as likely.
        return Finding(verdict, _SUSPECTED, evidence, _even_gain(figures), (Missing.SLOTS,))
    return less_sure_by_count(Finding(verdict, score, evidence, _even_gain(figures)), figures)


def _uneven_at_least(figures: Figures) -> Finding:
    """One slot is seen that holds more than its share, whatever the hidden ones hold."""
    verdict, most, requests = Verdict.UNEVEN_SPLIT, figures.effective_at_most, figures.requests
    stages = figures.pp_size or 0
    if most is None or not requests or most >= FILLED_RATIO * min(stages, requests):
        return _unseen(figures, verdict)
    if most <= herd_bound(stages):
        return _unseen(figures, verdict)  # a herd
    bubble = _bubble_evidence(figures, 1.0 - _FULL_OCCUPANCY)
    evidence = _bound_evidence(figures, most, f"< {FILLED_RATIO * min(stages, requests):.2g}")
    known = (evidence, *([bubble] if bubble else []))
    score = min(_score(figures, 0.6, bubble), 0.7)
    return Finding(verdict, score, known, _even_gain(figures), (Missing.SLOTS,))


def over_split(figures: Figures) -> Finding:
    """The pipeline is full, but its batches are too small to pay."""
    verdict, slots, stages = Verdict.OVER_SPLIT, figures.slots, figures.pp_size
    if not figures.is_pipeline or stages is None:
        return excluded(verdict)
    gain = figures.even_split_gain_ratio
    full = (figures.occupancy_ratio or 0.0) > _FULL_OCCUPANCY and (gain or 0.0) >= _LEAST_GAIN
    if slots.active is None and not full:
        if slots.slots is not None and slots.slots <= stages and figures.measured:
            return excluded(verdict)
        return undecided(verdict, Missing.SLOTS)
    active = slots.active or 0
    many = active > stages
    evidence = [Evidence("active_slots", slots.active, f"> {stages}", "decode lines", many)]
    if not many and not full:
        return excluded(verdict, *evidence)
    if gain is not None:
        pays = gain >= _LEAST_GAIN
        source = "pass times fitted to two loads"
        evidence.append(Evidence("even_split_gain_ratio", round(gain, 2), ">= 1.1", source, pays))
        if not pays:
            return Finding(verdict, 0.2, tuple(evidence))
    occupancy = figures.occupancy_ratio if figures.measured else figures.occupancy_at_most_ratio
    score = 0.7 if (figures.log.mean_batch_requests or 0.0) <= _SMALL_BATCH else 0.6
    if occupancy is not None:
        busy = occupancy >= 0.85
        evidence.append(Evidence("occupancy_ratio", round(occupancy, 3), ">= 0.85", "GPUs", busy))
        score = 0.4 if not busy else min(score + (0.2 if figures.measured else 0.05), 0.9)
    ratio, why = gain, "passes take as long as fitted to this load and a single stream"
    if ratio is None and many:
        ratio, why = active / stages, "a pass takes as long with twice the requests: an upper bound"
    finding = Finding(verdict, score, tuple(evidence), Gain(ratio, why))
    return less_sure_by_count(finding, figures)


def client_limited(figures: Figures) -> Finding:
    """Fewer requests than stages, each in a slot of its own."""
    verdict, stages, requests = Verdict.CLIENT_LIMITED, figures.pp_size, figures.requests
    if not figures.is_pipeline or stages is None:
        return excluded(verdict)
    if requests is None:
        return undecided(verdict, Missing.SLOTS)
    queued = figures.log.queued_requests or 0.0
    few, waiting = requests < stages - 0.5, queued >= 0.5
    evidence = [
        Evidence("requests", round(requests, 1), f"< {stages}", "load and decode lines", few),
        Evidence("queued_requests", round(queued, 1), "0", "decode lines", not waiting),
    ]
    filled = filled_ratio(figures)
    if filled is not None:
        apart = filled >= FILLED_RATIO
        expected = f">= {FILLED_RATIO:g} x requests"
        evidence.append(_slots_evidence(figures, expected, supports=apart))
    if not few or waiting or (filled is not None and filled < FILLED_RATIO):
        return excluded(verdict, *evidence)
    why = "the clients send as many requests as there are stages"
    gain = Gain(stages / max(requests, 1.0), why)
    if filled is None:
        return Finding(verdict, 0.6, tuple(evidence), gain, (Missing.SLOTS,))
    return Finding(verdict, _score(figures, 0.9, None), tuple(evidence), gain)


def _unseen(figures: Figures, verdict: Verdict) -> Finding:
    """The sizes are not known; GPUs may still exclude a bad split: M slots keep at most M busy."""
    stages, least = figures.pp_size or 0, figures.occupancy_at_least_ratio
    bound = herd_bound(stages) if verdict is Verdict.THUNDERING_HERD else FILLED_RATIO * stages
    if least is not None and least * stages > bound + 0.5:
        source = "activity of the GPUs: more stages worked at a time than a herd can keep busy"
        value = round(least * stages, 2)
        return excluded(verdict, Evidence("working_stages", value, f"<= {bound:g}", source, False))
    if not figures.log.decode_lines:
        return undecided(verdict, Missing.LINES, Missing.SLOTS)
    return undecided(verdict, Missing.SLOTS)


def _even_gain(figures: Figures) -> Gain:
    """What an even split would give: fitted, or at most."""
    if figures.even_split_gain_ratio is not None:
        return Gain(
            figures.even_split_gain_ratio,
            "passes take as long as fitted to this load and a single stream",
        )
    stages, slots = figures.pp_size or 1, figures.slots
    requests = figures.requests or 1.0
    bounds = []
    if slots.sizes:
        bounds.append(min(stages, requests) * max(slots.sizes) / sum(slots.sizes))
    if figures.measured and figures.highest_working_ratio:
        bounds.append(1.0 / figures.highest_working_ratio)
    why = "a pass takes time in proportion to its requests: an upper bound, 1 if it takes as long"
    return Gain(max(min(bounds), 1.0) if bounds else None, why)
