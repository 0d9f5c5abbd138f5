"""An experiment → what it has shown, as figures for JSON and as text for 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from exporter.diagnose import Experiment, Outcome
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.report import contract, stage_bar
from exporter.diagnosis.terminal import COLUMNS
from exporter.diagnosis.wording import percent, sentence
from exporter.load.report import troubles
from exporter.reports import more_figures

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
    after, figures = experiment.after, outcome.diagnosis.figures
    before_speed, gains = _Speed.of(outcome), _gains(_Speed.of(outcome), _Speed.of(after))
    return {
        "setting": experiment.setting,
        "from": experiment.old,
        "to": experiment.new,
        "restored": experiment.restore_command is None,
        "gain": {"output_tokens_per_second": gains.all_streams, "per_stream": gains.each_stream},
        "predicted_gain": predicted_gain(outcome),
        "before": {
            "output_tokens_per_second": before_speed.all_streams,
            "per_stream_tokens_per_second": before_speed.each_stream,
            "slot_sizes": figures.slots.sizes,
            "effective_microbatches": figures.slots.effective,
            "occupancy_ratio": figures.occupancy_ratio,
            "occupancy_at_most_ratio": figures.occupancy_at_most_ratio,
        },
        "after": None if after is None else contract(after.diagnosis, more_figures(after)),
        "error": experiment.error,
    }


def experiment_lines(outcome: Outcome, experiment: Experiment) -> Iterator[str]:
    """Both pictures side by side, what it gave, and what to do."""
    name, old, new, after = experiment.setting, experiment.old, experiment.new, experiment.after
    yield f"experiment  {name}: {old} before, {new} after"
    speeds = _Speed.of(outcome), _Speed.of(after)
    gains = _gains(*speeds)
    if after is not None:
        yield from _pictures(outcome, after, speeds)
        yield ""
        yield from _wrapped(_gain_text(outcome, gains))
        yield from _wrapped(f"Under the new value: {sentence(after.diagnosis)}")
        for trouble in troubles(after.points):
            yield from _wrapped(trouble)
    command = experiment.restore_command
    if experiment.error is not None:
        said = "FAILED: " if experiment.failed else "not finished: "
        yield from _wrapped(said + experiment.error.removesuffix(command or ""))
    elif after is not None:
        # At a given rate the clients decide on the throughput: only the speed can change.
        open_loop = outcome.points[-1].plan.rate_per_second is not None
        gain = gains.each_stream if open_loop else gains.all_streams
        yield from _wrapped(_conclusion(gain, f"--{name.replace('_', '-')} {new}"))
    if command is None:
        yield f"The server has its old value: {name}={old}."
    else:
        yield from _wrapped(f"THE SERVER MAY STILL HAVE {name}={new}. To put {old} back:")
        yield command  # whole, to be copied


def predicted_gain(outcome: Outcome) -> float | None:
    """Throughput of an even split over that of the first load, as the diagnosis has it."""
    ratios = {
        finding.verdict: finding.gain.ratio
        for finding in outcome.diagnosis.findings
        if finding.holds and finding.gain is not None
    }
    return next((ratios[verdict] for verdict in _SPLITS if verdict in ratios), None)


# --- gains -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Speed:
    """Output tokens a second, or ratios of them; `None` where not known."""

    all_streams: float | None = None
    each_stream: float | None = None
    """As a request sees it once it decodes."""

    @classmethod
    def of(cls, outcome: Outcome | None) -> _Speed:
        if outcome is None or not outcome.points:
            return cls()
        point = outcome.points[-1]
        gap = point.latencies.inter_token
        each = 1.0 / gap.mean_seconds if gap is not None and gap.mean_seconds > 0.0 else None
        return cls(point.output_tokens_per_second, each)


def _gains(before: _Speed, after: _Speed) -> _Speed:
    """After over before."""
    return _Speed(
        _ratio(before.all_streams, after.all_streams), _ratio(before.each_stream, after.each_stream)
    )


def _ratio(before: float | None, after: float | None) -> float | None:
    return after / before if before and after is not None else None


def _gain_text(outcome: Outcome, gains: _Speed) -> str:
    parts = []
    if gains.all_streams is not None:
        parts.append(f"{gains.all_streams:.2f} times the throughput")
    if gains.each_stream is not None:
        parts.append(f"{gains.each_stream:.2f} times the speed of each stream")
    predicted = predicted_gain(outcome)
    if predicted is not None:
        bound = "at most " if outcome.diagnosis.figures.even_split_gain_ratio is None else ""
        parts.append(f"predicted for an even split: {bound}{predicted:.2f}")
    return f"Measured: {', '.join(parts) if parts else 'no gain can be told'}."


def _conclusion(gain: float | None, flag: str) -> str:
    if gain is None:
        return "Whether that is worth keeping cannot be told: too little was measured."
    if gain >= WORTH:
        return f"Keep it: start the server with {flag}."
    if gain <= 1.0 / WORTH:
        return f"Do not keep it: the server is slower with {flag}."
    return f"Leave it as it is: {flag} makes no difference that counts."


# --- pictures ----------------------------------------------------------------------------------


def _pictures(outcome: Outcome, after: Outcome, speeds: tuple[_Speed, _Speed]) -> Iterator[str]:
    pair = outcome.diagnosis.figures, after.diagnosis.figures
    yield ""
    yield from _row("", "before", "after")
    yield from _row("slots", *map(_slots, pair))
    yield from _row("spread", *map(_spread, pair))
    yield from _row("occupancy", *map(_occupancy, pair))
    yield from _row("tokens/s", *(_number(speed.all_streams) for speed in speeds))
    yield from _row("each stream", *(_number(speed.each_stream) for speed in speeds))
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
