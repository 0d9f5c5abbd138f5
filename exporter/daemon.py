"""The programs that serve: the exporter itself, the demo, a replay."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from exporter.collector import SnapshotCollector
from exporter.config import Config, ServerConfig
from exporter.crashes import Crashes, kept_running
from exporter.exposition_text import text_of
from exporter.ingest import Ingest
from exporter.kept_sources import Feed
from exporter.live_sources import LiveFeeds, ingest_of, live_ingest
from exporter.positions import PositionStore, default_path
from exporter.recent.records import RecentRecords
from exporter.recordings.reader import read_records
from exporter.reload import TASK, ConfigSource, Reloader
from exporter.reload_request import Reload
from exporter.service_manager import ServiceManager
from exporter.simulator import DemoServer
from exporter.sources.recording import RecordingSource
from exporter.stage_map import StageMapper
from exporter.stopping import caught, first_of, ignore_signals, wait_for_no_thread
from exporter.web import WebServer

log = logging.getLogger(__name__)


async def _serve(
    ingest: Ingest,
    recent: RecentRecords,
    config: Config,
    greeting: str,
    reloading: Reloading | None = None,
) -> None:
    """Serves until a signal; an input that ended for good (stdin, a recording) is served on."""
    manager = reloading.manager if reloading else ServiceManager(os.environ)
    wait_for_no_thread()
    stop = caught()
    server = WebServer(
        ingest,
        lambda seconds: recent.recording(seconds, ingest.model.levels()),
        reloading.by_http if reloading else None,
    )
    await server.start(config)
    log.info(greeting, server.url)
    if config.listen_host is None:
        log.info("it answers on all addresses of this machine; --listen ADDRESS:PORT narrows that")
    reading = asyncio.create_task(ingest.run(stays=True), name="ingest")
    tasks = [reading, asyncio.create_task(_set(stop), name="signals")]
    tasks.append(asyncio.create_task(manager.watch(ingest), name="service manager"))
    try:
        if reloading is not None:
            tasks.append(asyncio.create_task(reloading.run(ingest.crashes), name="reload"))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
    finally:
        for task in tasks:
            task.cancel()
        # Beside each other: a hung driver and a slow client each may take their second.
        await asyncio.gather(server.close(), *tasks, return_exceptions=True)
        log.info("stopped")
        if stop.is_set():
            ignore_signals()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


class Reloading(NamedTuple):
    """How the running exporter reloads."""

    reloader: Reloader
    manager: ServiceManager
    over_http: bool

    @property
    def by_http(self) -> Reload | None:
        """What a request does; `None`: it is refused."""
        return self.reloader.reload if self.over_http else None

    async def run(self, crashes: Crashes) -> None:
        """Reloads at SIGHUP and when the file has changed, until canceled."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reloader.request)
        try:
            await kept_running(TASK, self.reloader.run, crashes)
        finally:
            ignore_signals((signal.SIGHUP,))


async def serve(source: ConfigSource, *, reload_over_http: bool = False) -> None:
    """Runs the exporter until SIGTERM or SIGINT; SIGHUP and a changed file reload.

    Raises:
        ConfigError: The configuration has mistakes: all of them are named.
        CannotListenError: The address is taken.
        StateFileInUseError: Another exporter keeps its positions in the same file.
        FatalSourceError: Only a new process helps.
    """
    config = source.read()
    positions = PositionStore(config.state_file or default_path(os.environ))
    recent, feeds = RecentRecords(time.time), LiveFeeds()
    try:
        ingest = ingest_of(feeds, config, positions=positions, tap=recent.keep)

        async def take(newest: Config) -> None:
            await ingest.reconfigure(feeds.of(newest), newest.servers)

        manager = ServiceManager(os.environ)
        reloader = Reloader(
            source,
            config,
            take,
            health=ingest.config_health,
            crashes=ingest.crashes,
            around=manager.reloading,
        )
        reloading = Reloading(reloader, manager, reload_over_http)
        await _serve(ingest, recent, config, "serving on %s/metrics", reloading)
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
    families = SnapshotCollector(snapshot, ingest.state(snapshot), None).collect()
    return text_of(families, open_metrics=False).decode()


async def replay(path: Path, config: Config) -> None:
    """Serves a recording at the speed it was made; after its end, its last instant."""
    source = RecordingSource(path)
    recent = RecentRecords(source.now)
    ingest = Ingest((Feed(source),), mapper=StageMapper(()), clock=source.now, tap=recent.keep)
    await _serve(ingest, recent, config, f"replaying {path} on %s/metrics")
