"""Stages against each other, and the load against a single stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from exporter.diagnosis.figures import Figures, StageFigures
from exporter.pipeline.gain_fit import GainFit, Operation


def likeness(stages: Sequence[StageFigures]) -> tuple[dict[str, float], int | None]:
    """Mean over highest of signals that grow with work, and the stage that is highest in all.

    Cards of one kind draw and read alike at the same work to some percent: no levels are needed.
    """
    found: dict[str, float] = {}
    leaders = set()
    for name in ("sm", "dram", "watts"):
        values = [
            getattr(stage, "watts" if name == "watts" else f"{name}_ratio") for stage in stages
        ]
        known = [value for value in values if value is not None]
        if len(known) < max(len(values), 2) or max(known) <= 0.0:
            continue
        found[name] = fmean(known) / max(known)
        leaders.add(stages[known.index(max(known))].pp_rank)
    return found, leaders.pop() if len(leaders) == 1 else None


def against_reference(figures: Figures) -> Figures:
    """Adds F = X_C / (P X_1) and the fitted gain of an even split, where a single stream is known.

    The single stream passes every stage once a token; its time is shared out as the stages work
    now. Hops count as work in it, so that the gain is rather too low.
    """
    single, rate = figures.single_stream_tokens_per_second, figures.log.tokens_per_second
    stages, slots = figures.pp_size, figures.slots
    if single is None or not rate or not stages or figures.concurrency == 1:
        return figures
    figures = replace(figures, scaling_ratio=rate / (stages * single))
    working = tuple(s.working_ratio or 0.0 for s in figures.stages)
    known = figures.measured and len(working) == stages and sum(working) > 0.0
    if not known or slots.active is None or not slots.running_requests or slots.sizes is None:
        return figures
    fit = GainFit()
    alone = tuple(ratio / sum(working) for ratio in working)
    # As many streams as there are slots weigh as much as the load; their rate is one stream's each.
    fit.observe(Operation(slots.active, float(slots.active), single, alone))
    fit.observe(Operation(slots.active, slots.running_requests, rate, working))
    gain = fit.gain_ratio(slots.sizes, slots.slots or stages)
    return replace(figures, even_split_gain_ratio=gain)
