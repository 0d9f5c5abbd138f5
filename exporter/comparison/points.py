"""Two runs → the loads at which their throughputs are taken, and how these are known. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from exporter.comparison.run import Run, RunLoad


class Means(StrEnum):
    """How a throughput is known."""

    LOAD = "load"
    """Counted by the load that was driven."""
    LOG = "log"
    """Printed by the server."""


@dataclass(frozen=True, slots=True)
class Point:
    """The load at which one side's throughput is taken."""

    tokens_per_second: float | None
    means: Means | None
    streams: int | None
    load: RunLoad | None


def loads_differ(baseline: Run, candidate: Run) -> bool:
    """Whether the loads in the windows are known to differ in what is in flight."""
    first, second = baseline.load, candidate.load
    if first and second and first.rate_per_second != second.rate_per_second:
        return True
    known = {baseline.streams, candidate.streams} - {None}
    return len(known) > 1


def at_shared_streams(baseline: Run, candidate: Run) -> tuple[Point, Point] | None:
    """The loads of the highest number of streams that both measured."""
    first, second = _by_streams(baseline), _by_streams(candidate)
    streams = max(first.keys() & second.keys(), default=None)
    return None if streams is None else (first[streams], second[streams])


def _by_streams(run: Run) -> dict[int, Point]:
    return {
        load.streams: Point(load.tokens_per_second, Means.LOAD, load.streams, load)
        for load in sorted(run.loads, key=lambda load: load.seconds or 0.0)
        if load.streams is not None and load.tokens_per_second is not None
    }


def in_windows(baseline: Run, candidate: Run) -> tuple[Point, Point]:
    """Both as their loads counted, else both as printed, else each as it is known."""
    same_replicas = (baseline.dp_size or 1) == (candidate.dp_size or 1)
    for means in (Means.LOAD, Means.LOG):
        first, second = _point(baseline, means), _point(candidate, means)
        known = first.tokens_per_second is not None and second.tokens_per_second is not None
        if known and (means is Means.LOAD or same_replicas):
            return first, second
    return _any_point(baseline), _any_point(candidate)


def _point(run: Run, means: Means) -> Point:
    load = run.load
    counted = None if load is None else load.tokens_per_second
    rate = counted if means is Means.LOAD else run.printed_tokens_per_second
    return Point(rate, None if rate is None else means, run.streams, load)


def _any_point(run: Run) -> Point:
    """What a log prints is of one replica: with several it is not what the server gives."""
    point = _point(run, Means.LOAD)
    alone = run.dp_size in {None, 1}
    return _point(run, Means.LOG) if point.means is None and alone else point
