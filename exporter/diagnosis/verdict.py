"""Figures → hypotheses → one verdict, with what else holds and what is missing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from exporter.diagnosis.figures import Figures
from exporter.diagnosis.findings import (
    CONFIDENT,
    Evidence,
    Finding,
    Gain,
    Missing,
    Verdict,
)
from exporter.diagnosis.healthy import healthy
from exporter.diagnosis.observations import observations
from exporter.diagnosis.server_hypotheses import (
    graph_off,
    host_bound,
    kv_limited,
    prefill_interference,
)
from exporter.diagnosis.slot_hypotheses import (
    client_limited,
    over_split,
    thundering_herd,
    uneven_split,
)
from exporter.diagnosis.stage_hypotheses import (
    global_stall,
    gpu_fault,
    stage_imbalance,
    transfer_bound,
)

HYPOTHESES: tuple[Callable[[Figures], Finding], ...] = (
    thundering_herd,
    uneven_split,
    over_split,
    stage_imbalance,
    global_stall,
    host_bound,
    prefill_interference,
    client_limited,
    kv_limited,
    graph_off,
    transfer_bound,
    gpu_fault,
)
"""Every fault of the closed set."""

EXPLAINS: dict[Verdict, frozenset[Verdict]] = {
    Verdict.GRAPH_OFF: frozenset({Verdict.HOST_BOUND}),
    Verdict.GPU_FAULT: frozenset({Verdict.STAGE_IMBALANCE, Verdict.GLOBAL_STALL}),
    Verdict.KV_LIMITED: frozenset({Verdict.UNEVEN_SPLIT, Verdict.PREFILL_INTERFERENCE}),
    Verdict.PREFILL_INTERFERENCE: frozenset({Verdict.UNEVEN_SPLIT, Verdict.HOST_BOUND}),
    Verdict.CLIENT_LIMITED: frozenset({Verdict.HOST_BOUND}),
}
"""A cause goes before what follows from it, whatever the gains."""

SHORT_SECONDS = 10.0
"""A window below this makes every verdict less sure."""
_SHORT_FACTOR = 0.85
_MOST_PARTIAL = 0.65
"""Nobody is confident about a pipeline of which only a part is seen."""
_UNKNOWN_GAIN = 1.2
_LONG_STOP_SECONDS = 3.0
_TOLD = 4  # undecided hypotheses whose evidence a `cannot_tell` shows


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The verdict on one pipeline.

    Attributes:
        confidence: 0 to 1; of `cannot_tell` the score of the likeliest hypothesis.
        also: What holds besides, largest predicted gain first.
        missing: What would have to be known for a surer verdict.
        findings: What every hypothesis said.
    """

    verdict: Verdict
    confidence: float
    evidence: tuple[Evidence, ...]
    also: tuple[Verdict, ...]
    gain: Gain
    missing: tuple[Missing, ...]
    figures: Figures
    findings: tuple[Finding, ...]


def diagnose(figures: Figures) -> Diagnosis:
    """Weighs every hypothesis; the one with the largest predicted gain that holds is the verdict."""
    if figures.window_seconds is None:
        if figures.lines_seen == 0:
            return _cannot_tell(figures, (), (Missing.LINES,))
        return _cannot_tell(figures, (), (Missing.LOAD, Missing.SLOTS, Missing.WORKING))
    findings = tuple(_tempered(hypothesis(figures), figures) for hypothesis in HYPOTHESES)
    holding = [finding for finding in findings if finding.holds]
    if not holding:
        well = _tempered(healthy(figures, findings), figures)
        if not well.holds:
            return _cannot_tell(figures, (*findings, well), well.missing)
        stalled = (figures.stopped_outside_seconds or 0.0) >= _LONG_STOP_SECONDS
        return Diagnosis(
            Verdict.HEALTHY,
            well.score,
            (*well.evidence, *_outside(figures)),
            (Verdict.GLOBAL_STALL,) if stalled else (),
            Gain(1.0, "nothing holds the pipeline up"),
            well.missing,
            figures,
            (*findings, well),
        )
    explained = {each for finding in holding for each in EXPLAINS.get(finding.verdict, ())}
    # A gain is predicted for what holds; a mere suspicion of a large one does not go before.
    ranked = sorted(
        holding,
        key=lambda f: (f.verdict in explained, f.score < CONFIDENT, -_rank_gain(f)),
    )
    best = ranked[0]
    also = [finding.verdict for finding in ranked[1:]]
    outside = _outside(figures)
    if outside and Verdict.GLOBAL_STALL not in {best.verdict, *also}:
        also.append(Verdict.GLOBAL_STALL)
    return Diagnosis(
        best.verdict,
        best.score,
        (*best.evidence, *outside),
        tuple(also),
        best.gain or Gain(None, "not predicted"),
        best.missing,
        figures,
        findings,
    )


def _rank_gain(finding: Finding) -> float:
    ratio = finding.gain.ratio if finding.gain is not None else None
    return _UNKNOWN_GAIN if ratio is None else ratio


def _tempered(finding: Finding, figures: Figures) -> Finding:
    """Less sure after a short look, and where only a part of the pipeline is seen."""
    score = finding.score
    if (figures.window_seconds or 0.0) < SHORT_SECONDS and score >= 0.6:
        score = max(score * _SHORT_FACTOR, 0.5)
    missing = finding.missing
    if figures.pp_size and figures.local_stages and figures.local_stages < figures.pp_size:
        score = min(score, _MOST_PARTIAL)
        missing = (*missing, Missing.STAGES)
    return Finding(finding.verdict, score, finding.evidence, finding.gain, missing)


def _outside(figures: Figures) -> tuple[Evidence, ...]:
    """A long stop under a driven load that is no part of the window: a compile stall, mostly."""
    seconds = figures.stopped_outside_seconds
    if seconds is None or seconds < _LONG_STOP_SECONDS:
        return ()
    source = "outside the window, under a driven load: no kernel and no line (compiling, mostly)"
    return (Evidence("stopped_outside_seconds", round(seconds, 1), "0", source, False),)


def _cannot_tell(
    figures: Figures, findings: tuple[Finding, ...], needed: Iterable[Missing]
) -> Diagnosis:
    likely = sorted(findings, key=lambda finding: -finding.score)
    open_ = [finding for finding in likely if finding.missing][:_TOLD]
    evidence = [each for finding in open_ for each in finding.evidence]
    missing = dict.fromkeys((*needed, *(m for finding in open_ for m in finding.missing)))
    return Diagnosis(
        Verdict.CANNOT_TELL,
        likely[0].score if likely else 0.0,
        (*evidence, *observations(figures), *_outside(figures)),
        (),
        Gain(None, "not predicted"),
        tuple(missing),
        figures,
        findings,
    )
