"""What viewers of the live page cost: CPU and scrape times with 20 of them, and with none beside.

    .venv/bin/python -m bench.live_page_viewers [--viewers 20] [--seconds 60] [--rounds 3]

One exporter with 8 GPUs and 50 lines a second against the tests' fake driver and a real journal.
Stretches without a viewer and with them take turns, so that what else the machine does meets both;
in each a scrape is timed every half second. Needs no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from bench.played_server import played
from bench.processor_time import processor_seconds, thread_seconds
from tests.running import RunningExporter

WARM_UP_SECONDS = 45.0
"""Levels are learned, and a whole window for the verdict is there."""
SCRAPE_SECONDS = 0.5


@dataclass
class Stretch:
    """What was measured in the stretches of one kind."""

    seconds: float = 0.0
    main: float = 0.0
    others: float = 0.0
    scrapes: list[float] = field(default_factory=list)

    def row(self, name: str) -> str:
        """A row of the table."""
        ms = sorted(1000 * each for each in self.scrapes)
        return (
            f"| {name} | {100 * self.main / self.seconds:.2f} % "
            f"| {100 * self.others / self.seconds:.2f} % | {statistics.median(ms):.1f} ms "
            f"| {ms[int(0.95 * (len(ms) - 1))]:.1f} ms | {ms[-1]:.1f} ms |"
        )


class Viewers:
    """Pages that are open: each reads its stream as a browser does."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self._stop = threading.Event()
        self.bytes_read = 0

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        async with session.get("/api/v1/live") as answer:
            async for chunk in answer.content.iter_any():
                self.bytes_read += len(chunk)

    async def _all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            self._url, timeout=timeout, connector=connector
        ) as session:
            tasks = [asyncio.create_task(self._watch(session)) for _ in range(self._count)]
            await asyncio.to_thread(self._stop.wait)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts they watch."""
        self._stop.clear()
        thread = threading.Thread(target=lambda: asyncio.run(self._all()))
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def both(pid: int) -> tuple[float, float]:
    """Processor time of the main thread and of all others."""
    main = thread_seconds(pid)[pid]
    return main, processor_seconds(pid) - main


def measure(running: RunningExporter, into: Stretch, seconds: float) -> None:
    """One stretch."""
    before, began = both(running.pid), time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        running.get("/metrics")
        into.scrapes.append(time.monotonic() - now)
        time.sleep(SCRAPE_SECONDS)
    after = both(running.pid)
    into.seconds += time.monotonic() - began
    into.main += after[0] - before[0]
    into.others += after[1] - before[1]


def main() -> int:
    """Runs all rounds and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    bare, watched = Stretch(), Stretch()
    with tempfile.TemporaryDirectory() as folder, played(Path(folder)) as running:
        viewers = Viewers(running.url, given.viewers)
        time.sleep(WARM_UP_SECONDS)
        for _ in range(given.rounds):
            measure(running, bare, given.seconds)
            with viewers.watching():
                measure(running, watched, given.seconds)
    print("| viewers | main thread | other threads | scrape, median | 95 % | longest |")
    print("|---|---|---|---|---|---|")
    print(bare.row("0"))
    print(watched.row(str(given.viewers)))
    added = (watched.main + watched.others) / watched.seconds
    added -= (bare.main + bare.others) / bare.seconds
    rate = viewers.bytes_read / watched.seconds / given.viewers / 1000
    print(f"\n{given.viewers} viewers add {100 * added:.2f} % of a core (bar: 5 %)")
    print(f"each is sent {rate:.1f} kB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
