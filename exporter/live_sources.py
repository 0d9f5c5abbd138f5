"""A configuration → the sources it names, joined with rules and model."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from pathlib import Path

from exporter.config import Config, ServerConfig
from exporter.gpu_driver import GpuDriver
from exporter.ingest import Ingest
from exporter.kept_sources import Feed
from exporter.positions import PositionStore
from exporter.records import LogLine, Record
from exporter.sglang_log import is_wanted
from exporter.sources import Source
from exporter.sources.files.source import FilesSource, StdinSource
from exporter.sources.gpus.nvml import NvmlDriver
from exporter.sources.gpus.sampler import GpuSampler
from exporter.sources.journal.source import JournalMatch, JournalSource
from exporter.sources.server.probe import ServerProbe
from exporter.stage_map import StageMapper

PROC = Path("/proc")


def log_source(server: ServerConfig, config: Config) -> Source:
    """The source a server's log is read from."""
    if server.stdin:
        return StdinSource(server.name, is_wanted)
    if server.files:
        return FilesSource(server.name, server.files, is_wanted, from_start=config.from_start)
    return JournalSource(
        server.name,
        _match(server),
        is_wanted,
        directory=config.journal_directory,
        from_start=config.from_start,
    )


def _match(server: ServerConfig) -> JournalMatch:
    return JournalMatch(unit=server.unit, container=server.container, identifier=server.identifier)


def _inputs(server: ServerConfig) -> frozenset[Hashable]:
    """What is read; journal files elsewhere are the same journal, further on in time."""
    if server.stdin:
        return frozenset(("stdin",))
    if server.files:
        return frozenset(f"file {pattern}" for pattern in server.files)
    return frozenset((str(_match(server)),))


class LiveFeeds:
    """Feeds of one configuration after the other."""

    def __init__(self, driver: GpuDriver | None = None, proc_root: Path = PROC) -> None:
        """`driver` and `proc_root` stand in for NVML and /proc."""
        # One for the whole process: NVML is initialized by one thread, which may hang in it.
        self._sampler = GpuSampler(driver or NvmlDriver(), proc_root=proc_root)

    def of(self, config: Config) -> list[Feed]:
        """What a configuration names, not opened yet."""
        feeds = [_log_feed(server, config) for server in config.servers]
        feeds += [
            _probe_feed(server, server.url) for server in config.servers if server.url is not None
        ]
        if config.nvml:
            feeds.append(Feed(self._sampler, reads_log=False, made_of="nvml"))
        return feeds


def _log_feed(server: ServerConfig, config: Config) -> Feed:
    source, inputs = log_source(server, config), _inputs(server)
    directory = config.journal_directory if isinstance(source, JournalSource) else None
    made_of = (source.health.name, inputs, directory)
    return Feed(source, server.name, made_of=made_of, inputs=inputs)


def _probe_feed(server: ServerConfig, url: str) -> Feed:
    return Feed(
        ServerProbe(server.name, url, token_file=server.token_file, token=server.token),
        server.name,
        reads_log=False,
        optional=True,
        made_of=("server", server.name, url, server.token_file, server.token),
    )


def live_ingest(
    config: Config,
    *,
    driver: GpuDriver | None = None,
    proc_root: Path = PROC,
    positions: PositionStore | None = None,
    tap: Callable[[Record, LogLine | None], None] | None = None,
) -> Ingest:
    """Sources, rules and model as the configuration says; `driver` stands in for NVML."""
    return ingest_of(LiveFeeds(driver, proc_root), config, positions=positions, tap=tap)


def ingest_of(
    feeds: LiveFeeds,
    config: Config,
    *,
    positions: PositionStore | None = None,
    tap: Callable[[Record, LogLine | None], None] | None = None,
) -> Ingest:
    """The same, of feeds that another configuration may change later."""
    ingest = Ingest(
        feeds.of(config),
        mapper=StageMapper(config.servers),
        clock=time.time,
        positions=positions,
        tap=tap,
    )
    ingest.configure(config.servers)
    return ingest
