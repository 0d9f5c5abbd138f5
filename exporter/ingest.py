"""Sources → admission → model; other sources take their place when the configuration changes.

The only place where a record meets the rules and the model, live, recording or replaying. Runs on
one event loop; a snapshot and the reading positions behind it always belong together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from exporter import __version__
from exporter.admission import Admission
from exporter.change_log import HintLog, MethodLog
from exporter.collector import ExporterState
from exporter.config import ServerConfig
from exporter.crashes import Crashes, kept_running
from exporter.fact_order import CONFIGURATION, FactOrder
from exporter.kept_sources import Feed, KeptSources
from exporter.pipeline.clock import Second
from exporter.pipeline_model import PipelineModel
from exporter.positions import PositionStore
from exporter.records import (
    Batch,
    ConfigHealth,
    FactValue,
    GpusRemoved,
    LogLine,
    Record,
    ServerEvent,
    ServerFacts,
    ServerRemoved,
    SourceHealth,
    StageMap,
)
from exporter.snapshot import Snapshot
from exporter.sources.gpus.sampler import GpuSampler
from exporter.sources.server.probe import ServerProbe
from exporter.stage_map import StageMapper

TICK_SECONDS = 5.0

Tap = Callable[[Record, LogLine | None], None]
"""Sees every record that reached the model, with the line it was read from."""


class Ingest:
    """Keeps all sources running and folds what they say into `model`.

    Attributes:
        model: What all records together say.
        config_health: How the newest attempt to load the configuration went.
        crashes: Exceptions that nobody foresaw.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        *,
        mapper: StageMapper,
        clock: Callable[[], float],
        positions: PositionStore | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.clock = clock
        self.model = PipelineModel()
        self.config_health = ConfigHealth()
        self.crashes = Crashes()
        self._admission = Admission()
        self._mapper = mapper
        self._positions = positions
        self._tap = tap
        self._methods = MethodLog()
        self._hints = HintLog()
        self._fact_order = FactOrder()
        self._sources = KeptSources(
            feeds, self.handle, ended=self._note_end, crashes=self.crashes, positions=positions
        )
        self._look_at_feeds()

    def _look_at_feeds(self) -> None:
        feeds = self._sources.feeds
        self._probes = {f.server: f.source for f in feeds if isinstance(f.source, ServerProbe)}
        self._sampler = next((f.source for f in feeds if isinstance(f.source, GpuSampler)), None)

    # --- records -------------------------------------------------------------------------------

    def learn(self, facts: ServerFacts) -> None:
        """Takes facts that come from no source."""
        self._admission.learn(facts)
        self._fold(facts, None)

    def handle(self, record: Record) -> None:
        """Takes one record from a source: a line is judged first, everything else is folded."""
        if type(record) is LogLine:
            verdict = self._admission.admit(record)
            if type(verdict) is Batch:
                self._fold_one(verdict, record)
            elif verdict is not None:
                self._fold(verdict, record)
            return
        if type(record) is ServerFacts:
            self._admission.learn(record)
        self._fold(record, None)

    def _fold(self, record: Record, line: LogLine | None) -> None:
        self._fold_one(record, line)
        if isinstance(record, ServerFacts | ServerEvent) and record.server in self._probes:
            self._probes[record.server].hear(record)
        if isinstance(record, ServerFacts):
            for better in self._fact_order.better_than(record):
                self._admission.learn(better)
                self._fold_one(better, None)

    def _fold_one(self, record: Record, line: LogLine | None) -> None:
        self.model.fold(record)
        if self._tap is not None:
            self._tap(record, line)
        if maps := self._mapper.fold(record):
            self._take_maps(maps)

    def _take_maps(self, maps: Sequence[StageMap]) -> None:
        for stage_map in maps:
            self.model.fold(stage_map)
            if self._tap is not None:
                self._tap(stage_map, None)

    def finish(self) -> None:
        """The records have ended: closes all counters to the clock's instant."""
        self.model.close(self.clock())

    def _note_end(self, feed: Feed) -> None:
        if feed.server is None and feed.reads_log:
            self.finish()

    # --- configuration -------------------------------------------------------------------------

    def configure(self, servers: Sequence[ServerConfig]) -> None:
        """Takes what is configured of the servers beside their sources: facts, GPUs of stages."""
        for server in servers:
            self._configure_facts(server.name, server.facts)
        self._take_maps(self._mapper.configure(servers))

    async def reconfigure(self, feeds: Sequence[Feed], servers: Sequence[ServerConfig]) -> None:
        """Goes on with other feeds and servers.

        A feed that is the same is not touched. A server stays as long as its log is read from the
        same input; of one that does not, all is forgotten, and so is it of GPUs read no more.
        """
        had_gpus, inputs = self._sampler is not None, _inputs(self._sources.feeds)
        await self._sources.replace(feeds)
        # From here on without waiting: no scrape may see half of it, no new source come before.
        now, new_inputs = self.clock(), _inputs(feeds)
        self._look_at_feeds()
        for name, before in inputs.items():
            if not before & new_inputs.get(name, frozenset()):
                self._admission.forget(name)
                self._fact_order.forget(name)
                self._fold(ServerRemoved(name, now), None)
                if name in self._probes:
                    self._probes[name].ask_again()
        if had_gpus and self._sampler is None:
            self._fold(GpusRemoved(now), None)
        self.configure(servers)

    def _configure_facts(self, server: str, facts: Mapping[str, FactValue]) -> None:
        withdrawn = self._fact_order.withdrawn(server, facts)
        if withdrawn is None:
            return
        now = self.clock()
        self.learn(ServerFacts(server, now, facts, CONFIGURATION))
        if withdrawn:
            told = ServerFacts(server, now, withdrawn, "server_args")
            self._admission.learn(told)
            self._fold_one(replace(told, origin=CONFIGURATION), None)

    # --- sources -------------------------------------------------------------------------------

    async def run(self, *, stays: bool = False) -> None:
        """Runs every source until canceled, or until all have ended for good unless it `stays`.

        Raises:
            FatalSourceError: Only a new process helps.
        """
        tick = asyncio.create_task(
            kept_running("housekeeping", self._tick, self.crashes), name="housekeeping"
        )
        try:
            await self._sources.run(stays=stays)
        finally:
            tick.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._methods.look(self.snapshot())
            self._hints.look(self.healths())
            if self._positions is not None:
                self._positions.tick(self._sources.positions())

    # --- what is served ------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The model at this instant of the clock the records carry."""
        return self.model.snapshot(self.clock())

    def seconds(self, server: str, dp_rank: int) -> tuple[Second, ...]:
        """The settled seconds of a pipeline, oldest first, at most 600."""
        return self.model.seconds(server, dp_rank)

    def watts(self, gpu: int, second: int) -> float | None:
        """Mean power of a GPU over an epoch second of the newest ten minutes."""
        return self.model.watts(gpu, second)

    def scraped(self) -> None:
        """Keeps the positions behind the newest snapshot; called before a scrape is answered."""
        if self._positions is not None:
            self._positions.scraped(self._sources.positions())

    def crashed(self, task: str, error: Exception) -> None:
        """Counts and logs an exception nobody foresaw, of a task that goes on by itself."""
        self.crashes.note(task, error)

    def state(self, snapshot: Snapshot) -> ExporterState:
        """What the exporter says about itself beside that snapshot."""
        recommendations = set(snapshot.recommendations)
        if any(health.suppressed_messages for health in self.healths()):
            recommendations.add("LogRateLimitIntervalSec")
        if self._sampler is not None and self._sampler.persistence_mode_off:
            recommendations.add("nvidia_persistence_mode")
        return ExporterState(
            version=__version__,
            sources=self.healths(),
            driver=self._sampler.driver_health if self._sampler else None,
            unverified_lines={
                feed.name: sum(
                    server.unverified_lines
                    for server in snapshot.servers
                    if feed.server in (None, server.name)
                )
                for feed in self._sources.feeds
                if feed.reads_log
            },
            recommendations=tuple(sorted(recommendations)),
            config=self.config_health,
            retired=self._sources.retired,
            crashes=self.crashes.counts,
        )

    def healths(self) -> tuple[SourceHealth, ...]:
        """How each source fares."""
        return self._sources.healths()

    def waiting_for(self) -> Mapping[str, str]:
        """Sources that are not read now, with the reason; empty when ready."""
        return self._sources.waiting_for()


def _inputs(feeds: Sequence[Feed]) -> dict[str, frozenset[object]]:
    """What the log of each server is read from."""
    return {feed.server: feed.inputs for feed in feeds if feed.reads_log and feed.server}
