"""A watch and a window → the figures a verdict rests on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from exporter.diagnosis.counted_requests import counted_requests
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.likeness import against_reference, likeness
from exporter.diagnosis.log_figures import log_figures, one_stage
from exporter.diagnosis.slots_in_window import effective_at_most, slots_in_window
from exporter.diagnosis.stage_figures import stage_figures
from exporter.diagnosis.standing_still import STOP_SECONDS, standing_still, stopped_outside
from exporter.diagnosis.steady_window import Window, choose_window, stops
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.pipeline.figures import Variance
from exporter.pipeline.means import inflight_occupancy, skew_and_balance, variance
from exporter.pipeline.micro_batches import Activity
from exporter.pipeline.server_facts import count_of, local_pp_ranks
from exporter.records import FactValue

Span = tuple[float, float]


def measure(watch: Watch, key: PipelineKey) -> Figures:
    """The figures of one pipeline over its steady window; hardly any without a window."""
    facts = watch.facts.get(key[0], {})
    window = choose_window(watch, key)
    if window is None:
        return Figures(
            server=key[0],
            dp_rank=key[1],
            facts=dict(facts),
            pp_size=_pp_size(watch, key, facts),
            local_stages=len(watch.stage_gpus(key)) or None,
            stopped_outside_seconds=stopped_outside(watch, key, None),
            lines_seen=len(watch.batches.get(key, ())),
        )
    return figures_in(watch, key, window)


def figures_in(watch: Watch, key: PipelineKey, window: Window) -> Figures:
    """The figures of one pipeline over a given window."""
    facts = watch.facts.get(key[0], {})
    span = (window.start, window.end)
    batches = [b for b in watch.batches.get(key, ()) if _during(b.logged_at, span)]
    events = [e for e in watch.events if e.server == key[0] and _during(e.happened_at, span)]
    found = stops(watch, key, span, STOP_SECONDS)
    stopped, paused, longest = standing_still(watch, span, found, batches)
    figures = Figures(
        server=key[0],
        dp_rank=key[1],
        window_seconds=window.seconds,
        window_started_at=window.start,
        window_ended_at=window.end,
        window_chosen_by=window.chosen_by,
        facts=dict(facts),
        pp_size=_pp_size(watch, key, facts),
        concurrency=window.concurrency,
        lines_seen=len(watch.batches.get(key, ())),
        time_resolution_seconds=watch.time_resolution_seconds,
        log=log_figures(batches, events, found, watch.time_resolution_seconds),
        stopped_ratio=stopped,
        paused_ratio=paused,
        longest_stop_seconds=longest,
        stopped_outside_seconds=stopped_outside(watch, key, span),
        single_stream_tokens_per_second=watch.references.get(1),
    )
    figures, varied = _with_stages(figures, watch, key, span)
    counted = None if window.concurrency is not None else counted_requests(watch, key, span)
    slots = slots_in_window(batches, facts, window, _activity(figures, varied), counted)
    most = effective_at_most(slots, one_stage(batches))
    return against_reference(
        replace(figures, slots=slots, effective_at_most=most, counted_requests=counted)
    )


def _with_stages(
    figures: Figures, watch: Watch, key: PipelineKey, span: Span
) -> tuple[Figures, Variance | None]:
    """Adds what the stages do, one by one and together."""
    seconds = [
        second
        for second in watch.seconds.get(key, ())
        if span[0] <= second.second and second.second + 1 <= span[1]
    ]
    alone = figures.pp_size == 1 and count_of(figures.facts, "tp_size") == 1
    stages = stage_figures(watch, key, seconds, span, alone=alone)
    local = local_pp_ranks(figures.facts)
    expected = len(local) if local is not None else len(stages) or None
    alike, leader = likeness(stages)
    figures = replace(
        figures,
        local_stages=expected,
        stages=stages,
        occupancy_at_most_ratio=_mean([s.working_at_most_ratio for s in stages]),
        occupancy_at_least_ratio=_mean([s.working_at_least_ratio for s in stages]),
        waiting_ratio=_mean([s.waiting_ratio for s in stages]),
        idle_ratio=_mean([s.idle_ratio for s in stages]),
        stage_likeness=alike,
        likeness_leader=leader,
    )
    known = [s.working_ratio for s in stages if s.working_ratio is not None]
    if not stages or len(known) != expected:
        return figures, None
    varied = variance(seconds, len(stages))
    occupancy = inflight_occupancy(seconds)
    occupancy = fmean(known) if occupancy is None else occupancy
    skew, balance = skew_and_balance(known)
    figures = replace(
        figures,
        measured=True,
        occupancy_ratio=occupancy,
        highest_working_ratio=max(known),
        skew_ratio=skew,
        balance_ratio=balance,
        active_stages_mean=occupancy * len(stages),
        variance_ratio=_variance_ratio(varied),
    )
    return figures, varied


def _variance_ratio(varied: Variance | None) -> float | None:
    """Variance of the number of working stages over independent ones', or its lower bound."""
    if varied is None:
        return None
    return varied.active_ratio_at_least if varied.active_ratio is None else varied.active_ratio


def _activity(figures: Figures, varied: Variance | None) -> Activity | None:
    """What the GPUs say about the slots; nothing where the stages stop together."""
    mean, highest = figures.active_stages_mean, figures.highest_working_ratio
    if mean is None or highest is None or figures.local_stages != figures.pp_size:
        return None
    seen = _variance_ratio(varied)
    return Activity(mean, highest) if seen is None or seen <= 1.0 else None


def _during(at: float, span: Span) -> bool:
    return span[0] <= at <= span[1]


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean over all stages; `None` if one of them is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _pp_size(watch: Watch, key: PipelineKey, facts: Mapping[str, FactValue]) -> int | None:
    told = count_of(facts, "pp_size")
    if told is not None:
        return told
    ranks = {b.pp_rank for b in watch.batches.get(key, ())} | watch.stage_gpus(key).keys()
    return max(ranks) + 1 if ranks else None
