"""What figures support without deciding between causes, each with what it cannot tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from exporter.diagnosis.figures import Figures, StageFigures
from exporter.diagnosis.findings import Evidence

_SAME_STEP = 0.03
"""Stages this near each other do the same work: cards of one kind differ by some percent."""
_NEXT_STEP = 0.05
_WIDE_SPREAD = 0.25


def observations(figures: Figures) -> tuple[Evidence, ...]:
    """Evidence that belongs to no single hypothesis."""
    found = (_scaling(figures), _power_steps(figures.stages), _momentary_spread(figures.stages))
    return tuple(each for each in found if each is not None)


def _scaling(figures: Figures) -> Evidence | None:
    """F = X_C / (P X_1): what the load reaches of as many single streams as there are stages."""
    scaling, stages = figures.scaling_ratio, figures.pp_size
    if scaling is None or stages is None:
        return None
    if stages == 1:
        source = "output over a single stream: what batching gives without stages to fill"
    else:
        source = (
            f"output over {stages} single streams; about 1 fits a full pipeline whose batches gain "
            "nothing, and bursts in few micro-batches, which do"
        )
        streams, single = figures.concurrency, figures.single_stream_tokens_per_second
        if streams is not None and streams > stages and single is not None:
            source += (
                f"; if {streams / stages:.2g} requests took a stage no longer than one, an even "
                f"split would give {streams * single:.0f} tokens/s"
            )
    return Evidence("scaling_ratio", round(scaling, 3), "> 1", source, scaling > 1.0)


def power_steps(stages: Sequence[StageFigures]) -> list[list[StageFigures]] | None:
    """Runs of stages that draw alike, rising from run to run; `None` where it is no staircase."""
    runs: list[list[StageFigures]] = []
    for stage in stages:
        if stage.watts is None:
            return None
        if runs and abs(stage.watts - _mean_watts(runs[-1])) <= _SAME_STEP * stage.watts:
            runs[-1].append(stage)
        else:
            runs.append([stage])
    means = [_mean_watts(run) for run in runs]
    rises = all(after >= (1.0 + _NEXT_STEP) * before for before, after in pairwise(means))
    return runs if rises and 1 < len(runs) <= max(len(stages) // 2, 2) else None


def _power_steps(stages: Sequence[StageFigures]) -> Evidence | None:
    runs = power_steps(stages)
    if runs is None:
        return None
    drawn = ", ".join(
        f"{run[0].pp_rank}-{run[-1].pp_rank}: {_mean_watts(run):.0f} W"
        if len(run) > 1
        else f"{run[0].pp_rank}: {_mean_watts(run):.0f} W"
        for run in runs
    )
    drawn_by = [stage.watts for stage in stages if stage.watts is not None]
    mean, most = fmean(drawn_by), max(drawn_by)
    source = (
        f"stages {drawn}; the last draws {100 * (drawn_by[-1] / mean - 1):.0f} % above the mean "
        f"(mean over highest {mean / most:.2f}); {_split_fitting(runs)}power alone does not tell "
        "work from waiting"
    )
    return Evidence("power_steps", "-".join(str(len(run)) for run in runs), "one", source, False)


def _split_fitting(runs: Sequence[Sequence[StageFigures]]) -> str:
    """The layer split that such steps fit: SGLang gives left-over layers to the last stages."""
    lone_last = len(runs) > 1 and len(runs[-1]) == 1
    counts = [len(run) for run in (runs[:-1] if lone_last else runs)]
    if len(counts) > 2:
        return ""
    layers = ["7"] * counts[0] + ["8"] * sum(counts[1:])
    layers += layers[-1:] * lone_last
    head = " plus lm_head on the last" if lone_last else ""
    return f"fits a layer split such as {','.join(layers)}{head}; "


def _mean_watts(run: Sequence[StageFigures]) -> float:
    return fmean(stage.watts for stage in run if stage.watts is not None)


def _momentary_spread(stages: Sequence[StageFigures]) -> Evidence | None:
    shares = [s.momentary_utilization_ratio for s in stages]
    known = [share for share in shares if share is not None]
    if len(known) < max(len(shares), 2):
        return None
    spread = max(known) - min(known)
    source = (
        f"one reading of each GPU, {100 * min(known):.0f} to {100 * max(known):.0f} %: an instant, "
        "which a herd, an uneven split and chance spread alike; only means over 30 s show a lasting "
        "difference"
    )
    return Evidence("momentary_spread", round(spread, 2), f"< {_WIDE_SPREAD:g}", source, False)
