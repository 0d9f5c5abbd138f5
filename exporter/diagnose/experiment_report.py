"""An experiment → what it has shown, as figures for JSON and as text for 80 columns. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import zip_longest

from exporter.diagnose.experiment_gain import (
    Speed,
    gain_text,
    gains,
    outcome_text,
    predicted_gain,
    restored_text,
)
from exporter.diagnose.outcome import Experiment, Outcome
from exporter.diagnose.reports import more_figures
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.report import contract, stage_bar
from exporter.diagnosis.terminal import COLUMNS, WIDE, Paper
from exporter.diagnosis.wording import percent, sentence
from exporter.load.report import troubles

_LABEL = 12
_CELL = (COLUMNS - _LABEL) // 2


def experiment_figures(outcome: Outcome, experiment: Experiment) -> dict[str, object]:
    """What was changed and what that gave, by name; `None` where not known.

    `after` is the object of the second measurement, as the diagnosis' own is of the first.
    """
    after, figures = experiment.after, outcome.diagnosis.figures
    before_speed, gain = Speed.of(outcome), gains(outcome, experiment)
    return {
        "setting": experiment.setting,
        "from": experiment.old,
        "to": experiment.new,
        "restored": experiment.restore_command is None,
        "gain": {"output_tokens_per_second": gain.all_streams, "per_stream": gain.each_stream},
        "predicted_gain": predicted_gain(outcome),
        "before": {
            "output_tokens_per_second": before_speed.all_streams,
            "per_stream_tokens_per_second": before_speed.each_stream,
            "slot_sizes": figures.slots.sizes,
            "effective_microbatches": figures.slots.effective,
            "occupancy_ratio": figures.occupancy_ratio,
            "occupancy_at_most_ratio": figures.occupancy_at_most_ratio,
        },
        "after": None
        if after is None
        else contract(after.diagnosis, more_figures(after), experiment.tried_cap),
        "error": experiment.error,
    }


def experiment_lines(
    outcome: Outcome, experiment: Experiment, paper: Paper = WIDE
) -> Iterator[str]:
    """Both pictures side by side, what it gave, and what to do."""
    name, old, new, after = experiment.setting, experiment.old, experiment.new, experiment.after
    yield f"experiment  {name}: {old} before, {new} after"
    if after is not None:
        yield from _pictures(outcome, after)
        yield ""
        yield from _wrapped(paper, gain_text(outcome, experiment))
        yield from _wrapped(paper, f"Under the new value: {sentence(after.diagnosis)}")
        for trouble in troubles(after.points):
            yield from _wrapped(paper, trouble)
    said = outcome_text(outcome, experiment)
    if said is not None:
        yield from _wrapped(paper, said)
    yield restored_text(experiment)
    if experiment.restore_command is not None:
        yield experiment.restore_command  # whole, to be copied


# --- pictures ----------------------------------------------------------------------------------


def _pictures(outcome: Outcome, after: Outcome) -> Iterator[str]:
    pair = outcome.diagnosis.figures, after.diagnosis.figures
    speeds = Speed.of(outcome), Speed.of(after)
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
        return "not observable" if slots.effective is None else "not all seen"
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


def _wrapped(paper: Paper, text: str) -> list[str]:
    # A command to copy is not cut within a word.
    return textwrap.wrap(text, paper.columns, break_on_hyphens=False, break_long_words=False)
