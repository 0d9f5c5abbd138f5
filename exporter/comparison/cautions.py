"""A comparison → what keeps its figures from meaning what they seem to. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.comparison.compared import Comparison
from exporter.comparison.points import Means, Point
from exporter.comparison.run import Run, RunLoad, printable
from exporter.diagnosis.verdict import SHORT_SECONDS

_OFF_RATIO = 0.15  # load and log of one run differ by less where nothing stalls
_CUT_SHORT = {"stopped": "was stopped early", "all_failed": "ended because requests failed"}


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
    return [capital(each) for each in found]


def _of_loads(comparison: Comparison) -> Iterator[str]:
    baseline, candidate = comparison.baseline, comparison.candidate
    if comparison.loads_differ:
        yield "the loads differ: no figure of the one is held against the other's"
    elif comparison.windows_differ:
        shared = load_text(comparison.points[0].streams, comparison.points[0].load)
        before = load_text(baseline.streams, baseline.load)
        after = load_text(candidate.streams, candidate.load)
        yield (
            f"output and latencies are compared at {shared}, the most that both were loaded with; "
            f"stages and energy are of {before} and {after}, and not compared"
        )
    yield from other_lengths(comparison)
    unknown = unknown_loads(comparison)
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
        yield f"{counted(load.failed, 'request')} of the load of {name} failed"
    if load.ended_by in _CUT_SHORT:
        yield f"the load of {name} {_CUT_SHORT[load.ended_by]}"
    rate, printed = load.tokens_per_second, run.printed_tokens_per_second
    alone = run.dp_size in {None, 1} and load is run.load
    if rate and printed and alone and abs(printed / rate - 1.0) > _OFF_RATIO:
        yield (
            f"the load of {name} counted {rate:.0f} tokens/s, but in the steady window the log "
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


def other_lengths(comparison: Comparison) -> list[str]:
    """Lengths of prompts and answers that are known to differ."""
    names = {"prompt_tokens": "the prompts", "max_tokens": "the answers"}
    quantities = {name: comparison.quantities[name] for name in names}
    return [
        f"{names[name]} differ, {each.baseline:.0f} tokens against {each.candidate:.0f}"
        for name, each in quantities.items()
        if each.baseline is not None
        and each.candidate is not None
        and each.baseline != each.candidate
    ]


def unknown_loads(comparison: Comparison) -> str:
    """The sides of which nobody knows what was in flight; empty: there is none."""
    named = zip(comparison.names, comparison.points, strict=True)
    return " and of ".join(
        name
        for name, point in named
        if point.streams is None and (point.load is None or point.load.rate_per_second is None)
    )


def load_text(streams: int | None, load: RunLoad | None) -> str:
    """A load in words: what is in flight, or how much arrives."""
    if load is not None and load.rate_per_second is not None:
        return f"{load.rate_per_second:g} requests/s"
    return "an unknown load" if streams is None else counted(streams, "stream")


def counted(count: int, thing: str) -> str:
    """One thing, or several."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def capital(text: str) -> str:
    """The text as it begins a sentence."""
    return text[0].upper() + text[1:]
