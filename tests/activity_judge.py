"""Runs the estimator over records and holds what it claims against the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from exporter.activity.gpu import GpuActivity
from exporter.records import ActivityWindow, GpmWindow, GpuLevels, Method, RingSamples
from tests.activity_simulator import BEGAN_AT, Card, State, Timeline

Truth = Callable[[float, float], tuple[float, float]]
"""(working, waiting) seconds between two instants."""


def activity_of(card: Card) -> GpuActivity:
    """An estimator that knows what the driver says of a card."""
    return GpuActivity(
        0, power_limit_watts=card.power_limit_watts, multiprocessors=card.multiprocessors
    )


def windows_of(
    activity: GpuActivity, records: Iterable[RingSamples | GpmWindow | GpuLevels]
) -> list[ActivityWindow]:
    """Everything an estimator says of records, to the end."""
    windows = [window for record in records for window in activity.fold(record)]
    return windows + activity.flush()


def truth_of(timeline: Timeline) -> Truth:
    """The truth of a simulated card."""

    def seconds(start: float, end: float) -> tuple[float, float]:
        spent = timeline.seconds(start - BEGAN_AT, end - BEGAN_AT)
        return sum(spent[State.DECODE :]), spent[State.WAITING]

    return seconds


@dataclass(frozen=True)
class Judgement:
    """Errors in shares of the observed time.

    `claimed_…` looks only at windows that claim to know: those by residency say themselves that
    their working share is an upper bound.
    """

    seconds: float
    working: float
    waiting: float
    working_error: float
    waiting_error: float
    claimed_working_error: float
    claimed_waiting_error: float
    residency_ratio: float


def judge(windows: Sequence[ActivityWindow], truth: Truth) -> Judgement:
    """What the windows say, and how far from the truth it is."""
    seconds = working = waiting = residency = 0.0
    errors, claimed = [0.0, 0.0], [0.0, 0.0]
    for window in windows:
        span = window.ended_at - window.started_at
        seconds += span
        works, waits = span * window.working_ratio, span * (window.waiting_ratio or 0.0)
        working, waiting = working + works, waiting + waits
        true_works, true_waits = truth(window.started_at, window.ended_at)
        for sums in (errors, *([claimed] if window.method is not Method.RESIDENCY else [])):
            sums[0] += works - true_works
            sums[1] += waits - true_waits
        residency += span if window.method is Method.RESIDENCY else 0.0
    return Judgement(
        seconds,
        working / seconds,
        waiting / seconds,
        errors[0] / seconds,
        errors[1] / seconds,
        claimed[0] / seconds,
        claimed[1] / seconds,
        residency / seconds,
    )


def between(windows: Iterable[ActivityWindow], start: float, end: float) -> list[ActivityWindow]:
    """The windows inside a stretch."""
    return [w for w in windows if w.started_at >= start - 1e-6 and w.ended_at <= end + 1e-6]


def check_shape(windows: Sequence[ActivityWindow]) -> None:
    """In time order, each instant once, shares within their bounds."""
    for window in windows:
        assert window.ended_at > window.started_at
        assert 0.0 <= window.working_ratio <= 1.0
        assert 0.0 <= (window.waiting_ratio or 0.0) <= 1.0
        assert window.working_ratio + (window.waiting_ratio or 0.0) <= 1.0 + 1e-9
        assert (window.waiting_ratio is None) == (window.method is Method.RESIDENCY)
    for before, after in pairwise(windows):
        assert after.started_at >= before.ended_at
