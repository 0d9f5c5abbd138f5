"""A comparison → the sentence a person would say, and what to beware of. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.diagnosis.compared_run import Run, printable
from exporter.diagnosis.comparison import Comparison, Means, Point
from exporter.diagnosis.findings import CONFIDENT, Verdict
from exporter.diagnosis.verdict import SHORT_SECONDS

SAME_RATIO = 0.03
"""Throughputs this near each other are called the same: runs of one server differ as much."""

_MOST_CHANGES = 2  # flags a sentence can carry
_NO_CAUSE = frozenset(
    {
        "decode_log_interval",
        "enable_metrics",
        "enable_metrics_for_all_schedulers",
        "host",
        "model_path",
        "node_rank",
        "port",
        "served_model_name",
    }
)
"""Facts that make no server faster."""
_NOTABLE = 0.05  # less is no reason for anything
_OFF_RATIO = 0.15  # load and log of one run differ by less where nothing stalls
_CUT_SHORT = {"stopped": "was stopped early", "all_failed": "ended because requests failed"}
_SPREAD_BADLY = frozenset({Verdict.THUNDERING_HERD, Verdict.UNEVEN_SPLIT})
_NO_FAULT = frozenset({Verdict.HEALTHY, Verdict.CANNOT_TELL})


def sentence(comparison: Comparison) -> str:
    """What the candidate gives of the baseline, and why, as far as that is known."""
    ratio = comparison.throughput_ratio
    if ratio is None:
        return _cannot_tell(comparison)
    baseline, candidate = comparison.names
    head = f"{_with_changes(comparison)}{candidate} gives {_given(ratio, baseline)}"
    streams = comparison.points[1].streams
    if streams is not None and streams == comparison.points[0].streams:
        head += f" at {_counted(streams, 'stream')}"
    why = _stages(comparison) or _verdicts(comparison)
    reasons = "; ".join(filter(None, (_batching(comparison), why)))
    head += f": {reasons}" if reasons else ""
    return _capital(f"{head}{_reservation(comparison)}.")


def cautions(comparison: Comparison) -> list[str]:
    """What keeps the figures from meaning what they seem to; the gravest first."""
    sides = zip(
        comparison.names,
        (comparison.baseline, comparison.candidate),
        comparison.points,
        strict=True,
    )
    of_sides = [each for side in sides for each in _of_side(*side)]
    found = [*_of_loads(comparison), *_of_means(comparison), *of_sides, *_of_machines(comparison)]
    return [_capital(each) for each in found]


def short(value: float) -> str:
    """A ratio or a count as it is said: two digits that count."""
    return f"{value:.0f}" if value >= 10.0 else f"{value:.2g}"


# --- the sentence ------------------------------------------------------------------------------


def _given(ratio: float, baseline: str) -> str:
    if abs(ratio - 1.0) <= SAME_RATIO:
        return f"the same throughput (within {100 * SAME_RATIO:.0f} %) as {baseline}"
    if ratio < 1.0:
        return f"{ratio:.2f} of {baseline}'s throughput"
    return f"{ratio:.2f} times {baseline}'s throughput"


def _with_changes(comparison: Comparison) -> str:
    """The flags that were changed, where they are few and the layout is the same."""
    changed = [
        each
        for each in comparison.changed_facts
        if each.unknown is None and each.name not in _NO_CAUSE
    ]
    layouts = {comparison.baseline.layout, comparison.candidate.layout}
    if len(layouts) != 1 or not 1 <= len(changed) <= _MOST_CHANGES:
        return ""
    told = [
        f"{each.name} {printable(each.candidate)} instead of {printable(each.baseline)}"
        for each in changed
    ]
    return f"with {' and '.join(told)}, "


def _batching(comparison: Comparison) -> str:
    gain = comparison.quantities["batching_gain_ratio"]
    if not gain.baseline or gain.candidate is None:
        return ""
    if abs(gain.candidate / gain.baseline - 1.0) < _NOTABLE:
        return ""
    return f"batching brings {short(gain.candidate)}x there against {short(gain.baseline)}x"


def _stages(comparison: Comparison) -> str:
    """Of the pipeline; of the candidate against the baseline where both are one."""
    baseline, candidate = comparison.baseline, comparison.candidate
    if comparison.windows_differ:
        return ""
    if _is_pipeline(baseline) and _is_pipeline(candidate):
        return _of_two_pipelines(baseline, candidate)
    run = candidate if _is_pipeline(candidate) else baseline
    return _of_pipeline(run) if _is_pipeline(run) else ""


def _of_two_pipelines(baseline: Run, candidate: Run) -> str:
    said = []
    busy, before = candidate.occupancy_ratio, baseline.occupancy_ratio
    if busy is not None and before is not None and abs(busy - before) >= _NOTABLE:
        said.append(f"its stages are busy {busy:.2f} of the time against {before:.2f}")
    used = baseline.effective_microbatches
    now = candidate.effective_microbatches
    if now is not None and used and abs(now / used - 1.0) >= _NOTABLE:
        said.append(f"{_held(candidate)} against {short(used)}")
    return ", and ".join(said)


def _of_pipeline(run: Run) -> str:
    held = _held(run)
    if run.occupancy_ratio is None:
        return f"there {held}" if held else ""
    said = f"the pipeline is busy {run.occupancy_ratio:.2f} of the time"
    sure = (run.confidence or 0.0) >= CONFIDENT
    if held and run.verdict in _SPREAD_BADLY and sure:
        return f"{said} because {held}"
    return f"{said}, and {held}{_fault(run)}" if held else said + _fault(run)


def _verdicts(comparison: Comparison) -> str:
    """What each suffers from, where that differs and is sure."""
    runs = (comparison.baseline, comparison.candidate)
    verdicts = [run.verdict.replace("_", " ") for run in runs]
    sure = all(
        run.verdict is not Verdict.CANNOT_TELL and (run.confidence or 0.0) >= CONFIDENT
        for run in runs
    )
    if not sure or verdicts[0] == verdicts[1] or comparison.windows_differ:
        return ""
    return f"the verdict on it is {verdicts[1]}, not {verdicts[0]}"


def _held(run: Run) -> str:
    if run.effective_microbatches is None:
        return ""
    count = run.requests if run.requests is not None else run.streams
    held = "the requests" if count is None else f"{count:.0f} requests"
    slots = "" if run.slots is None else f" of {run.slots}"
    return f"{held} sit in {short(run.effective_microbatches)}{slots} micro-batches"


def _fault(run: Run) -> str:
    if run.verdict in _NO_FAULT | _SPREAD_BADLY or (run.confidence or 0.0) < CONFIDENT:
        return ""
    return f" ({run.verdict.replace('_', ' ')})"


def _reservation(comparison: Comparison) -> str:
    lengths = _other_lengths(comparison)
    if lengths:
        return f"; but {' and '.join(lengths)}"
    unknown = _unknown_loads(comparison)
    return f"; if the load was the same: that of {unknown} is not known" if unknown else ""


def _cannot_tell(comparison: Comparison) -> str:
    baseline, candidate = comparison.names
    first, second = comparison.points
    if comparison.loads_differ:
        why = f"{baseline} was loaded with {_load(first)}, {candidate} with {_load(second)}"
    else:
        named = zip(comparison.names, comparison.points, strict=True)
        missing = [name for name, point in named if not point.tokens_per_second]
        why = f"the throughput of {' and of '.join(missing)} is not known"
    alone = comparison.quantities["single_stream_tokens_per_second"].ratio
    if alone is not None:
        why += f"; a single stream is {short(alone)} times as fast with {candidate}"
    return f"Cannot tell which gives more: {why}."


# --- what to beware of -------------------------------------------------------------------------


def _of_loads(comparison: Comparison) -> Iterator[str]:
    baseline, candidate = comparison.baseline, comparison.candidate
    if comparison.loads_differ:
        yield "the loads differ: no figure of the one is held against the other's"
    elif comparison.windows_differ:
        yield (
            f"output and latencies are compared at {_counted(comparison.points[0].streams, 'stream')}, the most "
            f"that both were loaded with; stages and energy are of {_of_window(baseline)} and "
            f"{_of_window(candidate)}, and not compared"
        )
    yield from _other_lengths(comparison)
    unknown = _unknown_loads(comparison)
    if unknown:
        yield f"the load of {unknown} is not known: it may have asked for more or less"


def _of_means(comparison: Comparison) -> Iterator[str]:
    first, second = comparison.points
    if first.means is not None and second.means is not None and first.means is not second.means:
        yield "the throughput of the one was counted by its load, of the other printed by the log"
    if Means.LOG in {first.means, second.means} and (comparison.baseline.dp_size or 1) > 1:
        yield "the log's throughput is that of one data-parallel replica"
    runs = (comparison.baseline, comparison.candidate)
    for name, run in zip(comparison.names, runs, strict=True):
        if run.occupancy_at_most_ratio is not None:
            yield (
                f"how much the stages of {name} work is known as a bound only, waiting kernels "
                "included: it is not held against the other's"
            )


def _of_side(name: str, run: Run, point: Point) -> Iterator[str]:
    if run.window_seconds is None:
        yield f"{name} has no steady window: nothing is known of its stages"
    elif run.window_seconds < SHORT_SECONDS:
        yield f"the steady window of {name} is only {run.window_seconds:.1f} s"
    load = point.load
    if load is None:
        return
    if load.seconds is not None and load.seconds < SHORT_SECONDS and point.means is Means.LOAD:
        yield f"the load of {name} was measured for only {load.seconds:.1f} s"
    if load.failed:
        yield f"{_counted(load.failed, 'request')} of the load of {name} failed"
    if load.ended_by in _CUT_SHORT:
        yield f"the load of {name} {_CUT_SHORT[load.ended_by]}"
    counted, printed = load.tokens_per_second, run.printed_tokens_per_second
    alone = run.dp_size in {None, 1} and load is run.load
    if counted and printed and alone and abs(printed / counted - 1.0) > _OFF_RATIO:
        yield (
            f"the load of {name} counted {counted:.0f} tokens/s, but in the steady window the log "
            f"printed {printed:.0f}: the load was not steady"
        )


def _of_machines(comparison: Comparison) -> Iterator[str]:
    baseline, candidate = comparison.baseline, comparison.candidate
    if baseline.gpus and candidate.gpus and baseline.gpus != candidate.gpus:
        yield f"they run on {baseline.gpus} and {candidate.gpus} GPUs"
    first, second = baseline.gpu_models, candidate.gpu_models
    if first and second and first != second:
        yield f"the GPUs differ: {', '.join(first)} against {', '.join(second)}"
    for each in comparison.changed_facts:
        if each.name in {"model_path", "served_model_name"} and each.unknown is None:
            yield (
                f"it may be another model: {printable(each.baseline)} against "
                f"{printable(each.candidate)}"
            )
            return


def _other_lengths(comparison: Comparison) -> list[str]:
    names = {"prompt_tokens": "the prompts", "max_tokens": "the answers"}
    quantities = {name: comparison.quantities[name] for name in names}
    return [
        f"{names[name]} differ, {each.baseline:.0f} tokens against {each.candidate:.0f}"
        for name, each in quantities.items()
        if each.baseline is not None
        and each.candidate is not None
        and each.baseline != each.candidate
    ]


def _unknown_loads(comparison: Comparison) -> str:
    named = zip(comparison.names, comparison.points, strict=True)
    return " and of ".join(
        name
        for name, point in named
        if point.streams is None and (point.load is None or point.load.rate_per_second is None)
    )


def _load(point: Point) -> str:
    if point.load is not None and point.load.rate_per_second is not None:
        return f"{point.load.rate_per_second:g} requests/s"
    return "an unknown load" if point.streams is None else _counted(point.streams, "stream")


def _of_window(run: Run) -> str:
    if run.load is not None and run.load.rate_per_second is not None:
        return f"{run.load.rate_per_second:g} requests/s"
    return "an unknown load" if run.streams is None else _counted(run.streams, "stream")


def _is_pipeline(run: Run) -> bool:
    return run.pp_size is not None and run.pp_size > 1


def _counted(count: int | None, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
