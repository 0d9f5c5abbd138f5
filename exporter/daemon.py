"""Serves until a signal; the exporter itself: configuration, sources, positions, reload."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from typing import NamedTuple

from exporter.config import Config
from exporter.crashes import Crashes, kept_running
from exporter.ingest import Ingest
from exporter.live_sources import LiveFeeds, ingest_of
from exporter.positions import PositionStore, default_path
from exporter.recent.records import RecentRecords
from exporter.reload import TASK, ConfigSource, Reloader
from exporter.reload_request import Reload
from exporter.service_manager import ServiceManager
from exporter.stopping import caught, ignore_signals, wait_for_no_thread
from exporter.web import WebServer

log = logging.getLogger(__name__)


async def serve_until_stopped(
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
        await serve_until_stopped(ingest, recent, config, "serving on %s/metrics", reloading)
    finally:
        positions.close()
