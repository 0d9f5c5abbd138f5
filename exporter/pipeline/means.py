"""Settled seconds → the gauges of a pipeline: the last complete second, the last 30 seconds.

Pure functions of a clock's memory; a figure that the memory cannot give is `None`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, pvariance

from exporter.pipeline.bubbles import Together
from exporter.pipeline.clock import PipelineClock, Second
from exporter.pipeline.figures import SecondFigures, StageFigures, Variance
from exporter.records import Method

MEAN_SECONDS = 30
LEAST_MEAN_SECONDS = 10.0
"""Means over less observed time than this are not shown."""
LEAST_MEAN_RATIO = 0.1
"""Skew and balance of stages that hardly work say nothing."""
FRESH_SECONDS = 10.0
"""A second older than this is no longer the last one; settling can take half of it. One as far
ahead is from before the clock was set back."""

_COMPLETE = 0.9  # covered share from which a second counts as complete
_UNDEFINED_ABOVE, _UNDEFINED_BELOW = 0.95, 0.05
_RESOLVED = 0.8  # share of the variance that windows must show before its excess can be judged


def last_complete(clock: PipelineClock, now: float) -> Second | None:
    """The newest settled second in which the stages were seen throughout; `None` if stale."""
    for second in reversed(clock.recent):
        if abs(now - (second.second + 1)) > FRESH_SECONDS or second.second < clock.ranks_since - 1:
            return None
        if all(stage.observed >= _COMPLETE for stage in second.stages.values()):
            return second
    return None


def mean_seconds(clock: PipelineClock, now: float) -> list[Second]:
    """The settled seconds of the last 30, oldest first; none of a launch or map before."""
    if not clock.recent:
        return []
    newest = clock.recent[-1].second
    if abs(now - (newest + 1)) > FRESH_SECONDS:
        return []
    since = max(newest + 1 - MEAN_SECONDS, clock.ranks_since - 1)
    found = []
    for second in reversed(clock.recent):
        if second.second < since:
            break
        found.append(second)
    return found[::-1]


def stage_figures(
    clock: PipelineClock, last: Second | None, seconds: Sequence[Second]
) -> tuple[StageFigures, ...]:
    """Every stage that was ever placed or expected, by pp_rank."""
    figures = []
    for pp_rank in sorted(clock.totals):
        totals = clock.totals[pp_rank]
        stage = last.stages.get(pp_rank) if last is not None else None
        waiting = stage.waiting if stage is not None else None
        figures.append(
            StageFigures(
                pp_rank=pp_rank,
                seconds=dict(totals.seconds),
                bubble_seconds=totals.bubble_seconds,
                inflight_seconds=totals.inflight_seconds,
                working_ratio=_share(stage.working, stage.observed) if stage else None,
                waiting_ratio=_share(waiting, stage.observed)
                if stage and waiting is not None
                else None,
                method=stage.method if stage else None,
                mean_working_ratio=mean_working(seconds, pp_rank),
                rank_spread_ratio=_rank_spread(seconds, pp_rank),
            )
        )
    return tuple(figures)


def mean_working(seconds: Iterable[Second], pp_rank: int) -> float | None:
    """Working share of one stage; `None` if it was seen for less than ten seconds."""
    seen = [second.stages[pp_rank] for second in seconds if pp_rank in second.stages]
    observed = sum(stage.observed for stage in seen)
    if observed < LEAST_MEAN_SECONDS:
        return None
    return sum(stage.working for stage in seen) / observed


def _rank_spread(seconds: Iterable[Second], pp_rank: int) -> float | None:
    ratios = [second.stages[pp_rank].rank_ratios for second in seconds if pp_rank in second.stages]
    if len(ratios) < LEAST_MEAN_SECONDS or len({len(row) for row in ratios}) != 1:
        return None
    if len(ratios[0]) < 2:
        return None
    means = [fmean(column) for column in zip(*ratios, strict=True)]
    return max(means) - min(means)


def occupancy(last: Second | None) -> float | None:
    """Mean working share of the stages seen in one second."""
    if last is None:
        return None
    observed = sum(stage.observed for stage in last.stages.values())
    return _share(sum(stage.working for stage in last.stages.values()), observed)


def bubble(clock: PipelineClock, now: float) -> float | None:
    """Share not working in the newest decided second; `None` if that was not in flight."""
    for second in reversed(clock.recent):
        if abs(now - (second.second + 1)) > FRESH_SECONDS:
            return None
        if second.inflight is not None and all(
            stage.observed >= _COMPLETE for stage in second.stages.values()
        ):
            inflight = inflight_occupancy((second,))
            return None if inflight is None else 1.0 - inflight
    return None


def inflight_occupancy(seconds: Iterable[Second]) -> float | None:
    """Mean working share of the stages while in flight; `None` if nothing was."""
    observed, working = _in_flight(seconds)
    return _share(working, observed) if observed > 0.0 else None


def active_mean(seconds: Iterable[Second], stages: int) -> float | None:
    """Mean number of working stages while in flight; `None` if nothing was."""
    share = inflight_occupancy(seconds)
    return None if share is None else share * stages


def _in_flight(seconds: Iterable[Second]) -> tuple[float, float]:
    parts = [part for second in seconds for part in (second.inflight or {}).values()]
    return sum(observed for observed, _ in parts), sum(working for _, working in parts)


def skew_and_balance(means: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Range, and mean over highest, of the stages' mean working shares.

    `None` for a single stage, when a stage was not seen, or when they hardly work.
    """
    known = [mean for mean in means if mean is not None]
    if len(known) < max(len(means), 2) or fmean(known) < LEAST_MEAN_RATIO:
        return None, None
    return max(known) - min(known), fmean(known) / max(known)


def bound_ratios(seconds: Sequence[Second], pp_ranks: Sequence[int]) -> list[float]:
    """Of each stage that worked: the share of its work that is only known as an upper bound."""
    ratios = []
    for pp_rank in pp_ranks:
        seen = [second.stages[pp_rank] for second in seconds if pp_rank in second.stages]
        working = sum(stage.working for stage in seen)
        if working > 0.0:
            bound = sum(stage.working for stage in seen if stage.method is Method.RESIDENCY)
            ratios.append(bound / working)
    return ratios


def variance(seconds: Iterable[Second], stages: int) -> Variance | None:
    """What varies between stages and over time; `None` with less than ten seconds of all stages."""
    total = Together.of(stages)
    for second in seconds:
        if second.together is not None and len(second.together.stage_seconds) == stages:
            total.add(second.together)
    observed = total.observed_seconds
    if observed < LEAST_MEAN_SECONDS or stages < 2:
        return None
    means = [seconds / observed for seconds in total.stage_seconds]
    persistent = pvariance(means)
    temporal = fmean(
        max(square / observed - mean * mean, 0.0)
        for square, mean in zip(total.square_seconds, means, strict=True)
    )
    both = persistent + temporal
    ratio, at_least = _active_ratio(total, means)
    return Variance(persistent, temporal, persistent / both if both > 0 else None, ratio, at_least)


def _active_ratio(total: Together, means: Sequence[float]) -> tuple[float | None, float | None]:
    """Variance of the number of working stages over that of independent ones, and a lower bound.

    Var(k) = variance between the windows' means + mean variance inside windows. Only the first is
    seen; the second follows from independence, so it must be the small part.
    """
    if not _UNDEFINED_BELOW <= fmean(means) <= _UNDEFINED_ABOVE:
        return None, None
    observed = total.observed_seconds
    independent = sum(mean * (1.0 - mean) for mean in means)
    between = max(total.k_square_seconds / observed - (total.k_seconds / observed) ** 2, 0.0)
    unseen = total.spread_seconds / observed
    at_least = between / independent
    if unseen > (1.0 - _RESOLVED) * independent:
        return None, at_least
    return (between + unseen) / independent, at_least


def second_figures(second: Second) -> SecondFigures:
    """One settled second for a timeline."""
    return SecondFigures(
        second.second,
        {rank: _share(stage.working, stage.observed) for rank, stage in second.stages.items()},
        {
            rank: _share(stage.waiting, stage.observed)
            for rank, stage in second.stages.items()
            if stage.waiting is not None
        },
        second.inflight_ratio,
    )


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0)
