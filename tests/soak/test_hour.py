"""An hour at fifty times the real log rate with eight GPUs: exact counters, nothing grows.

    SOAK_HOUR_SECONDS=120 .venv/bin/python -m pytest -m soak -s --timeout=0 tests/soak/test_hour.py

tests/fast_server.py says what the real rate is.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fake_nvml import FakeNvml
from tests.fast_server import REAL_LINES_PER_SECOND, FastServer, shown_counts
from tests.journal_lives import STAGES, UNIT, Counts
from tests.journal_writer import JournalWriter, journal_remote
from tests.running import Metrics, RunningExporter

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(0),
    pytest.mark.skipif(journal_remote() is None, reason="no systemd-journal-remote"),
]

SECONDS = float(os.environ.get("SOAK_HOUR_SECONDS", "3600"))
WARM_UP_SECONDS = 600.0
TIMES_REAL = 50
LINES_PER_SECOND = TIMES_REAL * sum(REAL_LINES_PER_SECOND.values())
LINES_A_FILE = 100_000
TICK_SECONDS = 0.1
LONGEST_SLOPE_MB_PER_HOUR = 1.0
MEGABYTE = 1e6
PROC = Path("/proc")


# --- the journal -------------------------------------------------------------------------------


class BoundedJournal:
    """Begins a new file now and then and keeps the disk free of what was read.

    Attributes:
        most_bytes: The most it has taken on the disk, where files are allocated ahead.
    """

    def __init__(self, writer: JournalWriter) -> None:
        self.most_bytes = 0
        self._writer = writer
        self._archived: list[tuple[Path, int]] = []
        self._rotate_at = LINES_A_FILE

    def tidy(self, written: int, read: float) -> None:
        """Rotates when it is time; deletes files read whole, but for the newest of them."""
        if written < self._rotate_at:
            return
        self._rotate_at = written + LINES_A_FILE
        archived = self._writer.rotate()
        assert archived is not None
        self._archived.append((archived, written))
        used = sum(path.stat().st_blocks for path in self._writer.directory.iterdir()) * 512
        self.most_bytes = max(self.most_bytes, used)
        while len(self._archived) > 1 and self._archived[0][1] <= read:
            self._archived.pop(0)[0].unlink()


# --- the process -------------------------------------------------------------------------------


class Look(NamedTuple):
    """One look at the exporter's process."""

    at: float
    rss: int
    anonymous: int
    """Of `rss`; the rest is mapped files: libraries, and the journal itself."""
    fds: int
    threads: int
    cpu_seconds: float


def look(pid: int, at: float) -> Look:
    folder = PROC / str(pid)
    status = dict(
        line.split(":", 1) for line in (folder / "status").read_text().split("\n") if line
    )
    ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    return Look(
        at,
        int(status["VmRSS"].split()[0]) * 1024,
        int(status["RssAnon"].split()[0]) * 1024,
        len(list((folder / "fd").iterdir())),
        int(status["Threads"]),
        sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
    )


def settled(looks: list[Look]) -> list[Look]:
    """After the first ten minutes."""
    return [each for each in looks if each.at >= min(WARM_UP_SECONDS, SECONDS / 6)]


def slope_per_hour(looks: list[Look], figure: Callable[[Look], float]) -> float:
    """By least squares, after the first ten minutes."""
    later = settled(looks)
    times = [each.at / 3600 for each in later]
    return statistics.linear_regression(times, [figure(each) for each in later]).slope


def floor_slope_per_hour(looks: list[Look]) -> float:
    """Median slope (Theil-Sen) between the lowest RSS of each minute after the first ten.

    The pages of the journal file that is read count as resident, too, up to 8 MiB by 8 MiB, until
    the next file begins: a saw whose height says nothing about the exporter.
    """
    floor: dict[int, int] = {}
    for each in settled(looks):
        minute = int(each.at // 60)
        floor[minute] = min(each.rss, floor.get(minute, each.rss))
    pairs = itertools.combinations(sorted(floor.items()), 2)
    slopes = [(later - earlier) / (end - start) for (start, earlier), (end, later) in pairs]
    return 60 * statistics.median(slopes) if slopes else 0.0


# --- the hour ----------------------------------------------------------------------------------


def configuration(folder: Path, journal: Path) -> Path:
    stages = ", ".join(f"{rank}: [{rank}]" for rank in range(STAGES))
    path = folder / "exporter.yaml"
    path.write_text(
        f"journal_directory: {journal}\nservers:\n  - unit: {UNIT}\n    stages: {{{stages}}}\n"
    )
    return path


def print_minute(minute: list[Look], seen: Metrics, slowest: float) -> None:
    first, last = minute[0], minute[-1]
    cpu = 100 * (last.cpu_seconds - first.cpu_seconds) / (last.at - first.at)
    rss = statistics.fmean(each.rss for each in minute) / MEGABYTE
    anonymous = statistics.fmean(each.anonymous for each in minute) / MEGABYTE
    lines = seen.total("exporter_journal_lines_total")
    print(
        f"| {last.at / 60:.0f} | {lines:,.0f} | {len(seen)} | {last.fds} | {last.threads} "
        f"| {rss:.2f} | {anonymous:.2f} | {cpu:.1f} | {slowest * 1000:.0f} |",
        flush=True,
    )


def healthy(metrics: Metrics) -> bool:
    """All sources are read, and nothing was lost."""
    up = metrics.matching("exporter_source_up").values()
    return set(up) == {1.0} and metrics.total("exporter_journal_gaps_total") == 0


def test_an_hour_at_fifty_times_the_real_rate_loses_nothing_and_grows_nothing(
    tmp_path: Path,
) -> None:
    fake = FakeNvml(tmp_path / "nvml", STAGES)
    journal = tmp_path / "journal"
    arguments = ["serve", "--config", str(configuration(tmp_path, journal)), "--from-start"]
    print(f"\n{LINES_PER_SECOND:,} lines a second ({TIMES_REAL} x real) for {SECONDS:g} s")
    print(
        "| minute | lines | series | fds | threads | RSS MB | of it anonymous | CPU % | slowest scrape ms |"
    )
    print("|---" * 9 + "|")
    with JournalWriter(journal) as writer:
        server = FastServer(writer, seed=7)
        server.start()
        writer.flush()
        bounded = BoundedJournal(writer)
        with RunningExporter(arguments, tmp_path, fake.environment()) as exporter:
            exporter.wait_for(lambda seen: healthy(seen) and len(seen.matching("gpu_up")) == STAGES)
            looks, ill = live(server, bounded, exporter)
            writer.flush()
            seen = exporter.wait_for(
                lambda seen: seen.total("exporter_journal_lines_total") >= server.lines
            )
            observed = seen.matching("gpu_observed_seconds_total", signal="utilization").values()
            counted, expected = shown_counts(seen), +server.expected
            said = exporter.said
    if ill:
        print(said)
    print(f"journal on the disk at most {bounded.most_bytes / MEGABYTE:.0f} MB")
    judge(looks, ill, counted, expected)
    assert min(observed) >= SECONDS - 5
    assert "Traceback" not in said


def live(
    server: FastServer, bounded: BoundedJournal, exporter: RunningExporter
) -> tuple[list[Look], int]:
    """Writes and scrapes on the beat; the looks taken, and how many scrapes showed trouble."""
    began = time.monotonic()
    looks: list[Look] = []
    minute: list[Look] = []
    ill, slowest = 0, 0.0
    written, scrape_at, minute_ends_at = 0, 1.0, 60.0
    while (at := time.monotonic() - began) < SECONDS:
        due = int(at * LINES_PER_SECOND) - written
        server.write(due)
        written += due
        if at >= scrape_at:
            asked = time.monotonic()
            seen = exporter.metrics()
            slowest = max(slowest, time.monotonic() - asked)
            ill += not healthy(seen)
            minute.append(look(exporter.pid, at))
            scrape_at = max(scrape_at + 1.0, at)
            bounded.tidy(server.lines, seen.total("exporter_journal_lines_total"))
            if at >= minute_ends_at and len(minute) > 1:
                print_minute(minute, seen, slowest)
                looks += minute
                minute, slowest, minute_ends_at = [], 0.0, minute_ends_at + 60.0
        time.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - began - at)))
    return looks + minute, ill


def judge(looks: list[Look], ill: int, counted: Counts, expected: Counts) -> None:
    """The verdict in one line, then the assertions."""
    lost, doubled = sum((expected - counted).values()), sum((counted - expected).values())
    fds = [each.fds for each in settled(looks)]
    floor = floor_slope_per_hour(looks) / MEGABYTE
    anonymous = slope_per_hour(looks, lambda each: each.anonymous) / MEGABYTE
    squares = slope_per_hour(looks, lambda each: each.rss) / MEGABYTE
    print(
        f"{expected['lines',]:,} lines: {lost} counts lost, {doubled} doubled; "
        f"{len(looks)} scrapes, {ill} of them with a source down or a gap; "
        f"fds {min(fds)} to {max(fds)}; RSS {floor:+.2f} MB/h (lowest of each minute; by least "
        f"squares anonymous {anonymous:+.2f}, all with the mapped journal {squares:+.2f})"
    )
    assert counted == expected
    assert ill == 0
    if SECONDS >= 3600:
        assert abs(slope_per_hour(looks, lambda each: each.fds)) < 1
        assert max(floor, anonymous) < LONGEST_SLOPE_MB_PER_HOUR
    else:
        print(f"too short to judge slopes: {SECONDS:g} s")
