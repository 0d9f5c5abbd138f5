"""The program `demo`: the exporter beside a simulated server and simulated GPUs."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

from exporter.config import Config, ServerConfig
from exporter.daemon import serve_until_stopped
from exporter.live_sources import live_ingest
from exporter.recent.records import RecentRecords
from exporter.simulator import DemoServer
from exporter.stopping import first_of

log = logging.getLogger(__name__)


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
        serve_until_stopped(
            ingest, recent, config, f"demo of {scenario!r} on %s (metrics on /metrics)"
        ),
        name="serve",
    )
    try:
        await first_of(serving, running)
    finally:
        await world.close()
