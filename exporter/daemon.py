"""The programs that serve: the exporter itself, the demo, a replay."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from exporter.collector import SnapshotCollector
from exporter.config import Config, ServerConfig
from exporter.exposition import exposition
from exporter.ingest import Feed, Ingest
from exporter.live_sources import live_ingest
from exporter.positions import PositionStore, default_path
from exporter.recent.records import RecentRecords
from exporter.recordings.reader import read_records
from exporter.simulator import DemoServer
from exporter.sources.recording import RecordingSource
from exporter.stage_map import StageMapper
from exporter.stopping import first_of, ignore_signals, stopped
from exporter.web import WebServer

log = logging.getLogger(__name__)


async def _serve(ingest: Ingest, recent: RecentRecords, config: Config, greeting: str) -> None:
    """Serves until a signal; an input that ended for good (stdin, a recording) is served on."""
    server = WebServer(ingest, lambda seconds: recent.recording(seconds, ingest.model.levels()))
    await server.start(config)
    log.info(greeting, f"http://{config.listen_host or '127.0.0.1'}:{server.port}")
    if config.listen_host is None:
        log.info("it answers on all addresses of this machine; --listen ADDRESS:PORT narrows that")
    reading = asyncio.create_task(ingest.run(), name="ingest")
    stopping = asyncio.create_task(stopped(), name="signals")
    try:
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
            await stopping
    finally:
        for task in (stopping, reading):
            task.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)
        await server.close()
        log.info("stopped")
        if not stopping.cancelled():
            ignore_signals()


async def serve(config: Config) -> None:
    """Runs the exporter until SIGTERM or SIGINT.

    Raises:
        CannotListenError: The address is taken.
        StateFileInUseError: Another exporter keeps its positions in the same file.
        FatalSourceError: Only a new process helps.
    """
    positions = PositionStore(config.state_file or default_path(os.environ))
    recent = RecentRecords(time.time)
    try:
        ingest = live_ingest(config, positions=positions, tap=recent.keep)
        await _serve(ingest, recent, config, "serving on %s/metrics")
    finally:
        positions.close()


async def demo(scenario: str, config: Config, directory: Path) -> None:
    """Runs the exporter against a simulated PP8 server and eight simulated GPUs."""
    world = DemoServer(scenario, directory)
    if world.journal_directory is not None:
        server = ServerConfig(name="sglang", unit=world.unit)
    else:
        server = ServerConfig(name="sglang", files=(str(world.log_file),))
        log.warning("systemd-journal-remote is not installed: the demo writes a plain log file")
    config = replace(
        config,
        servers=(server,),
        journal_directory=world.journal_directory,
        from_start=True,
        nvml=True,
    )
    recent = RecentRecords(time.time)
    ingest = live_ingest(config, driver=world.driver, proc_root=world.proc_root, tap=recent.keep)
    running = asyncio.create_task(world.run(), name="simulation")
    serving = asyncio.create_task(
        _serve(ingest, recent, config, f"demo of {scenario!r} on %s (metrics on /metrics)"),
        name="serve",
    )
    try:
        await first_of(serving, running)
    finally:
        await world.close()


def replay_once(path: Path) -> str:
    """The exposition of the instant of a recording's last record.

    Raises:
        RecordingError: It is no recording this version can read.
    """
    reader = read_records(path)
    source = RecordingSource(path)
    source.health = reader.health
    ingest = Ingest((Feed(source),), mapper=StageMapper(()), clock=lambda: reader.newest_at or 0.0)
    for made in reader:
        ingest.handle(made)
    summary = reader.summary()
    if summary:
        log.warning("%s", summary)
    ingest.finish()
    snapshot = ingest.snapshot()
    text, _ = exposition(SnapshotCollector(snapshot, ingest.state(snapshot), None), accept="")
    return text.decode()


async def replay(path: Path, config: Config) -> None:
    """Serves a recording at the speed it was made; after its end, its last instant."""
    source = RecordingSource(path)
    recent = RecentRecords(source.now)
    ingest = Ingest((Feed(source),), mapper=StageMapper(()), clock=source.now, tap=recent.keep)
    await _serve(ingest, recent, config, f"replaying {path} on %s/metrics")
