"""A watch and a window → the figures a verdict rests on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from statistics import fmean

from exporter.diagnosis.figures import Figures, LogFigures, StageFigures
from exporter.diagnosis.log_figures import log_figures, one_stage
from exporter.diagnosis.slots_in_window import effective_at_most, slots_in_window
from exporter.diagnosis.stage_figures import stage_figures
from exporter.diagnosis.steady_window import Window, choose_window, loads_of, stops
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.pipeline.figures import SlotFigures, Variance
from exporter.pipeline.gain_fit import GainFit, Operation
from exporter.pipeline.means import inflight_occupancy, skew_and_balance, variance
from exporter.pipeline.micro_batches import Activity
from exporter.pipeline.server_facts import count_of, local_pp_ranks
from exporter.records import Batch, FactValue, Mode

STOP_SECONDS = 0.4
"""All stages without a kernel this long is no gap between two passes."""
LONG_STOP_SECONDS = 3.0
"""Outside the window only stops this long are told: warm-up begins with short ones."""
_RESUMED_SECONDS = 1.5
_NEW_REQUESTS = 0.5  # share of the running requests that must be new after a pause of the clients

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
            stopped_outside_seconds=_stopped_outside(watch, key, None),
        )
    return figures_in(watch, key, window)


def figures_in(watch: Watch, key: PipelineKey, window: Window) -> Figures:
    """The figures of one pipeline over a given window."""
    facts = watch.facts.get(key[0], {})
    span = (window.start, window.end)
    batches = [b for b in watch.batches.get(key, ()) if span[0] <= b.logged_at <= span[1]]
    seconds = [
        second
        for second in watch.seconds.get(key, ())
        if span[0] <= second.second and second.second + 1 <= span[1]
    ]
    events = [e for e in watch.events if e.server == key[0] and _during(e.happened_at, span)]
    pp_size = _pp_size(watch, key, facts)
    alone = pp_size == 1 and count_of(facts, "tp_size") == 1
    stages = stage_figures(watch, key, seconds, span, alone=alone)
    found = stops(watch, key, span, STOP_SECONDS)
    log = log_figures(batches, events, found)
    local = local_pp_ranks(facts)
    expected = len(local) if local is not None else len(stages) or None
    measured = (
        bool(stages)
        and len(stages) == expected
        and all(stage.working_ratio is not None for stage in stages)
    )
    working = [stage.working_ratio for stage in stages]
    known = [ratio for ratio in working if ratio is not None] if measured else []
    varied = variance(seconds, len(stages)) if measured else None
    active_mean = None
    if measured:
        active_mean = (inflight_occupancy(seconds) or fmean(known)) * len(stages)
    activity = _activity(active_mean, known, pp_size, varied)
    slots = slots_in_window(batches, facts, window, activity)
    stopped, paused, longest = _standing_still(watch, span, found, batches)
    likeness, leader = _likeness(stages)
    gain, scaling = _against_reference(watch, log, slots, known, pp_size, window)
    skew, balance = skew_and_balance(known) if measured else (None, None)
    return Figures(
        server=key[0],
        dp_rank=key[1],
        window_seconds=window.seconds,
        window_started_at=window.start,
        window_ended_at=window.end,
        window_chosen_by=window.chosen_by,
        facts=dict(facts),
        pp_size=pp_size,
        local_stages=expected,
        concurrency=window.concurrency,
        stages=stages,
        log=log,
        slots=slots,
        effective_at_most=effective_at_most(slots, one_stage(batches)),
        measured=measured,
        occupancy_ratio=(inflight_occupancy(seconds) or fmean(known)) if measured else None,
        occupancy_at_most_ratio=_mean([s.working_at_most_ratio for s in stages]),
        occupancy_at_least_ratio=_mean([s.working_at_least_ratio for s in stages]),
        waiting_ratio=_mean([s.waiting_ratio for s in stages]),
        idle_ratio=_mean([s.idle_ratio for s in stages]),
        highest_working_ratio=max(known, default=None),
        skew_ratio=skew,
        balance_ratio=balance,
        active_stages_mean=active_mean,
        variance_ratio=varied.active_ratio or varied.active_ratio_at_least if varied else None,
        stopped_ratio=stopped,
        paused_ratio=paused,
        longest_stop_seconds=longest,
        stopped_outside_seconds=_stopped_outside(watch, key, span),
        stage_likeness=likeness,
        likeness_leader=leader,
        single_stream_tokens_per_second=watch.references.get(1),
        scaling_ratio=scaling,
        even_split_gain_ratio=gain,
    )


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


# --- slots -------------------------------------------------------------------------------------


def _activity(
    active_mean: float | None, known: Sequence[float], stages: int | None, varied: Variance | None
) -> Activity | None:
    """What the GPUs say about the slots; nothing where the stages stop together."""
    if active_mean is None or len(known) != stages:
        return None
    seen = None if varied is None else varied.active_ratio or varied.active_ratio_at_least
    return Activity(active_mean, max(known)) if seen is None or seen <= 1.0 else None


# --- standing still ----------------------------------------------------------------------------


def _standing_still(
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


def _stopped_outside(watch: Watch, key: PipelineKey, span: Span | None) -> float | None:
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


# --- stages compared, references ---------------------------------------------------------------


def _likeness(stages: Sequence[StageFigures]) -> tuple[dict[str, float], int | None]:
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


def _against_reference(
    watch: Watch,
    log: LogFigures,
    slots: SlotFigures,
    working: Sequence[float],
    stages: int | None,
    window: Window,
) -> tuple[float | None, float | None]:
    """Fitted gain of the best even split, and F = X_C / (P X_1), where a single stream is known.

    The single stream passes every stage once a token; its time is shared out as the stages work
    now. Hops count as work in it, so that the gain is rather too low.
    """
    single = watch.references.get(1)
    if single is None or not log.tokens_per_second or not stages or window.concurrency == 1:
        return None, None
    scaling = log.tokens_per_second / (stages * single)
    if slots.active is None or not slots.running_requests or len(working) != stages:
        return None, scaling
    if slots.sizes is None or sum(working) <= 0.0:
        return None, scaling
    fit = GainFit()
    alone = tuple(ratio / sum(working) for ratio in working)
    fit.observe(Operation(1, 1.0, single, alone))
    fit.observe(
        Operation(slots.active, slots.running_requests, log.tokens_per_second, tuple(working))
    )
    return fit.gain_ratio(slots.sizes, slots.slots or stages), scaling
