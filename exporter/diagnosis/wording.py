"""A diagnosis → one sentence that says what is wrong, with the numbers that say so. Pure."""

from __future__ import annotations

from collections.abc import Callable

from exporter.diagnosis.figures import Figures
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.verdict import Diagnosis


def sentence(diagnosis: Diagnosis) -> str:
    """One sentence about the verdict; figures that are not known are left out."""
    return _SENTENCES[diagnosis.verdict](diagnosis.figures)


def gain_text(diagnosis: Diagnosis) -> str:
    """The predicted gain in words, with what it assumes."""
    gain = diagnosis.gain
    if gain.ratio is None:
        return gain.assumes
    if diagnosis.verdict is Verdict.HEALTHY:
        return "none: " + gain.assumes
    return f"{gain.ratio:.2g} times the throughput, if {gain.assumes}"


def percent(ratio: float | None) -> str:
    """A share in whole percent; `?` if not known."""
    return "?" if ratio is None else f"{100 * ratio:.0f} %"


def _occupancy(figures: Figures) -> str:
    if figures.measured:
        return f"the stages work {percent(figures.occupancy_ratio)} of the time"
    if figures.occupancy_at_most_ratio is None:
        return "what the stages do is not seen"
    most = percent(figures.occupancy_at_most_ratio)
    return f"kernels are resident {most} of the time (waiting ones too)"


def _spread(figures: Figures) -> str:
    slots, requests = figures.slots, figures.requests
    held = "the requests" if requests is None else f"{requests:.0f} requests"
    effective = "?"
    if slots.effective is not None:
        effective = f"{slots.effective:.2g}"
    elif figures.effective_at_most is not None:
        effective = f"at most {figures.effective_at_most:.2g}"
    return f"{held} sit in {effective} of {figures.pp_size} micro-batches"


def _healthy(figures: Figures) -> str:
    if not figures.is_pipeline:
        return f"Nothing is wrong: {_occupancy(figures)}."
    even = "" if figures.slots.effective is None else f"{_spread(figures)}, and "
    what = "Nothing is wrong" if figures.measured else "Nothing wrong is seen"
    return f"{what}: {even}{_occupancy(figures)}."


def _herd(figures: Figures) -> str:
    return f"{_spread(figures)}: one batch travels from stage to stage while the others wait for it; {_occupancy(figures)}."


def _uneven(figures: Figures) -> str:
    sizes = figures.slots.sizes
    which = f" ({', '.join(map(str, sizes))})" if sizes else ""
    return f"{_spread(figures)}{which}: all wait for the largest; {_occupancy(figures)}."


def _over(figures: Figures) -> str:
    slots, batch = figures.slots, figures.log.mean_batch_requests
    many = "?" if slots.active is None else str(slots.active)
    size = "?" if batch is None else f"{batch:.2g}"
    return (
        f"{many} micro-batches of {size} fill {figures.pp_size} stages: the pipeline is full, but "
        "each pass reads all weights for a few tokens."
    )


def _imbalance(figures: Figures) -> str:
    if not figures.measured:
        return f"Stage {figures.likeness_leader} does more than the others, by what its card reads."
    slow = max(figures.stages, key=lambda stage: stage.working_ratio or 0.0)
    others = [s.working_ratio or 0.0 for s in figures.stages if s is not slow]
    mean = sum(others) / len(others) if others else None
    return (
        f"Stage {slow.pp_rank} works {percent(slow.working_ratio)} of the time and the others "
        f"{percent(mean)}: they wait for it."
    )


def _stall(figures: Figures) -> str:
    longest = figures.longest_stop_seconds
    most = "" if longest is None else f", up to {longest:.1f} s at a time"
    return (
        f"All stages stand still together {percent(figures.stopped_ratio)} of the time{most}, "
        "with requests in flight."
    )


def _host(figures: Figures) -> str:
    return (
        f"Work is ready, but no kernel is on the stages {percent(figures.idle_ratio)} of the time: "
        "the host launches too slowly."
    )


def _prefill(figures: Figures) -> str:
    return (
        f"{percent(figures.log.prefill_ratio)} of the time goes to prefill that decode waits for."
    )


def _clients(figures: Figures) -> str:
    requests = "?" if figures.requests is None else f"{figures.requests:.0f}"
    return f"{requests} requests are too few for {figures.pp_size} stages; {_occupancy(figures)}."


def _pool(figures: Figures) -> str:
    log = figures.log
    queued = "" if log.queued_requests is None else f", {log.queued_requests:.0f} requests wait"
    thrown = f", {log.retracted_requests} were thrown back" if log.retracted_requests else ""
    return f"The KV pool is {percent(log.pool_ratio)} full{queued}{thrown}."


def _graphs(figures: Figures) -> str:
    ratio = figures.log.graph_ratio
    how = (
        "Decode runs without CUDA graphs"
        if not ratio
        else f"{percent(ratio)} of decode runs as graphs"
    )
    idle = (
        ""
        if figures.idle_ratio is None
        else f": no kernel {percent(figures.idle_ratio)} of the time"
    )
    return f"{how}{idle}."


def _transfer(figures: Figures) -> str:
    return (
        f"Slots are filled and stages alike, but they wait {percent(figures.waiting_ratio)} of the "
        "time for what is handed over."
    )


def _card(figures: Figures) -> str:
    lost = [s for s in figures.stages if s.lost_seconds or s.xids]
    if lost:
        worst = max(lost, key=lambda s: s.lost_seconds or 0.0)
        return f"The GPU of stage {worst.pp_rank} was lost for {worst.lost_seconds or 0.0:.0f} s."
    worst = max(figures.stages, key=lambda s: (s.throttled_ratio or 0.0, s.working_ratio or 0.0))
    reasons = ", ".join(worst.throttle_reasons) or "it draws less at work than the others"
    return f"The GPU of stage {worst.pp_rank} is slow: {reasons}."


def _cannot_tell(figures: Figures) -> str:
    if figures.lines_seen == 0 and figures.window_seconds is None:
        return "No batch line of an SGLang server was seen: there is nothing to judge."
    if figures.window_seconds is None and figures.is_pipeline and figures.scaling_ratio is not None:
        return (
            f"{figures.scaling_ratio:.2f} of {figures.pp_size} single streams fits a full pipeline "
            "without gain from batching as well as bursts: only the sizes of the micro-batches "
            "decide, and no steady load was seen that shows them."
        )
    if figures.window_seconds is None:
        return "No steady load was seen long enough to judge."
    known = "" if figures.slots.effective is None else f"{_spread(figures)}; "
    return (
        f"{known}what is seen does not decide between causes; {_occupancy(figures)}.".capitalize()
    )


_SENTENCES: dict[Verdict, Callable[[Figures], str]] = {
    Verdict.HEALTHY: _healthy,
    Verdict.THUNDERING_HERD: _herd,
    Verdict.UNEVEN_SPLIT: _uneven,
    Verdict.OVER_SPLIT: _over,
    Verdict.STAGE_IMBALANCE: _imbalance,
    Verdict.GLOBAL_STALL: _stall,
    Verdict.HOST_BOUND: _host,
    Verdict.PREFILL_INTERFERENCE: _prefill,
    Verdict.CLIENT_LIMITED: _clients,
    Verdict.KV_LIMITED: _pool,
    Verdict.GRAPH_OFF: _graphs,
    Verdict.TRANSFER_BOUND: _transfer,
    Verdict.GPU_FAULT: _card,
    Verdict.CANNOT_TELL: _cannot_tell,
}
