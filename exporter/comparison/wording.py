"""A comparison → the sentence a person would say. Pure."""

from __future__ import annotations

from exporter.comparison.cautions import (
    capital,
    counted,
    load_text,
    other_lengths,
    unknown_loads,
)
from exporter.comparison.compared import Comparison
from exporter.comparison.run import Run, printable
from exporter.diagnosis.findings import CONFIDENT, Verdict

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
        head += f" at {counted(streams, 'stream')}"
    said = (_batching(comparison), _stages(comparison), _verdicts(comparison))
    reasons = "; ".join(filter(None, said))
    head += f": {reasons}" if reasons else ""
    return capital(f"{head}{_reservation(comparison)}.")


def headline(comparison: Comparison) -> str:
    """What it comes to, in three words."""
    ratio = comparison.throughput_ratio
    return "cannot tell" if ratio is None else f"{times(ratio)} the output"


def gives_more(comparison: Comparison) -> bool | None:
    """Whether the candidate gives more or less; `None`: the same, or it cannot be told."""
    ratio = comparison.throughput_ratio
    return None if ratio is None or abs(ratio - 1.0) <= SAME_RATIO else ratio > 1.0


def side_text(run: Run) -> str:
    """Which server a side is, what was found with it, and over which time."""
    version = run.facts.get("version")
    sure = "" if run.confidence is None else f" ({run.confidence:.2f})"
    seconds = run.window_seconds
    parts = [
        run.layout or "layout not known",
        "" if version is None else f"SGLang {printable(version)}",
        run.verdict.replace("_", " ") + sure,
        "no steady window" if seconds is None else f"window {seconds:.1f} s",
    ]
    return ", ".join(part for part in parts if part)


def times(ratio: float) -> str:
    """A ratio as it stands in a table."""
    if ratio < 0.1:
        return f"{ratio:.2g}x"
    return f"{ratio:.2f}x" if ratio < 10.0 else f"{ratio:.0f}x"


def short(value: float) -> str:
    """A ratio or a count as it is said: two digits that count."""
    return f"{value:.0f}" if value >= 10.0 else f"{value:.2g}"


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
    """What is found with each, where that differs, is sure, and is not said already."""
    runs = (comparison.baseline, comparison.candidate)
    verdicts = [run.verdict.replace("_", " ") for run in runs]
    sure = all(
        run.verdict not in _SPREAD_BADLY | {Verdict.CANNOT_TELL}
        and (run.confidence or 0.0) >= CONFIDENT
        for run in runs
    )
    alike = _is_pipeline(runs[0]) == _is_pipeline(runs[1]) and not comparison.windows_differ
    if not sure or not alike or verdicts[0] == verdicts[1]:
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
    lengths = other_lengths(comparison)
    if lengths:
        return f"; but {' and '.join(lengths)}"
    unknown = unknown_loads(comparison)
    return f"; if the load was the same: that of {unknown} is not known" if unknown else ""


def _cannot_tell(comparison: Comparison) -> str:
    baseline, candidate = comparison.names
    first, second = comparison.points
    if comparison.loads_differ:
        before, after = (load_text(each.streams, each.load) for each in (first, second))
        why = f"{baseline} was loaded with {before}, {candidate} with {after}"
    else:
        named = zip(comparison.names, comparison.points, strict=True)
        missing = [name for name, point in named if not point.tokens_per_second]
        why = f"the throughput of {' and of '.join(missing)} is not known"
    alone = comparison.quantities["single_stream_tokens_per_second"].ratio
    if alone is not None:
        why += f"; a single stream is {short(alone)} times as fast with {candidate}"
    return f"Cannot tell which gives more: {why}."


def _is_pipeline(run: Run) -> bool:
    return run.pp_size is not None and run.pp_size > 1
