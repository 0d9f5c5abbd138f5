"""Folds the activity of GPUs into the time of one pipeline's stages, a second at a time.

Windows come in per GPU; a second is settled once every mapped GPU has passed it, or the missing
ones are overdue, and split into in flight or not as soon as that is decided. Settled seconds do
not change: what is counted does not depend on when anybody looks. Pure: no clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.pipeline.bubbles import (
    StageSecond,
    Together,
    combine_ranks,
    inside,
    join_stages,
    working_span,
)
from exporter.pipeline.figures import StageState
from exporter.pipeline.grid import CELLS_PER_SECOND, ActivityGrid, GpuSecond
from exporter.pipeline.in_flight import InFlight
from exporter.pipeline.newest_batches import NewestBatches
from exporter.pipeline.stage_cells import StageCells
from exporter.records import ActivityWindow, Batch, Method

OVERDUE_SECONDS = 4.0
"""A second is settled without a GPU that sent no window while the others went on this long: the GPUs
take turns of 2 s, and one may be missed."""
FIRST_WINDOW_SECONDS = 32.0
"""A GPU that sent none yet is waited for this long: its levels may not be known before."""
WORKING_EVIDENCE_RATIO = 0.05
"""A stage that works this share of 20 ms is evidence of requests; below it may be noise."""
REMEMBERED_SECONDS = 600
"""Ten minutes of 8 stages take about 5 MB."""

Ranks = Mapping[int, tuple[int, ...]]
"""GPUs of each pp_rank, in the order of their tp_rank."""


@dataclass(slots=True)
class StageTotals:
    """Counters of one stage."""

    seconds: dict[tuple[StageState, Method], float] = field(default_factory=dict)
    bubble_seconds: float = 0.0
    inflight_seconds: float = 0.0

    def count(self, second: StageSecond) -> None:
        """Counts one second by state and method; the three shares sum to the observed time."""
        for method, time in second.times.items():
            waiting = time.waiting or 0.0
            self._add(StageState.WORKING, method, time.working)
            self._add(StageState.IDLE, method, max(time.observed - time.working - waiting, 0.0))
            if time.waiting is not None:
                self._add(StageState.WAITING, method, waiting)

    def _add(self, state: StageState, method: Method, seconds: float) -> None:
        key = (state, method)
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class StageSummary:
    """What is kept of one stage's settled second, in seconds."""

    observed: float
    working: float
    waiting: float | None
    method: Method
    """Of most of the time."""
    rank_ratios: tuple[float, ...]
    cells: StageCells | None = None
    """The same by 20 ms; `None` where only the whole second is known."""

    @classmethod
    def of(cls, stage: StageSecond) -> StageSummary:
        """Sums over methods and cells."""
        method = max(stage.times, key=lambda method: stage.times[method].observed)
        waiting = [time.waiting for time in stage.times.values() if time.waiting is not None]
        return cls(
            stage.observed_seconds,
            stage.working_seconds,
            sum(waiting) if waiting else None,
            method,
            stage.rank_ratios,
            StageCells.of(stage),
        )


@dataclass(slots=True)
class Second:
    """A settled second (or the part of one that a stage map covers)."""

    second: int
    stages: Mapping[int, StageSummary]
    together: Together | None
    """`None` unless all expected stages were seen."""
    window_seconds: float
    """The longest windows a stage was seen through."""
    batches: Mapping[int, int] = field(default_factory=dict)
    """Requests in the newest batch that each stage had printed by then, by pp_rank."""
    inflight: Mapping[int, tuple[float, float]] | None = None
    """Seconds observed and worked in flight by pp_rank; `None` while undecided."""
    inflight_ratio: float | None = None


class PipelineClock:
    """The time of one pipeline.

    Attributes:
        flight: The pipeline's evidence of requests.
        totals: Counters by pp_rank.
        active_seconds: Time with 0, 1, … stages working.
        observed_seconds: Time in which all expected stages were seen.
        recent: Settled seconds, oldest first.
        ranks_since: Since when the stages run where they do now; means do not reach behind it.
        expected: The stages that should be seen here; `None`: those of the stage map.
    """

    def __init__(self) -> None:
        self.flight = InFlight()
        self.totals: dict[int, StageTotals] = {}
        self.active_seconds: list[float] = []
        self.observed_seconds = 0.0
        self.recent: deque[Second] = deque(maxlen=REMEMBERED_SECONDS)
        self.expected: tuple[int, ...] | None = None
        self.ranks_since = -math.inf
        self._grid = ActivityGrid()
        self._batches = NewestBatches()
        self._maps: list[tuple[float, Ranks]] = []
        self._awaited_since: dict[int, float] = {}
        self._heard_at: dict[int, float] = {}
        self._undecided: deque[tuple[Second, Mapping[int, StageSecond]]] = deque()
        self._newest_at = -math.inf
        self._advanced_at = -math.inf

    @property
    def late_seconds(self) -> float:
        """Time of windows that came after their second was settled."""
        return self._grid.late_seconds

    def ranks(self) -> Ranks:
        """The GPUs of each stage now."""
        return self._maps[-1][1] if self._maps else {}

    def expect(self, pp_ranks: Sequence[int] | None) -> None:
        """Says which stages should be seen here; `None`: those of the stage map."""
        self.expected = tuple(pp_ranks) if pp_ranks is not None else None
        for pp_rank in self.expected or ():
            self.totals.setdefault(pp_rank, StageTotals())

    def place(self, at: float, ranks: Ranks) -> None:
        """Says which GPUs the stages run on from `at`; time before keeps the ranks it had."""
        if ranks == self.ranks():
            return
        if self._maps:
            at = max(at, self._maps[-1][0])
        self._maps.append((at, ranks))
        self.ranks_since = at
        used = {gpu for gpus in ranks.values() for gpu in gpus}
        for gpu in self._awaited_since.keys() - used:
            self._grid.forget(gpu)
            self._heard_at.pop(gpu, None)
        self._awaited_since = {gpu: self._awaited_since.get(gpu, at) for gpu in used}
        for pp_rank in ranks:
            self.totals.setdefault(pp_rank, StageTotals())

    def fold(self, window: ActivityWindow) -> None:
        """Takes one window; those of GPUs that no stage runs on are ignored."""
        if window.gpu not in self._awaited_since:
            return
        self._newest_at = max(self._newest_at, window.ended_at)
        self._heard_at[window.gpu] = self._newest_at
        if self._grid.add(window):
            self.advance(self._newest_at)

    def fold_batch(self, batch: Batch) -> None:
        """Takes a line: evidence of requests, and of time going by where no GPU is seen."""
        self.flight.fold_batch(batch)
        self._batches.fold(batch)
        if batch.logged_at >= self._advanced_at + 1.0:
            self.advance(batch.logged_at)

    # --- settling ------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Settles what is complete or overdue at `now`, an instant the records have reached."""
        self._newest_at = self._advanced_at = max(self._newest_at, now)
        self._settle_seconds(self._complete_until())
        oldest = self._grid.oldest()
        work_until = self._newest_at - OVERDUE_SECONDS if oldest is None else float(oldest)
        self.flight.settle(self._newest_at, work_until if self._awaited_since else math.inf)
        self._decide(self.flight.settled_until)

    def close(self, at: float) -> None:
        """Settles everything up to `at`: the records have ended."""
        self._newest_at = max(self._newest_at, at)
        self._settle_seconds(math.inf)
        self.flight.close(self._newest_at)
        self._decide(math.inf)

    def _complete_until(self) -> float:
        """Seconds that end by then are settled."""
        return min((self._awaited(gpu) for gpu in self._awaited_since), default=math.inf)

    def _awaited(self, gpu: int) -> float:
        """How far this GPU lets the others go: as far as it came, while it is heard of."""
        reached, overdue = self._grid.reached(gpu), self._newest_at - OVERDUE_SECONDS
        if reached is None:
            waits = self._newest_at < self._awaited_since[gpu] + FIRST_WINDOW_SECONDS
            return self._awaited_since[gpu] if waits else overdue
        return reached if self._heard_at[gpu] >= overdue else max(reached, overdue)

    def _settle_seconds(self, until: float) -> None:
        while (second := self._grid.oldest()) is not None and second + 1 <= until:
            gpus = self._grid.take(second)
            for first, stop, ranks in self._pieces(second):
                self._settle(second, gpus, first, stop, ranks)

    def _pieces(self, second: int) -> Iterator[tuple[int, int, Ranks]]:
        """The cells of a second that each stage map holds for; one cut by a change is left out."""
        while len(self._maps) > 1 and self._maps[1][0] <= second:
            self._maps.pop(0)
        for index, (since, ranks) in enumerate(self._maps):
            until = self._maps[index + 1][0] if index + 1 < len(self._maps) else math.inf
            first = max(math.ceil((since - second) * CELLS_PER_SECOND), 0)
            stop = CELLS_PER_SECOND
            if until < second + 1:
                stop = math.floor((until - second) * CELLS_PER_SECOND)
            if first < stop and ranks:
                yield first, stop, ranks

    def _settle(
        self, second: int, gpus: Mapping[int, GpuSecond], first: int, stop: int, ranks: Ranks
    ) -> None:
        stages = {}
        for pp_rank, used in ranks.items():
            seen = [gpus[gpu] for gpu in used if gpu in gpus]
            stage = combine_ranks(seen, first, stop) if len(seen) == len(used) else None
            if stage is not None:
                stages[pp_rank] = stage
                self.totals[pp_rank].count(stage)
        if not stages:
            return
        together = None
        expected = tuple(ranks) if self.expected is None else self.expected
        if all(pp_rank in stages for pp_rank in expected):
            together = join_stages([stages[pp_rank] for pp_rank in expected])
            self._count_active(together)
        span = working_span(stages.values(), second, WORKING_EVIDENCE_RATIO)
        if span is not None:
            self.flight.add_work(*span)
        settled = Second(
            second,
            {pp_rank: StageSummary.of(stage) for pp_rank, stage in stages.items()},
            together,
            max(stage.length_seconds for stage in stages.values()),
            self._batches.by(second + 1),
        )
        self.recent.append(settled)
        self._undecided.append((settled, stages))

    def _count_active(self, together: Together) -> None:
        self.observed_seconds += together.observed_seconds
        missing = len(together.active_seconds) - len(self.active_seconds)
        self.active_seconds += [0.0] * missing
        for k, seconds in enumerate(together.active_seconds):
            self.active_seconds[k] += seconds

    def _decide(self, until: float) -> None:
        """Splits the seconds that end by then into in flight or not."""
        while self._undecided and self._undecided[0][0].second + 1 <= until:
            second, stages = self._undecided.popleft()
            spans = self.flight.spans(second.second, second.second + 1)
            second.inflight_ratio = sum(end - start for start, end in spans)
            second.inflight = {}
            for pp_rank, stage in stages.items():
                observed, working = inside(stage, second.second, spans)
                totals = self.totals[pp_rank]
                totals.inflight_seconds += observed
                totals.bubble_seconds += max(observed - working, 0.0)
                second.inflight[pp_rank] = (observed, working)
