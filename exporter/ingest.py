"""Sources → admission → model: one task a source, started again when it fails.

The only place where a record meets the rules and the model, live, recording or replaying. Runs on
one event loop; a snapshot and the reading positions behind it always belong together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from exporter import __version__
from exporter.admission import Admission
from exporter.change_log import HintLog, MethodLog
from exporter.collector import ExporterState
from exporter.pipeline.clock import Second
from exporter.pipeline_model import PipelineModel
from exporter.positions import PositionStore
from exporter.records import (
    FatalSourceError,
    LogLine,
    Record,
    ServerEvent,
    ServerFacts,
    SourceHealth,
    SourceUnavailableError,
)
from exporter.snapshot import Snapshot
from exporter.sources import Position, Source
from exporter.sources.gpus.sampler import GpuSampler
from exporter.sources.server.probe import ServerProbe
from exporter.stage_map import StageMapper

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0
TICK_SECONDS = 5.0

BETTER_ORIGINS = ("server_info", "configuration")
"""Facts of these outlast lesser ones of the same launch, the last one all others."""

Tap = Callable[[Record, LogLine | None], None]
"""Sees every record that reached the model, with the line it was read from."""


@dataclass(frozen=True, slots=True)
class Feed:
    """A source and the servers whose log it reads."""

    source: Source
    server: str | None = None
    """`None`: any server (a recording), or none (GPUs)."""
    reads_log: bool = True
    optional: bool = False
    """Whether readiness does not wait for it."""


class Ingest:
    """Keeps all sources running and folds what they say into `model`."""

    def __init__(
        self,
        feeds: Sequence[Feed],
        *,
        mapper: StageMapper,
        clock: Callable[[], float],
        positions: PositionStore | None = None,
        sampler: GpuSampler | None = None,
        tap: Tap | None = None,
    ) -> None:
        self.clock = clock
        self._feeds = tuple(feeds)
        self._admission = Admission()
        self.model = PipelineModel()
        self._mapper = mapper
        self._positions = positions
        self._sampler = sampler
        self._tap = tap
        self._methods = MethodLog()
        self._hints = HintLog()
        self._opened: set[str] = set()
        self._probes = {
            feed.server: feed.source for feed in feeds if isinstance(feed.source, ServerProbe)
        }
        self._better_facts: dict[str, dict[str, ServerFacts]] = {}

    # --- records -------------------------------------------------------------------------------

    def learn(self, facts: ServerFacts) -> None:
        """Takes facts that come from no source: the configuration's."""
        self._admission.learn(facts)
        self._fold(facts, None)

    def handle(self, record: Record) -> None:
        """Takes one record from a source: a line is judged first, everything else is folded."""
        if type(record) is LogLine:
            if (verdict := self._admission.admit(record)) is not None:
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
            for better in self._better_than(record):
                self._admission.learn(better)
                self._fold_one(better, None)

    def _better_than(self, record: ServerFacts) -> list[ServerFacts]:
        """Facts that outrank those just folded, in the order to fold them again."""
        held = self._better_facts.setdefault(record.server, {})
        if record.new_launch:
            held.pop("server_info", None)
        rank = 0
        if record.origin in BETTER_ORIGINS:
            held[record.origin] = record
            rank = BETTER_ORIGINS.index(record.origin) + 1
        return [
            replace(held[origin], known_at=record.known_at)
            for origin in BETTER_ORIGINS[rank:]
            if origin in held
        ]

    def _fold_one(self, record: Record, line: LogLine | None) -> None:
        self.model.fold(record)
        if self._tap is not None:
            self._tap(record, line)
        for stage_map in self._mapper.fold(record):
            self.model.fold(stage_map)
            if self._tap is not None:
                self._tap(stage_map, None)

    def finish(self) -> None:
        """The records have ended: closes all counters to the clock's instant."""
        self.model.close(self.clock())

    # --- sources -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs every source until canceled, or until all have ended for good.

        Raises:
            FatalSourceError: Only a new process helps.
        """
        tick = asyncio.create_task(self._tick(), name="tick")
        try:
            async with asyncio.TaskGroup() as group:
                for feed in self._feeds:
                    group.create_task(self._keep_running(feed), name=feed.source.health.name)
        except ExceptionGroup as failures:
            # Not `except*`: older 3.11 wraps what is raised there in a group again.
            fatal = [error for error in failures.exceptions if isinstance(error, FatalSourceError)]
            if not fatal:
                raise
            raise fatal[0] from None
        finally:
            tick.cancel()
            for feed in self._feeds:
                await feed.source.close()

    async def _keep_running(self, feed: Feed) -> None:
        source, name = feed.source, feed.source.health.name
        position = self._saved_position(feed)
        retry = FIRST_RETRY_SECONDS
        said = None
        while True:
            started = None
            try:
                await source.open(position)
                self._start_position(name, source)
                started = self.clock()
                await source.run(self.handle)
            except SourceUnavailableError as error:
                message = str(error)
            except (asyncio.CancelledError, FatalSourceError):
                raise
            except Exception:  # the task boundary: a bug in one source must not end the others
                log.exception("a source failed unexpectedly, it is started again source=%s", name)
                message = "failed unexpectedly; see the exporter's log"
            else:
                source.health.up, source.health.last_error = False, "its input has ended"
                log.info("a source ended source=%s lines=%d", name, source.health.lines)
                if feed.server is None and feed.reads_log:
                    self.finish()
                return
            source.health.up = False
            source.health.last_error = message
            if message != said:
                log.warning("%s source=%s", message, name)
                said = message
            if started is not None and self.clock() - started > LAST_RETRY_SECONDS:
                retry = FIRST_RETRY_SECONDS
            position = source.position() or position
            await source.close()
            await asyncio.sleep(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)

    def _saved_position(self, feed: Feed) -> Position | None:
        if self._positions is None:
            return None
        if self._positions.damaged and feed.reads_log:
            feed.source.health.gaps += 1  # where the life before had read to is lost
        return self._positions.position(feed.source.health.name)

    def _start_position(self, name: str, source: Source) -> None:
        self._opened.add(name)
        if self._positions is not None and (position := source.position()) is not None:
            self._positions.started(name, position)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._methods.look(self.snapshot())
            self._hints.look(self.healths())
            if self._positions is not None:
                self._positions.tick(self._read_positions())

    def _read_positions(self) -> dict[str, Position]:
        positions = {}
        for feed in self._feeds:
            name = feed.source.health.name
            position = feed.source.position() if name in self._opened else None
            if position is not None:
                positions[name] = position
        return positions

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
            self._positions.scraped(self._read_positions())

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
                feed.source.health.name: sum(
                    server.unverified_lines
                    for server in snapshot.servers
                    if feed.server in (None, server.name)
                )
                for feed in self._feeds
                if feed.reads_log
            },
            recommendations=tuple(sorted(recommendations)),
            config_reload_succeeded=True,
        )

    def healths(self) -> tuple[SourceHealth, ...]:
        """How each source fares."""
        return tuple(feed.source.health for feed in self._feeds)

    def waiting_for(self) -> Mapping[str, str]:
        """Sources that are not read now, with the reason; empty when ready.

        GPUs count only once they were read: without NVML the exporter serves the log alone.
        """
        return {
            feed.source.health.name: feed.source.health.last_error or "not opened yet"
            for feed in self._feeds
            if not feed.optional
            and not feed.source.health.up
            and (feed.reads_log or feed.source.health.name in self._opened)
        }
