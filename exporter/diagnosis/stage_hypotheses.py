"""Hypotheses about the stages: one slower, all stopped, all waiting, a card at fault. Pure."""

from __future__ import annotations

from statistics import median

from exporter.diagnosis.figures import Figures, StageFigures
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
from exporter.thresholds import THRESHOLDS

_SKEW = THRESHOLDS["StageSkewHigh"].value
_LEAST_SKEW = 0.15
_LIMIT_WORKING = 0.8
"""The slowest stage of a filled pipeline works most of the time; below, something else limits."""
_ALIKE = 0.88
"""Mean over highest signal of stages that do the same: cards of one kind differ by some percent."""
_UNLIKE = 0.8
_STOPPED = 0.1
_THROTTLED = THRESHOLDS["GpuThrottled"].value
_WAITING = 0.25
_PREFILL = 0.2
_UNSURE = 0.65
_DRAWS_LESS = 0.8


def slowest_stage(figures: Figures) -> StageFigures | None:
    """The stage that works most, measured; `None` if that is not known."""
    if not figures.measured or not figures.stages:
        return None
    return max(figures.stages, key=lambda stage: stage.working_ratio or 0.0)


def _lasts(figures: Figures, slow: StageFigures) -> bool:
    """Whether the same stage works most in both halves of the window."""
    for half in ("first_half_working_ratio", "second_half_working_ratio"):
        shares = {stage.pp_rank: getattr(stage, half) for stage in figures.stages}
        known = {rank: share for rank, share in shares.items() if share is not None}
        if len(known) == len(shares) and max(known, key=known.__getitem__) != slow.pp_rank:
            return False
    return True


def stage_imbalance(figures: Figures) -> Finding:
    """One stage lastingly slower than the others: layers, lm_head, throttling."""
    verdict, slow = Verdict.STAGE_IMBALANCE, slowest_stage(figures)
    if not figures.is_pipeline:
        return excluded(verdict)
    if slow is None or figures.skew_ratio is None or not figures.balance_ratio:
        return _imbalance_by_likeness(figures)
    limits = (slow.working_ratio or 0.0) >= _LIMIT_WORKING
    lasts = _lasts(figures, slow)
    evidence = (
        Evidence(
            "stage_skew_ratio",
            round(figures.skew_ratio, 3),
            f">= {_SKEW:g}",
            "working shares of the stages",
            figures.skew_ratio >= _SKEW,
        ),
        Evidence(
            "slowest_stage_working_ratio",
            round(slow.working_ratio or 0.0, 3),
            f">= {_LIMIT_WORKING:g}",
            f"stage {slow.pp_rank}, {'the same' if lasts else 'not the same'} in both halves",
            limits and lasts,
        ),
    )
    if figures.skew_ratio < _LEAST_SKEW or not lasts:
        return excluded(verdict, *evidence)
    gain = Gain(1.0 / figures.balance_ratio, "the stage's excess is shared out over all stages")
    stages = figures.pp_size or 0
    unread = slow.throttled_ratio is None
    hidden = unread and slow.pp_rank < stages - 1 and stages > 2
    if not limits:
        score = 0.4
    elif figures.skew_ratio < _SKEW:
        score = 0.6
    else:
        # An inner stage has no lm_head: its card may be throttled, which nothing here shows.
        score = _UNSURE if hidden else 0.9
    missing = (Missing.THROTTLING,) if unread else ()
    return Finding(verdict, score, evidence, gain, missing)


def _others_wait(figures: Figures) -> bool:
    """Whether most stages are measured to wait, and not the one that draws most.

    Then one signal is enough to say for which: it has no stage to wait for.
    """
    known = {s.pp_rank: s.working_ratio for s in figures.stages if s.working_ratio is not None}
    others = [share for rank, share in known.items() if rank != figures.likeness_leader]
    leader = known.get(figures.likeness_leader, 1.0) if figures.likeness_leader is not None else 0.0
    most = 2 * len(others) >= len(figures.stages) > 2
    return most and leader >= _LIMIT_WORKING and max(others) <= leader - _SKEW


def _imbalance_by_likeness(figures: Figures) -> Finding:
    """By what the cards read, where not every stage is measured."""
    verdict, likeness = Verdict.STAGE_IMBALANCE, figures.stage_likeness
    if not likeness or (len(likeness) < 2 and not _others_wait(figures)):
        return undecided(verdict, Missing.WORKING if figures.stages else Missing.GPUS)
    evidence = tuple(
        Evidence(
            f"stage_likeness_{name}",
            round(value, 3),
            f"< {_UNLIKE:g}",
            "mean over highest of the stages; needs no levels",
            value < _UNLIKE,
        )
        for name, value in sorted(likeness.items())
    )
    if min(likeness.values()) >= _ALIKE:
        return excluded(verdict, *evidence)
    if max(likeness.values()) < _UNLIKE and figures.likeness_leader is not None:
        gain = Gain(1.0 / max(likeness.values()), "what a card reads grows with its work alone")
        unread = all(stage.throttled_ratio is None for stage in figures.stages)
        throttling = (Missing.THROTTLING,) if unread else ()
        return Finding(verdict, 0.6, evidence, gain, (Missing.WORKING, *throttling))
    return Finding(verdict, 0.0, evidence, missing=(Missing.WORKING,))


def global_stall(figures: Figures) -> Finding:
    """All stages stop together while requests are in flight."""
    verdict, stopped = Verdict.GLOBAL_STALL, figures.stopped_ratio
    if stopped is None:
        return undecided(verdict, Missing.GPUS)
    evidence = [
        Evidence(
            "stopped_ratio",
            round(stopped, 3),
            f">= {_STOPPED:g}",
            "no kernel on any stage for 0.4 s and more, decode goes on after it",
            stopped >= _STOPPED,
        )
    ]
    if figures.longest_stop_seconds:
        seconds = round(figures.longest_stop_seconds, 1)
        evidence.append(Evidence("longest_stop_seconds", seconds, "< 0.4", "residency"))
    if stopped < _STOPPED:
        return excluded(verdict, evidence[0])
    score = 0.9 if figures.log.decode_lines else 0.4
    gain = Gain(1.0 / (1.0 - min(stopped, 0.99)), "nothing stops any more")
    missing = () if figures.log.decode_lines else (Missing.LINES,)
    return Finding(verdict, score, tuple(evidence), gain, missing)


def transfer_bound(figures: Figures) -> Finding:
    """Slots are filled and stages alike, yet all of them wait for what is handed over."""
    verdict, waiting = Verdict.TRANSFER_BOUND, figures.waiting_ratio
    if not figures.is_pipeline or (figures.occupancy_at_least_ratio or 0.0) >= _LIMIT_WORKING:
        return excluded(verdict)
    if not figures.measured or waiting is None:
        return undecided(verdict, Missing.WORKING)
    filled, highest = filled_ratio(figures), figures.highest_working_ratio or 0.0
    waits = waiting >= _WAITING and waiting >= (figures.idle_ratio or 0.0)
    free = highest < _LIMIT_WORKING
    evidence = [
        Evidence("waiting_ratio", round(waiting, 3), ">= 0.25", "resident without work", waits),
        Evidence("highest_working_ratio", round(highest, 3), "< 0.8", "the busiest stage", free),
    ]
    if not waits or not free or (figures.log.prefill_ratio or 0.0) >= _PREFILL:
        return excluded(verdict, *evidence)
    if filled is None:
        return undecided(verdict, Missing.SLOTS)
    enough = filled >= FILLED_RATIO and (figures.requests or 0.0) >= (figures.pp_size or 0)
    expected = f">= {FILLED_RATIO:g}, requests for all stages"
    evidence.append(
        Evidence("filled_slots_ratio", round(filled, 2), expected, "decode lines", enough)
    )
    if not enough:
        return excluded(verdict, *evidence)
    gain = Gain(1.0 / highest, "hand-overs take no time beside the passes")
    return less_sure_by_count(Finding(verdict, 0.85, tuple(evidence), gain), figures)


def gpu_fault(figures: Figures) -> Finding:
    """A card that is lost, reports an error, or is held down by heat or its power supply."""
    verdict = Verdict.GPU_FAULT
    if not figures.stages or all(stage.idle_ratio is None for stage in figures.stages):
        return undecided(verdict, Missing.GPUS)
    lost = [stage for stage in figures.stages if stage.lost_seconds or stage.xids]
    if lost:
        return _lost(figures, max(lost, key=lambda stage: stage.lost_seconds or 0.0))
    throttled = [s for s in figures.stages if (s.throttled_ratio or 0.0) >= _THROTTLED]
    if throttled:
        return _held_down(figures, max(throttled, key=lambda stage: stage.throttled_ratio or 0.0))
    return _draws_less(figures)


def _lost(figures: Figures, worst: StageFigures) -> Finding:
    seconds = worst.lost_seconds or 0.0
    errors = f"; XID {', '.join(map(str, worst.xids))}" if worst.xids else ""
    source = f"GPU of stage {worst.pp_rank} sent no sample while the others did{errors}"
    evidence = Evidence("gpu_lost_seconds", round(seconds, 1), "0", source)
    share = min(seconds / (figures.window_seconds or 1.0), 0.9)
    return Finding(
        Verdict.GPU_FAULT, 0.85, (evidence,), Gain(1.0 / (1.0 - share), "the card stays")
    )


def _held_down(figures: Figures, worst: StageFigures) -> Finding:
    source = f"GPU of stage {worst.pp_rank}: {', '.join(worst.throttle_reasons)}"
    ratio = round(worst.throttled_ratio or 0.0, 3)
    evidence = (Evidence("throttled_ratio", ratio, f"< {_THROTTLED:g}", source),)
    slow = slowest_stage(figures)
    limits = figures.likeness_leader == worst.pp_rank
    if slow is not None:
        limits = slow.pp_rank == worst.pp_rank and (figures.skew_ratio or 0.0) >= _LEAST_SKEW
    if not limits:
        gain = Gain(None, "its stage is not seen to be the slowest")
        return Finding(Verdict.GPU_FAULT, 0.55, evidence, gain)
    gain = Gain(_balanced_gain(figures), "the card runs at the others' clock")
    return Finding(Verdict.GPU_FAULT, 0.9, evidence, gain)


def _draws_less(figures: Figures) -> Finding:
    """The slow stage's card draws less at work than the others': a lower clock does that.

    Not measured on a throttled card, so never confident.
    """
    verdict, slow = Verdict.GPU_FAULT, slowest_stage(figures)
    others = [s.working_watts for s in figures.stages if s is not slow and s.working_watts]
    if slow is None or slow.working_watts is None or len(others) < 2:
        return excluded(verdict)
    usual = median(others)
    lower = slow.working_watts <= _DRAWS_LESS * usual
    source = f"GPU of the slow stage {slow.pp_rank} at work; the others' median {usual:.0f} W"
    expected = f"> {_DRAWS_LESS:g} of the others'"
    evidence = Evidence("working_watts", round(slow.working_watts), expected, source, lower)
    if not lower or (figures.skew_ratio or 0.0) < _SKEW:
        return excluded(verdict, evidence)
    gain = Gain(_balanced_gain(figures), "the card runs at the others' clock")
    return Finding(verdict, 0.6, (evidence,), gain, (Missing.THROTTLING,))


def _balanced_gain(figures: Figures) -> float | None:
    return 1.0 / figures.balance_ratio if figures.balance_ratio else None
