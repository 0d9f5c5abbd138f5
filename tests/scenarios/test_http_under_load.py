"""Slow clients do not keep a scraper from its answers, and leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.http_load import Toll, scrape, slow_clients
from tests.running import RunningExporter
from tests.soak.test_http import open_files

SLOW = 20
PER_SECOND = 20.0
SECONDS = 2.0


async def load(port: int) -> Toll:
    async with slow_clients(port, SLOW, random.Random(7)):
        return await scrape(port, PER_SECOND, SECONDS)


def test_every_scrape_beside_slow_clients_is_answered(tmp_path: Path) -> None:
    with RunningExporter(["serve", "--stdin", "--no-nvml"], tmp_path) as exporter:
        exporter.metrics()
        said, files = exporter.said, open_files(exporter.pid)
        toll = asyncio.run(load(exporter.port))
        assert toll.errors == []
        assert len(toll.seconds) >= SECONDS * PER_SECOND
        exporter.wait_until(lambda: open_files(exporter.pid) <= files)
        assert exporter.said == said
        assert exporter.terminate() == 0
