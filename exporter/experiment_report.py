"""An experiment → what it has shown, as figures for JSON and as text for 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import zip_longest

from exporter.diagnose import Experiment, Outcome
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.report import COLUMNS, contract, stage_bar
from exporter.diagnosis.wording import percent, sentence
from exporter.load.report import load_figures, troubles
from exporter.load.result import LoadResult

WORTH = 1.05
"""A change below this is within what two runs of the same load differ by."""

_SPLITS = (Verdict.THUNDERING_HERD, Verdict.UNEVEN_SPLIT, Verdict.OVER_SPLIT)
"""What the setting changes; other gains are not its own."""
_LABEL = 12
_CELL = (COLUMNS - _LABEL) // 2


def experiment_figures(outcome: Outcome, experiment: Experiment) -> dict[str, object]:
    """What was changed and what that gave, by name; `None` where not known.

    `after` is the object of the second measurement, as the diagnosis' own is of the first.
    """
    after, (throughput, stream) = experiment.after, _gains(outcome, experiment)
    figures, point = outcome.diagnosis.figures, _point(outcome)
    return {
        "setting": experiment.setting,
        "from": experiment.old,
        "to": experiment.new,
        "restored": experiment.restored,
        "gain": {"output_tokens_per_second": throughput, "per_stream": stream},
        "predicted_gain": predicted_gain(outcome),
        "before": {
            "output_tokens_per_second": None if point is None else point.output_tokens_per_second,
            "per_stream_tokens_per_second": _stream_rate(point),
            "slot_sizes": figures.slots.sizes,
            "effective_microbatches": figures.slots.effective,
            "occupancy_ratio": figures.occupancy_ratio,
            "occupancy_at_most_ratio": figures.occupancy_at_most_ratio,
        },
        "after": None
        if after is None
        else contract(
            after.diagnosis,
            {"load": load_figures(after.points), "load_errors": troubles(after.points)},
        ),
        "error": experiment.error,
    }


def experiment_lines(outcome: Outcome, experiment: Experiment) -> Iterator[str]:
    """Both pictures side by side, what it gave, and what to do."""
    name, old, new = experiment.setting, experiment.old, experiment.new
    yield f"experiment  {name}: {old} before, {new} after"
    if experiment.after is not None:
        yield from _pictures(outcome, experiment.after)
        yield ""
        yield from _wrapped(_gain_text(outcome, experiment))
        yield from _wrapped(f"Under the new value: {sentence(experiment.after.diagnosis)}")
    if experiment.error is not None:
        said = "FAILED: " if experiment.failed else "not finished: "
        yield from _wrapped(said + experiment.error)
    elif experiment.after is not None:
        yield from _wrapped(_conclusion(outcome, experiment))
    if experiment.restored:
        yield f"The server has its old value again: {name}={old}."
    else:
        yield from _wrapped(f"THE SERVER MAY STILL HAVE {name}={new}, not {old}: see above.")


def predicted_gain(outcome: Outcome) -> float | None:
    """Throughput of an even split over that of the first load, as the diagnosis has it."""
    ratios = {
        finding.verdict: finding.gain.ratio
        for finding in outcome.diagnosis.findings
        if finding.holds and finding.gain is not None
    }
    return next((ratios[verdict] for verdict in _SPLITS if verdict in ratios), None)


# --- gains -------------------------------------------------------------------------------------


def _point(outcome: Outcome | None) -> LoadResult | None:
    return outcome.points[-1] if outcome is not None and outcome.points else None


def _gains(outcome: Outcome, experiment: Experiment) -> tuple[float | None, float | None]:
    """After over before: throughput, and speed of one stream."""
    before, after = _point(outcome), _point(experiment.after)
    if before is None or after is None:
        return None, None
    rates = before.output_tokens_per_second, after.output_tokens_per_second
    return _ratio(*rates), _ratio(_stream_rate(before), _stream_rate(after))


def _ratio(before: float | None, after: float | None) -> float | None:
    return after / before if before and after is not None else None


def _stream_rate(point: LoadResult | None) -> float | None:
    """Tokens a second that one request sees once it decodes."""
    gap = None if point is None else point.latencies.inter_token
    return 1.0 / gap.mean_seconds if gap is not None and gap.mean_seconds > 0.0 else None


def _gain_text(outcome: Outcome, experiment: Experiment) -> str:
    throughput, stream = _gains(outcome, experiment)
    parts = []
    if throughput is not None:
        parts.append(f"{throughput:.2f} times the throughput")
    if stream is not None:
        parts.append(f"{stream:.2f} times the speed of each stream")
    predicted = predicted_gain(outcome)
    if predicted is not None:
        bound = "at most " if outcome.diagnosis.figures.even_split_gain_ratio is None else ""
        parts.append(f"predicted for an even split: {bound}{predicted:.2f}")
    return f"Measured: {', '.join(parts) if parts else 'no gain can be told'}."


def _conclusion(outcome: Outcome, experiment: Experiment) -> str:
    throughput, stream = _gains(outcome, experiment)
    point = _point(outcome)
    # At a given rate the clients decide on the throughput: only the speed can change.
    gain = stream if point is not None and point.plan.rate_per_second is not None else throughput
    flag = f"--{experiment.setting.replace('_', '-')}"
    if gain is None:
        return "Whether that is worth keeping cannot be told: too little was measured."
    if gain >= WORTH:
        return f"Keep it: start the server with {flag} {experiment.new}."
    if gain <= 1.0 / WORTH:
        return f"Do not keep it: the server is slower with {flag} {experiment.new}."
    return f"Leave it as it is: {flag} {experiment.new} makes no difference that counts."


# --- pictures ----------------------------------------------------------------------------------


def _pictures(outcome: Outcome, after: Outcome) -> Iterator[str]:
    pair = outcome.diagnosis.figures, after.diagnosis.figures
    yield ""
    yield from _row("", "before", "after")
    yield from _row("slots", *map(_slots, pair))
    yield from _row("spread", *map(_spread, pair))
    yield from _row("occupancy", *map(_occupancy, pair))
    points = _point(outcome), _point(after)
    rates = [None if point is None else point.output_tokens_per_second for point in points]
    yield from _row("tokens/s", *map(_number, rates))
    yield from _row("each stream", *(_number(_stream_rate(point)) for point in points))
    bars = [{stage.pp_rank: stage_bar(stage) for stage in each.stages} for each in pair]
    for rank in sorted(bars[0].keys() | bars[1].keys()):
        yield from _row(f"stage {rank}", *(bar.get(rank, "?") for bar in bars))


def _row(label: str, *cells: str) -> Iterator[str]:
    columns = [textwrap.wrap(cell, _CELL - 2) or [""] for cell in cells]
    for line in zip_longest(*columns, fillvalue=""):
        yield f"{label:<{_LABEL}}{''.join(f'{cell:<{_CELL}}' for cell in line)}".rstrip()
        label = ""


def _slots(figures: Figures) -> str:
    slots = figures.slots
    if slots.sizes is None or slots.slots is None:
        return "not observable"
    return " ".join(map(str, [*slots.sizes, *[0] * (slots.slots - len(slots.sizes))]))


def _spread(figures: Figures) -> str:
    if figures.slots.effective is None:
        return "?"
    return f"{figures.slots.effective:.2g} of {figures.pp_size or '?'} micro-batches"


def _occupancy(figures: Figures) -> str:
    if figures.measured:
        return percent(figures.occupancy_ratio)
    most = figures.occupancy_at_most_ratio
    return "?" if most is None else f"at most {percent(most)}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _wrapped(text: str) -> list[str]:
    # A command to copy is not cut within a word.
    return textwrap.wrap(text, COLUMNS, break_on_hyphens=False, break_long_words=False)
