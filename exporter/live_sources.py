"""A configuration → the sources it names, joined with rules and model."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from exporter.config import Config, ServerConfig
from exporter.gpu_driver import GpuDriver
from exporter.ingest import Feed, Ingest
from exporter.positions import PositionStore
from exporter.records import LogLine, Record, ServerFacts
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
    match = JournalMatch(unit=server.unit, container=server.container, identifier=server.identifier)
    return JournalSource(
        server.name,
        match,
        is_wanted,
        directory=config.journal_directory,
        from_start=config.from_start,
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
    feeds = [Feed(log_source(server, config), server.name) for server in config.servers]
    feeds += [
        Feed(
            ServerProbe(server.name, server.url, token_file=server.token_file, token=server.token),
            server.name,
            reads_log=False,
            optional=True,
        )
        for server in config.servers
        if server.url is not None
    ]
    sampler = None
    if config.nvml:
        sampler = GpuSampler(driver or NvmlDriver(), proc_root=proc_root)
        feeds.append(Feed(sampler, reads_log=False))
    ingest = Ingest(
        feeds,
        mapper=StageMapper(config.servers),
        clock=time.time,
        positions=positions,
        sampler=sampler,
        tap=tap,
    )
    for server in config.servers:
        if server.facts:
            ingest.learn(ServerFacts(server.name, time.time(), server.facts, "configuration"))
    return ingest
