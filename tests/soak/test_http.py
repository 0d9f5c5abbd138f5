"""Five hundred clients that hold the exporter up, and 100,000 requests no client should send."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.http_fuzz import fuzz
from tests.http_load import Toll, scrape, slow_clients
from tests.journal_lives import STAGES, UNIT, BusyServer
from tests.journal_writer import JournalWriter
from tests.running import RunningExporter
from tests.scenarios.test_no_line_is_lost import pytestmark as needs_journal

pytestmark = [needs_journal, pytest.mark.soak, pytest.mark.timeout(1800)]

SLOW = 500
PER_SECOND = 200.0
SECONDS = 60.0
REQUESTS = 100_000


@contextmanager
def busy_exporter(folder: Path) -> Iterator[RunningExporter]:
    """Eight GPUs, eight stages, 200 log lines a second."""
    fake = FakeNvml(folder / "nvml", gpus=STAGES)
    journal = folder / "journal"
    stages = ", ".join(f"{rank}: [{rank}]" for rank in range(STAGES))
    config = folder / "exporter.yaml"
    config.write_text(
        f"journal_directory: {journal}\nservers:\n  - unit: {UNIT}\n    stages: {{{stages}}}\n"
    )
    args = ["serve", "--config", str(config)]
    with (
        JournalWriter(journal) as writer,
        BusyServer(writer, seed=7),
        RunningExporter(args, folder, fake.environment()) as exporter,
    ):
        exporter.wait_for(
            lambda shown: shown.value("gpu_up", gpu="7") and shown.total("stage_batches_total") > 99
        )
        yield exporter


def rss_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()
    return int(fields[0]) / 1024


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def watch(pid: int, most: Counter[str]) -> None:
    """Keeps the highest figures of a process, looking four times a second."""
    while True:
        most["rss"] = max(most["rss"], round(rss_mib(pid)))
        most["files"] = max(most["files"], open_files(pid))
        await asyncio.sleep(0.25)


async def load(exporter: RunningExporter, slow: int, seconds: float) -> tuple[Toll, Counter[str]]:
    most: Counter[str] = Counter()
    watching = asyncio.create_task(watch(exporter.pid, most))
    async with slow_clients(exporter.port, slow, random.Random(7)):
        toll = await scrape(exporter.port, PER_SECOND, seconds)
    watching.cancel()
    return toll, most


def refused(exporter: RunningExporter) -> str:
    shown = exporter.metrics().matching("exporter_http_refused_total")
    return ", ".join(
        f"{dict(labels)['reason']} {value:.0f}" for (_, labels), value in shown.items()
    )


def test_slow_clients_do_not_hold_up_the_honest(tmp_path: Path) -> None:
    with busy_exporter(tmp_path) as exporter:
        files = open_files(exporter.pid)
        print(
            "\n| slow clients | scrapes | p50 | p99 | longest | errors | RSS before, most, after "
            "| files before, most |\n|---|---|---|---|---|---|---|---|"
        )
        for slow in (0, SLOW):
            before = rss_mib(exporter.pid)
            toll, most = asyncio.run(load(exporter, slow, SECONDS))
            p50, p99, longest = (1000 * toll.quantile(share) for share in (0.5, 0.99, 1.0))
            print(
                f"| {slow} | {len(toll.seconds):,} | {p50:.1f} ms | {p99:.1f} ms | {longest:.1f} ms "
                f"| {len(toll.errors)} | {before:.0f}, {most['rss']}, {rss_mib(exporter.pid):.0f} MiB "
                f"| {files}, {most['files']} |",
                flush=True,
            )
        print("refused:", refused(exporter))
        exporter.wait_until(lambda: open_files(exporter.pid) <= files)
        assert toll.errors == []
        assert p99 < 50, "the bar of the issue"
        assert most["rss"] < before + 100
        assert exporter.terminate() == 0
        assert "Traceback" not in exporter.said


def test_no_request_makes_an_error_of_the_server(tmp_path: Path) -> None:
    with busy_exporter(tmp_path) as exporter:
        said, files, before = exporter.said, open_files(exporter.pid), rss_mib(exporter.pid)
        statuses = asyncio.run(fuzz(exporter.port, REQUESTS, random.Random(7)))
        exporter.wait_until(lambda: open_files(exporter.pid) <= files)
        print(f"\n{REQUESTS:,} requests, answers by status:", dict(sorted(statuses.items())))
        print("refused:", refused(exporter))
        print(f"RSS {before:.0f} MiB before, {rss_mib(exporter.pid):.0f} MiB after")
        words = re.findall("WARNING|ERROR|CRITICAL|Traceback", exporter.said.removeprefix(said))
        assert words == []
        assert exporter.terminate() == 0
