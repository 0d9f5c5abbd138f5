"""An experiment → what its section of the page says and draws. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exporter.diagnose.experiment_gain import (
    WORTH,
    Speed,
    deciding_gain,
    gain_text,
    gains,
    outcome_text,
    restored_text,
)
from exporter.diagnose.html_report.command import without_user
from exporter.diagnose.html_report.drawing import Bar
from exporter.diagnose.html_report.drawn_pictures import Drawing
from exporter.diagnose.html_report.picture_pair import pair
from exporter.diagnose.html_report.sections import slot_bars
from exporter.diagnose.html_report.texts import UNKNOWN, number, percent
from exporter.diagnose.outcome import Experiment, Outcome
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.picture import Pictures, pictures
from exporter.diagnosis.wording import sentence
from exporter.load.report import troubles


@dataclass(frozen=True, slots=True)
class Change:
    """A figure under the old value and under the new one, as text."""

    label: str
    unit: str
    before: str
    after: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class Half:
    """What is drawn of one of the two measurements.

    Attributes:
        value: Of the setting.
        drawing: `None`: there are no two that can stand beside each other.
        slots: On one scale for both; empty where the sizes are not seen: `figures` say why.
    """

    when: str
    value: int
    figures: Figures
    drawing: Drawing | None
    slots: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class ExperimentSection:
    """An experiment, ready to be put into a page.

    Attributes:
        tone: `healthy`, `fault` or `open`.
        said: What came out of it, a sentence each, the conclusion first.
        restored: That the old value is back, or what to do with `restore_command`.
        changes: Empty, as `halves` are, where nothing was measured under the new value.
    """

    setting: str
    old: int
    new: int
    tone: str
    said: Sequence[str]
    restored: str
    restore_command: str | None
    changes: Sequence[Change] = ()
    halves: Sequence[Half] = ()

    @property
    def drawings(self) -> list[Drawing]:
        """Both pictures, or none."""
        return [half.drawing for half in self.halves if half.drawing is not None]


def experiment_section(outcome: Outcome, shown: Pictures) -> ExperimentSection | None:
    """What was tried after a diagnosis whose pictures are given; `None`: nothing."""
    experiment = outcome.experiment
    if experiment is None:
        return None
    after = experiment.after
    command = experiment.restore_command
    said = [outcome_text(outcome, experiment)]
    if said[0] is not None and command is not None and (experiment.error or "").endswith(command):
        said = [f"{said[0].rstrip()} the command above."]
    if after is not None:
        said += [
            gain_text(outcome, experiment),
            f"Under the new value: {sentence(after.diagnosis)}",
        ]
        said += troubles(after.points)
    return ExperimentSection(
        experiment.setting,
        experiment.old,
        experiment.new,
        _tone(outcome, experiment),
        [without_user(each) for each in said if each is not None],
        restored_text(experiment),
        None if command is None else without_user(command),
        () if after is None else list(_changes(outcome, after, gains(outcome, experiment))),
        () if after is None else _halves(outcome, after, experiment, shown),
    )


def _tone(outcome: Outcome, experiment: Experiment) -> str:
    if experiment.failed or experiment.restore_command is not None:
        return "fault"
    if experiment.error is not None or experiment.after is None:
        return "open"
    gain = deciding_gain(outcome, experiment)
    if gain is None:
        return "open"
    return "healthy" if gain >= WORTH else "fault" if gain <= 1.0 / WORTH else "open"


def _changes(outcome: Outcome, after: Outcome, gain: Speed) -> Iterator[Change]:
    old, new = Speed.of(outcome), Speed.of(after)
    for label, first, second, ratio in (
        ("output", old.all_streams, new.all_streams, gain.all_streams),
        ("of each stream", old.each_stream, new.each_stream, gain.each_stream),
    ):
        yield Change(label, "tokens/s", number(first, 1), number(second, 1), _times(ratio))
    figures = outcome.diagnosis.figures, after.diagnosis.figures
    for label, unit, text in (
        ("stages work", "of the time", _occupancy),
        ("effective micro-batches", "", _spread),
    ):
        before, now = map(text, figures)
        if not before == now == UNKNOWN:
            yield Change(label, unit, before, now)


def _halves(
    outcome: Outcome, after: Outcome, experiment: Experiment, shown: Pictures
) -> tuple[Half, Half]:
    figures = outcome.diagnosis.figures, after.diagnosis.figures
    drawn = pair(
        (shown, figures[0]), (pictures(after.watch, after.pipeline, figures[1]), figures[1])
    )
    most = max(max(each.slots.sizes or (0,)) for each in figures)
    first, second = drawn or (None, None)
    return (
        Half("Before", experiment.old, figures[0], first, slot_bars(figures[0], most)),
        Half("After", experiment.new, figures[1], second, slot_bars(figures[1], most)),
    )


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"\u00d7\u00a0{ratio:.2f}"


def _occupancy(figures: Figures) -> str:
    if figures.measured:
        return percent(figures.occupancy_ratio)
    most = figures.occupancy_at_most_ratio
    return UNKNOWN if most is None else f"\u2264 {percent(most)}"


def _spread(figures: Figures) -> str:
    slots = figures.slots
    if slots.effective is None:
        return UNKNOWN
    return f"{slots.effective:.1f} of {slots.slots or UNKNOWN}"
