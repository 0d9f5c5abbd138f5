"""Batch lines → how the requests are spread over a pipeline's micro-batch slots.

A decode line speaks of one micro-batch, and SGLang prints one only every `decode_log_interval` (D)
batches, counted over all slots: with A active slots the log shows A / gcd(A, D) of them, for ever
the same ones. The stages print copies of the same lines, so one stage's are read. A is not
printed; without evidence for it nothing is claimed. Pure: no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile
from statistics import fmean, median_low

from exporter.pipeline.figures import SlotFigures
from exporter.pipeline.server_facts import count_of, micro_batch_slots
from exporter.pipeline.slot_passes import Line, find_pattern, passes, slots_by_pattern
from exporter.records import Batch, FactValue, LoadEvent, LoadPhase, Mode

MEAN_SECONDS = 30.0
STALE_GAPS = 4.0
"""Lines are current while the newest is younger than 30 s or this many of their median gaps."""

_DECODE = Mode.DECODE  # as in `stage_state`
_KEPT_LINES = 256
_KEPT_STAGES = 64
_JUDGED_PASSES = 4  # newest passes that tell the number of active slots
_JUDGED_LINES = 4  # newest lines that tell how often a pass begins
_STEADY = 0.15  # passes that hold this much more or fewer requests are of another time
_NEAR_WHOLE = 0.25  # how near N / mean b must be to a whole number of slots
_NEAR_WHOLE_WORKING = 0.1  # how near the mean number of working stages must be
_WORKING_BELOW = 0.9  # a stage that works more may hold others up
_HOST_BOUND = 1.5  # SGLang's own occupancy over the working share: the host leaves gaps


@dataclass(frozen=True, slots=True)
class Activity:
    """What the GPUs say about the slots, means of the last 30 seconds in flight."""

    active_stages: float
    """Mean number of stages that worked at a time."""
    highest_working_ratio: float
    """Working share of the busiest stage."""


class SlotObserver:
    """Folds the batch lines of one pipeline (one dp_rank)."""

    def __init__(self) -> None:
        self._stages: dict[tuple[int, int], deque[Line]] = {}
        self._prefills: dict[tuple[int, int], int] = {}
        self._occupancy: deque[float] = deque(maxlen=_KEPT_LINES)
        self._requests: int | None = None
        self._load: tuple[float, float] = (math.inf, math.inf)

    def begin_launch(self) -> None:
        """The slots and their requests are gone."""
        self._stages.clear()
        self._prefills.clear()
        self._occupancy.clear()

    def fold_load(self, event: LoadEvent) -> None:
        """Learns how many requests a driver keeps in flight, and for how long."""
        if event.phase is LoadPhase.START:
            self._requests = event.concurrency
            self._load = (event.happened_at, math.inf)
        elif self._load[1] == math.inf:
            self._load = (self._load[0], event.happened_at)

    def fold_batch(self, batch: Batch) -> None:
        """Takes one line; each rank's lines are kept apart, for they are copies."""
        key = (batch.pp_rank, batch.tp_rank)
        lines = self._stages.get(key)
        if lines is None:
            if len(self._stages) >= _KEPT_STAGES:
                return
            lines = self._stages[key] = deque(maxlen=_KEPT_LINES)
        if batch.forward_occupancy_ratio is not None:
            self._occupancy.append(batch.forward_occupancy_ratio)
        if batch.mode is not _DECODE:
            self._prefills[key] = self._prefills.get(key, 0) + 1
        elif batch.running_reqs:
            lines.append(
                Line(
                    batch.logged_at,
                    batch.running_reqs,
                    self._prefills.get(key, 0),
                    batch.forward_iteration,
                    batch.queued_reqs or 0,
                )
            )

    # --- answers -------------------------------------------------------------------------------

    def turn_seconds(self, batch: Batch, facts: Mapping[str, FactValue]) -> float | None:
        """Time between the starts of two passes on a stage, by the stage's newest lines.

        The shortest of late: lines that were lost make it look longer. `None` if not known.
        """
        kept = self._stages.get((batch.pp_rank, batch.tp_rank), deque[Line]())
        lines = list(islice(reversed(kept), _JUDGED_LINES))[::-1]
        interval = count_of(facts, "decode_log_interval")
        if interval is None or len(lines) < _JUDGED_LINES:
            return None
        return min(
            (after.at - before.at) / (interval + after.prefills - before.prefills)
            for before, after in pairwise(lines)
        )

    def figures(
        self, facts: Mapping[str, FactValue], activity: Activity | None, now: float
    ) -> SlotFigures:
        """The slots at `now`; `activity` is `None` where GPUs are not seen."""
        slots, interval = micro_batch_slots(facts), count_of(facts, "decode_log_interval")
        if slots is None:
            return SlotFigures(reason="not a pipeline, or pp_size is not known")
        if interval is None:
            return SlotFigures(slots=slots, reason="decode_log_interval is not known")
        lines = self._current_lines(now)
        active, said = self._active(lines, slots, interval, activity)
        if active is None and _are_full(lines, facts, slots, interval):
            active, said = slots, "every batch is at its largest, and requests wait"
        steady: Sequence[tuple[int, ...]] = ()
        if active is not None and math.gcd(active, interval) == 1:
            steady = self._steady_passes(lines, active, interval)
            if not steady:
                active, said = None, f"the newest lines do not add up to {active} slots"
        figures = _figures(slots, interval, active, said)
        figures = replace(figures, active_at_least=_at_least(activity))
        return _spread(figures, steady, slots) if steady else figures

    def _steady_passes(
        self, lines: Sequence[Line], active: int, interval: int
    ) -> list[tuple[int, ...]]:
        """Passes over all slots, newest first, as far back as they hold the same requests."""
        found = passes(lines, active, interval)
        if not found:
            return []
        requests = self._in_flight(lines) or float(sum(found[0]))
        return list(takewhile(lambda sizes: _adds_up(sizes, requests), found))

    def _current_lines(self, now: float) -> list[Line]:
        """Decode lines of the stage that printed most: 30 seconds, and one pass of slow ones.

        Empty if the newest is stale; none from before a pause.
        """
        best: list[Line] = []
        for key in sorted(self._stages):
            lines = _recent(list(self._stages[key]), now)
            if len(lines) > len(best):
                best = lines
        return best

    def _active(
        self, lines: Sequence[Line], slots: int, interval: int, activity: Activity | None
    ) -> tuple[int | None, str]:
        """Slots that hold requests and the evidence, or `None` and why there is none."""
        if not lines:
            return None, "no recent decode line"
        pattern = find_pattern(lines, slots, interval)
        by_load = self._by_load(lines, slots, interval)
        by_working = self._by_working(activity, slots)
        if pattern is not None:
            return slots_by_pattern(pattern, slots, interval, (by_load, by_working))
        if by_load is not None:
            return by_load, "known concurrency over the mean batch size"
        if by_working is not None:
            return by_working, "mean number of working stages"
        return None, "no evidence for the number of active slots"

    def _by_load(self, lines: Sequence[Line], slots: int, interval: int) -> int | None:
        """N / mean b of the newest passes, where every slot shows whatever their number."""
        requests = self._in_flight(lines)
        if requests is None or _hides(slots, interval):
            return None
        best, least = None, _NEAR_WHOLE
        for active in range(1, min(slots, len(lines)) + 1):
            whole = min(len(lines) // active, _JUDGED_PASSES) * active
            count = requests / fmean(line.size for line in lines[-whole:])
            if abs(count - active) <= least:
                best, least = active, abs(count - active)
        return best

    def _in_flight(self, lines: Sequence[Line]) -> float | None:
        """Requests that a driven load keeps in the slots: its concurrency less the queue."""
        start, end = self._load
        if self._requests is None or not start <= lines[-1].at <= end:
            return None
        return self._requests - fmean(line.queued for line in lines[-_JUDGED_PASSES:])

    def _by_working(self, activity: Activity | None, slots: int) -> int | None:
        """The mean number of working stages, where no stage is the limit and the host is not.

        Launch gaps make it fall below the number of slots, and SGLang's own occupancy shows them.
        """
        if activity is None or activity.highest_working_ratio >= _WORKING_BELOW:
            return None
        if (
            self._occupancy
            and fmean(self._occupancy) > _HOST_BOUND * activity.highest_working_ratio
        ):
            return None
        active = round(activity.active_stages)
        near = abs(activity.active_stages - active) <= _NEAR_WHOLE_WORKING
        return active if near and 1 <= active <= slots else None


def coprime_interval(slots: int) -> int:
    """A decode_log_interval that hides no slot: the first prime from 41 on above their number.

    Small intervals would do too, but print so much that journald drops lines.
    """
    interval = max(41, slots + 1)
    while any(interval % factor == 0 for factor in range(2, math.isqrt(interval) + 1)):
        interval += 1
    return interval


def _hides(slots: int, interval: int) -> bool:
    """Whether there is a number of active slots of which the log shows only some."""
    return any(math.gcd(active, interval) > 1 for active in range(2, slots + 1))


def _figures(slots: int, interval: int, active: int | None, said: str) -> SlotFigures:
    """What follows from the number of active slots; `said` is its evidence, or why it is missing."""
    hides = _hides(slots, interval)
    aliased = hides if active is None else math.gcd(active, interval) > 1
    return SlotFigures(
        slots=slots,
        observable=_observable(active, slots, interval),
        aliased=aliased,
        active=active,
        active_from=None if active is None else said,
        suggested_interval=coprime_interval(slots) if hides else None,
        reason=said if active is None else "the log interval hides slots" if aliased else None,
    )


def _observable(active: int | None, slots: int, interval: int) -> int:
    """Slots the log shows; if their number is not known, at least."""
    if active is not None:
        return active // math.gcd(active, interval)
    if not _hides(slots, interval):
        return slots
    return min(number // math.gcd(number, interval) for number in range(1, slots + 1))


def _at_least(activity: Activity | None) -> int | None:
    if activity is None:
        return None
    return max(math.ceil(activity.active_stages - _NEAR_WHOLE_WORKING), 1)


def _recent(lines: list[Line], now: float) -> list[Line]:
    """The lines that speak of now: 30 seconds, further back only for lines that come seldom."""
    if not lines:
        return []
    gaps = [after.at - before.at for before, after in pairwise(lines)]
    span = max(MEAN_SECONDS, STALE_GAPS * median_low(gaps[-16:])) if len(gaps) > 1 else MEAN_SECONDS
    if now - lines[-1].at > span:
        return []
    pause = span if len(gaps) > 1 else math.inf
    first = len(lines) - 1
    while first > 0 and now - lines[first - 1].at <= span and gaps[first - 1] <= pause:
        first -= 1
    return lines[first:]


def _are_full(
    lines: Sequence[Line], facts: Mapping[str, FactValue], slots: int, interval: int
) -> bool:
    """Whether all slots hold as much as they may: what waits joins the first that has room."""
    cap, most = (
        count_of(facts, key) for key in ("pp_max_micro_batch_size", "max_running_requests")
    )
    if cap is None or (most is not None and cap * slots > most) or _hides(slots, interval):
        return False
    return len(lines) >= slots and all(line.size == cap and line.queued > 0 for line in lines)


def _adds_up(sizes: Sequence[int], requests: float) -> bool:
    """Whether a pass holds all requests; not if slots were opened or emptied meanwhile."""
    return abs(sum(sizes) - requests) <= max(_STEADY * requests, 1.0)


def _spread(figures: SlotFigures, found: Sequence[tuple[int, ...]], slots: int) -> SlotFigures:
    effective = fmean(sum(sizes) ** 2 / sum(size * size for size in sizes) for sizes in found)
    return replace(
        figures,
        sizes=found[0],
        effective=effective,
        size_variation=math.sqrt(max(slots / effective - 1.0, 0.0)),
        fairness=effective / slots,
        running_requests=fmean(sum(sizes) for sizes in found),
    )
