"""Collects what a diagnosis is made from: the records that reached the model, and its seconds.

In: every record after it was folded, and the settled seconds of a pipeline. Out: the same, by
server, stage and GPU, for the newest hour at most. Judges nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from exporter.activity.gpm import least_working_ratio
from exporter.diagnosis.time_bins import TimeBins
from exporter.pipeline.clock import Second
from exporter.records import (
    Batch,
    EventKind,
    FactValue,
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuLevels,
    GpuState,
    LoadEvent,
    Record,
    RingSamples,
    ServerEvent,
    ServerFacts,
    Signal,
    StageMap,
    ThroughputReference,
    XidError,
)

RESIDENCY_BIN_SECONDS = 0.2
"""The utilization ring's own spacing: what is idle for a whole bin has stopped."""

_KEPT_BATCHES = 200_000
_KEPT_EVENTS = 10_000
_KEPT_SECONDS = 3600
_KEPT_GAUGES = 3600

PipelineKey = tuple[str, int]
"""Server and dp_rank."""


class GpuWatch:
    """What one GPU's driver said."""

    def __init__(self) -> None:
        self.resident = TimeBins(RESIDENCY_BIN_SECONDS)
        self.watts = TimeBins(1.0)
        self.sm = TimeBins(1.0)
        self.dram = TimeBins(1.0)
        self.least_working = TimeBins(1.0)
        """Share that must have been work, whatever the card's levels."""
        self.gauges: deque[GpuGauges] = deque(maxlen=_KEPT_GAUGES)
        self.states: deque[GpuState] = deque(maxlen=_KEPT_EVENTS)
        self.xids: deque[XidError] = deque(maxlen=_KEPT_EVENTS)
        self.identity: GpuIdentity | None = None
        self.levels: GpuLevels | None = None

    def fold_samples(self, record: RingSamples) -> None:
        """Takes samples of the utilization or the power ring."""
        bins = {Signal.UTILIZATION: self.resident, Signal.POWER: self.watts}.get(record.signal)
        if bins is None:
            return
        for taken_at, value in record.samples:
            bins.add_sample(taken_at, record.nominal_seconds, value)

    def fold_gpm(self, window: GpmWindow) -> None:
        """Takes the activity of one window."""
        start, end = window.started_at, window.ended_at
        for bins, value in ((self.sm, window.sm_ratio), (self.dram, window.dram_ratio)):
            if value is not None:
                bins.add_window(start, end, value)
        multiprocessors = self.identity.multiprocessors if self.identity is not None else None
        # A kernel may be resident all the time: that leaves the least that must have been work.
        self.least_working.add_window(start, end, least_working_ratio(window, 1.0, multiprocessors))


class Watch:
    """Folds records in time order; memory is bounded.

    Attributes:
        first_at: Instant of the first dated record; `None` before it.
        last_at: Instant of the newest.
        time_resolution_seconds: How fine the instants of its lines are; 0: as journald dates them.
    """

    def __init__(self) -> None:
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.time_resolution_seconds = 0.0
        self.gpus: defaultdict[int, GpuWatch] = defaultdict(GpuWatch)
        self.batches: defaultdict[PipelineKey, deque[Batch]] = defaultdict(
            lambda: deque(maxlen=_KEPT_BATCHES)
        )
        self.seconds: defaultdict[PipelineKey, deque[Second]] = defaultdict(
            lambda: deque(maxlen=_KEPT_SECONDS)
        )
        self.events: deque[ServerEvent] = deque(maxlen=_KEPT_EVENTS)
        self.facts: defaultdict[str, dict[str, FactValue]] = defaultdict(dict)
        self.maps: dict[str, StageMap] = {}
        self.loads: deque[LoadEvent] = deque(maxlen=_KEPT_EVENTS)
        self.references: dict[int, float] = {}
        """Output tokens per second by concurrency."""
        self._fold: dict[type, Callable[..., None]] = {
            Batch: self._fold_batch,
            ServerEvent: self._fold_event,
            ServerFacts: self._fold_facts,
            StageMap: self._fold_map,
            LoadEvent: self._fold_load,
            ThroughputReference: self._fold_reference,
            GpuIdentity: self._fold_identity,
            GpuLevels: self._fold_levels,
            RingSamples: self._fold_samples,
            GpmWindow: self._fold_gpm,
            GpuGauges: lambda r: self.gpus[r.gpu].gauges.append(r),
            GpuState: lambda r: self.gpus[r.gpu].states.append(r),
            XidError: lambda r: self.gpus[r.gpu].xids.append(r),
        }

    def successor(self) -> Watch:
        """A new one that knows servers, maps and cards, and nothing that happened."""
        new = Watch()
        new.maps.update(self.maps)
        for server, facts in self.facts.items():
            new.facts[server].update(facts)
        for number, gpu in self.gpus.items():
            new.gpus[number].identity, new.gpus[number].levels = gpu.identity, gpu.levels
        return new

    def fold(self, record: Record) -> None:
        """Takes one record; a kind that says nothing to a diagnosis is ignored."""
        fold = self._fold.get(type(record))
        if fold is not None:
            fold(record)

    def add_seconds(self, key: PipelineKey, seconds: Iterable[Second]) -> None:
        """Takes settled seconds of a pipeline, oldest first; those taken before are skipped."""
        have = self.seconds[key]
        newest = have[-1].second if have else -1
        have.extend(second for second in seconds if second.second > newest)

    def pipelines(self) -> list[PipelineKey]:
        """The pipelines heard or mapped, the one with most lines first."""
        keys = set(self.batches)
        for server, stage_map in self.maps.items():
            keys |= {(server, place.dp_rank) for place in stage_map.stages}
        keys |= {(server, 0) for server in self.facts if not any(k[0] == server for k in keys)}
        return sorted(keys, key=lambda key: (-len(self.batches.get(key, ())), key))

    def stage_gpus(self, key: PipelineKey) -> dict[int, tuple[int, ...]]:
        """The GPUs of each pp_rank, in the order of their tp_rank; empty while not mapped."""
        server, dp_rank = key
        places: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for place in self.maps[server].stages if server in self.maps else ():
            if place.dp_rank == dp_rank:
                places[place.pp_rank].append((place.tp_rank, place.gpu))
        return {pp: tuple(gpu for _, gpu in sorted(places[pp])) for pp in sorted(places)}

    def _reach(self, at: float) -> None:
        self.first_at = at if self.first_at is None else min(self.first_at, at)
        self.last_at = at if self.last_at is None else max(self.last_at, at)

    def _fold_batch(self, batch: Batch) -> None:
        self._reach(batch.logged_at)
        self.batches[batch.server, batch.dp_rank].append(batch)

    def _fold_event(self, event: ServerEvent) -> None:
        if event.kind is not EventKind.FIRED_UP:
            self.events.append(event)

    def _fold_facts(self, record: ServerFacts) -> None:
        if record.new_launch:
            self.facts[record.server] = {}
        self.facts[record.server].update(record.facts)

    def _fold_map(self, record: StageMap) -> None:
        self.maps[record.server] = record

    def _fold_load(self, event: LoadEvent) -> None:
        self._reach(event.happened_at)
        self.loads.append(event)

    def _fold_reference(self, record: ThroughputReference) -> None:
        self.references[record.concurrency] = record.output_tokens_per_second

    def _fold_identity(self, record: GpuIdentity) -> None:
        self.gpus[record.gpu].identity = record

    def _fold_levels(self, record: GpuLevels) -> None:
        self.gpus[record.gpu].levels = record

    def _fold_samples(self, record: RingSamples) -> None:
        if record.samples:
            self._reach(record.samples[-1][0])
        self.gpus[record.gpu].fold_samples(record)

    def _fold_gpm(self, window: GpmWindow) -> None:
        self._reach(window.ended_at)
        self.gpus[window.gpu].fold_gpm(window)
