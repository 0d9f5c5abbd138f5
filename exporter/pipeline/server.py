"""The pipelines of one server: hands each record to the pipelines it speaks of.

In: the server's batches, facts, stage maps, the windows of all GPUs, loads. Out: the figures of
each data-parallel replica. Pure: no clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.pipeline.clock import PipelineClock, Second
from exporter.pipeline.figures import PipelineFigures, Variance
from exporter.pipeline.gain_fit import GainFit, Operation
from exporter.pipeline.means import (
    active_mean,
    bound_ratios,
    bubble,
    inflight_occupancy,
    last_complete,
    mean_seconds,
    mean_working,
    occupancy,
    skew_and_balance,
    stage_figures,
    variance,
)
from exporter.pipeline.micro_batches import Activity, SlotObserver
from exporter.pipeline.server_facts import count_of, local_pp_ranks
from exporter.records import (
    ActivityWindow,
    Batch,
    FactValue,
    GpuProcesses,
    LoadEvent,
    Method,
    ServerFacts,
    StageMap,
)

_MOST_PIPELINES = 64
_OBSERVE_SECONDS = 10.0
_ALIKE = 0.15
"""Stages are compared if no more of one's work than this is an upper bound and of another's not."""
"""How often a steady stretch is taken for the fit of pass times; its figures are 30 s means."""
_MEASURED = (Method.GPM, Method.POWER)
"""Methods whose working share is no upper bound."""


class _Pipeline:
    def __init__(self) -> None:
        self.clock = PipelineClock()
        self.slots = SlotObserver()
        self.gain = GainFit()
        self.observed_at = 0.0
        self.tokens_per_second: float | None = None

    def observe(self, figures: PipelineFigures) -> None:
        """Takes the last 30 s for the fit, if all of it is known."""
        slots, stages = figures.slots, figures.stages
        working = [s.mean_working_ratio for s in stages if s.method in _MEASURED]
        known = [ratio for ratio in working if ratio is not None]
        if len(known) == figures.expected_stages and slots.active and slots.running_requests:
            if self.tokens_per_second:
                self.gain.observe(
                    Operation(
                        slots.active, slots.running_requests, self.tokens_per_second, tuple(known)
                    )
                )
            self.tokens_per_second = None


class ServerPipelines:
    """Folds the records of one server; one pipeline for each dp_rank."""

    def __init__(self) -> None:
        self._facts: dict[str, FactValue] = {}
        self._pipelines: dict[int, _Pipeline] = {}
        self._load: LoadEvent | None = None

    # --- records -------------------------------------------------------------------------------

    def fold_facts(self, record: ServerFacts) -> None:
        """Takes facts; a new launch leaves the stages without GPUs until they are mapped anew."""
        if record.new_launch:
            self._facts = {}
            for pipeline in self._pipelines.values():
                pipeline.clock.flight.end_launch(record.known_at)
                pipeline.clock.place(record.known_at, {})
                pipeline.slots.begin_launch()
                pipeline.gain, pipeline.tokens_per_second = GainFit(), None
        self._facts.update(record.facts)
        ranks = local_pp_ranks(self._facts)
        if ranks is not None:
            for dp_rank in range(min(count_of(self._facts, "dp_size") or 1, _MOST_PIPELINES)):
                self._pipeline(dp_rank)
        for pipeline in self._pipelines.values():
            pipeline.clock.expect(ranks)

    def fold_map(self, record: StageMap) -> None:
        """Takes the GPUs of all ranks; replaces the map before it."""
        places: dict[int, dict[int, list[int]]] = {}
        for rank in sorted(
            record.stages, key=lambda rank: (rank.dp_rank, rank.pp_rank, rank.tp_rank)
        ):
            places.setdefault(rank.dp_rank, {}).setdefault(rank.pp_rank, []).append(rank.gpu)
        for dp_rank in places.keys() | self._pipelines.keys():
            pipeline = self._pipeline(dp_rank)
            if pipeline is not None:
                ranks = places.get(dp_rank, {})
                pipeline.clock.place(
                    record.mapped_at, {pp: tuple(ranks[pp]) for pp in sorted(ranks)}
                )

    def fold_batch(self, batch: Batch) -> None:
        """Takes an accepted line of this server."""
        pipeline = self._pipeline(batch.dp_rank)
        if pipeline is not None:
            pipeline.clock.fold_batch(batch)
            pipeline.tokens_per_second = (
                batch.gen_throughput_tokens_per_second or pipeline.tokens_per_second
            )
            # By the records' own time, so that a replay observes what the live run did.
            if batch.logged_at - pipeline.observed_at >= _OBSERVE_SECONDS:
                pipeline.observed_at = batch.logged_at
                pipeline.observe(_figures(batch.dp_rank, pipeline, self._facts, batch.logged_at))
            pipeline.slots.fold_batch(batch)

    def turn_seconds(self, batch: Batch) -> float | None:
        """Time between the starts of two passes of the line's pipeline; `None` if not known."""
        pipeline = self._pipeline(batch.dp_rank)
        return pipeline.slots.turn_seconds(batch, self._facts) if pipeline is not None else None

    def fold_window(self, window: ActivityWindow) -> None:
        """Takes a window of any GPU."""
        for pipeline in self._pipelines.values():
            pipeline.clock.fold(window)

    def fold_processes(self, record: GpuProcesses) -> None:
        """Learns which schedulers still run."""
        for pipeline in self._pipelines.values():
            pipeline.clock.flight.fold_processes(record)

    def fold_exception(self, at: float) -> None:
        """Learns that a scheduler met an exception: all of them end then, and no queue is left."""
        for pipeline in self._pipelines.values():
            pipeline.clock.flight.end_launch(at)

    def fold_load(self, event: LoadEvent) -> None:
        """Takes the start or end of a driven load."""
        self._load = event
        for pipeline in self._pipelines.values():
            pipeline.clock.flight.fold_load(event)
            pipeline.slots.fold_load(event)

    def advance(self, now: float) -> None:
        """Lets time pass: what is complete or overdue at `now` is settled."""
        for pipeline in self._pipelines.values():
            pipeline.clock.advance(now)

    def close(self, at: float) -> None:
        """Settles everything: the records have ended at `at`. Nothing is folded after."""
        for pipeline in self._pipelines.values():
            pipeline.clock.close(at)

    def _pipeline(self, dp_rank: int) -> _Pipeline | None:
        """The pipeline, made when first heard of; `None` beyond the bound."""
        pipeline = self._pipelines.get(dp_rank)
        if pipeline is None and len(self._pipelines) < _MOST_PIPELINES:
            pipeline = self._pipelines[dp_rank] = _Pipeline()
            pipeline.clock.expect(local_pp_ranks(self._facts))
            if self._load is not None:
                pipeline.clock.flight.fold_load(self._load)
                pipeline.slots.fold_load(self._load)
        return pipeline

    # --- answers -------------------------------------------------------------------------------

    def figures(self, now: float) -> tuple[PipelineFigures, ...]:
        """Every pipeline at `now`, by dp_rank; changes nothing."""
        return tuple(
            _figures(dp_rank, self._pipelines[dp_rank], self._facts, now)
            for dp_rank in sorted(self._pipelines)
        )

    def seconds(self, dp_rank: int) -> tuple[Second, ...]:
        """The settled seconds of one pipeline as they are kept, oldest first, at most 600."""
        pipeline = self._pipelines.get(dp_rank)
        return () if pipeline is None else tuple(pipeline.clock.recent)


def _figures(
    dp_rank: int, pipeline: _Pipeline, facts: Mapping[str, FactValue], now: float
) -> PipelineFigures:
    clock = pipeline.clock
    last, seconds = last_complete(clock, now), mean_seconds(clock, now)
    expected = tuple(clock.ranks()) if clock.expected is None else clock.expected
    # A launch with fewer stages than the one before leaves none of the others behind.
    stages = tuple(
        stage
        for stage in stage_figures(clock, last, seconds)
        if clock.expected is None or stage.pp_rank in expected
    )
    means = [mean_working(seconds, pp_rank) for pp_rank in expected]
    bounds = bound_ratios(seconds, expected)
    alike = max(bounds, default=0.0) - min(bounds, default=0.0) <= _ALIKE
    skew, balance = skew_and_balance(means) if alike else (None, None)
    varied = variance(seconds, len(expected))
    active = active_mean(seconds, len(expected))
    activity = None
    if count_of(facts, "pp_size") in (None, len(expected)) and max(bounds, default=1.0) <= _ALIKE:
        highest = max((mean for mean in means if mean is not None), default=None)
        if active is not None and highest is not None and _flows(varied):
            activity = Activity(active, highest)
    slots = pipeline.slots.figures(facts, activity, now)
    return PipelineFigures(
        dp_rank=dp_rank,
        stages=stages,
        expected_stages=len(expected) or None,
        observed_seconds=clock.observed_seconds,
        active_stages_seconds=tuple(clock.active_seconds[: len(expected) + 1]),
        active_stages_window_seconds=_resolution(seconds),
        inflight_seconds=clock.flight.seconds,
        in_flight=clock.flight.is_now(now),
        occupancy_ratio=occupancy(last),
        bubble_ratio=bubble(clock, now),
        inflight_occupancy_ratio=inflight_occupancy(seconds),
        skew_ratio=skew,
        balance_ratio=balance,
        active_stages_mean=active,
        variance=varied,
        slots=slots,
        predicted_gain_ratio=(
            pipeline.gain.gain_ratio(slots.sizes, slots.slots or 1) if slots.sizes else None
        ),
        late_seconds=clock.late_seconds,
    )


def _flows(varied: Variance | None) -> bool:
    """Whether the stages do not stop together: the mean number of working ones would say less."""
    seen = None if varied is None else varied.active_ratio or varied.active_ratio_at_least
    return seen is None or seen <= 1.0


def _resolution(seconds: list[Second]) -> float | None:
    """The window length behind the newest second, in milliseconds' precision."""
    return round(seconds[-1].window_seconds, 3) if seconds else None
