"""An hour at fifty times the real log rate with eight GPUs: exact counters, nothing grows.

    SOAK_HOUR_SECONDS=120 .venv/bin/python -m pytest -m soak -s --timeout=0 tests/soak/test_hour.py

Real rate, of a busy PP8 server (a pass of a stage takes 3.6 ms, `decode_log_interval` 40, about one
request of 256 tokens begins a second): 8 / (0.0036 s * 40) = 56 decode lines, 8 prefill lines (one
a stage and request) and 1 of the web server, together 65 lines a second.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fake_nvml import FakeNvml
from tests.journal_lives import (
    MAIN,
    MAIN_PID,
    STAGES,
    UNIT,
    Counts,
    counts_of,
    decode_line,
    stamped,
)
from tests.journal_writer import JournalWriter, journal_remote
from tests.running import Metrics, RunningExporter

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(0),
    pytest.mark.skipif(journal_remote() is None, reason="no systemd-journal-remote"),
]

SECONDS = float(os.environ.get("SOAK_HOUR_SECONDS", "3600"))
WARM_UP_SECONDS = 600.0
REAL_LINES_PER_SECOND = {"decode": 56, "prefill": 8, "web": 1}
TIMES_REAL = 50
LINES_PER_SECOND = TIMES_REAL * sum(REAL_LINES_PER_SECOND.values())
LINES_A_FILE = 100_000
TICK_SECONDS = 0.1
LONGEST_SLOPE_MB_PER_HOUR = 1.0
MEGABYTE = 1e6
PROC = Path("/proc")


# --- the server --------------------------------------------------------------------------------


class FastServer:
    """Writes a busy server's lines to a real journal and knows what they have to count as.

    Attributes:
        expected: In the words of `counts_of`, and ("tokens" or "requests", mode, pp_rank).
        most_bytes: The most the journal has taken on the disk.
    """

    def __init__(self, writer: JournalWriter, seed: int) -> None:
        self.expected: Counts = Counter()
        self.most_bytes = 0
        self._writer = writer
        self._chance = random.Random(seed)
        self._kinds, self._weights = zip(*REAL_LINES_PER_SECOND.items(), strict=True)
        self._archived: list[tuple[Path, int]] = []

    @property
    def lines(self) -> int:
        return self.expected["lines",]

    def start(self) -> None:
        self._write(stamped("server_args={'pp_size': 8, 'tp_size': 1}"))
        for rank in range(STAGES):
            self._prefill(rank)
        self._write(stamped("The server is fired up and ready to roll!"))
        self._writer.flush()

    def write(self, lines: int) -> None:
        """Writes lines of the real mixture; one in a thousand is forged or journald's own."""
        chance = self._chance
        for kind in chance.choices(self._kinds, self._weights, k=lines):
            rank = chance.randrange(STAGES)
            if chance.random() < 0.001:
                self._refused_or_suppressed(rank)
            elif kind == "decode":
                self._decode(rank)
            elif kind == "prefill":
                self._prefill(rank)
            else:
                self._write('INFO:     127.0.0.1:9 - "POST /generate HTTP/1.1" 200 OK')
        self._writer.send()

    def rotate_and_vacuum(self, read: float) -> None:
        """Begins a new file, and deletes those that were read whole but for the newest of them."""
        archived = self._writer.rotate()
        assert archived is not None
        self._archived.append((archived, self.lines))
        self.most_bytes = max(self.most_bytes, _size(self._writer.directory))
        while len(self._archived) > 1 and self._archived[0][1] <= read:
            self._archived.pop(0)[0].unlink()

    def _decode(self, rank: int) -> None:
        running = self._chance.randrange(1, 40)
        self._batch(decode_line(rank, running), "decode", rank, running)

    def _prefill(self, rank: int) -> None:
        new_seqs, tokens = self._chance.randrange(1, 5), self._chance.randrange(1, 8193)
        line = stamped(
            f"Prefill batch, #new-seq: {new_seqs}, #new-token: {tokens}, #cached-token: 0, "
            f"token usage: 0.05, #running-req: 3, #queue-req: 0, cuda graph: False",
            rank,
        )
        self._batch(line, "prefill", rank, new_seqs)
        self.expected["tokens", "prefill", str(rank)] += tokens

    def _batch(self, text: str, mode: str, rank: int, requests: int) -> None:
        self._write(text, pid=200 + rank, cmdline=f"sglang::scheduler_PP{rank}")
        self.expected[mode, str(rank)] += 1
        self.expected["requests", mode, str(rank)] += requests

    def _refused_or_suppressed(self, rank: int) -> None:
        kind = self._chance.randrange(3)
        if kind == 0:
            self._write(decode_line(rank))
            self.expected["rejected", "not_scheduler"] += 1
        elif kind == 1:
            title = f"sglang::scheduler_PP{(rank + 1) % STAGES}"
            self._write(decode_line(rank), pid=300, cmdline=title)
            self.expected["rejected", "rank_mismatch"] += 1
        else:
            self._writer.write_suppressed(7)
            self.expected["suppressed",] += 7

    def _write(self, text: str, pid: int = MAIN_PID, cmdline: str = MAIN) -> None:
        self._writer.write(text, pid=pid, cmdline=cmdline)
        self.expected["lines",] += 1


def _size(folder: Path) -> int:
    """On the disk: journal files are allocated ahead."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def shown_counts(metrics: Metrics) -> Counts:
    """What a scrape shows of what the server expects."""
    counts = counts_of(metrics)
    for (_, labels), value in metrics.matching("stage_prefill_tokens_total").items():
        if dict(labels)["origin"] == "computed":
            counts["tokens", "prefill", dict(labels)["pp_rank"]] = round(value)
    for (_, labels), value in metrics.matching("stage_batch_requests_sum").items():
        counts["requests", dict(labels)["mode"], dict(labels)["pp_rank"]] = round(value)
    return +counts


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


def slope_per_hour(looks: list[Look], figure: Callable[[Look], float]) -> float:
    """By least squares, after the first ten minutes."""
    later = [each for each in looks if each.at >= min(WARM_UP_SECONDS, SECONDS / 6)]
    times = [each.at / 3600 for each in later]
    return statistics.linear_regression(times, [figure(each) for each in later]).slope


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
        with RunningExporter(arguments, tmp_path, fake.environment()) as exporter:
            exporter.wait_for(lambda seen: healthy(seen) and len(seen.matching("gpu_up")) == STAGES)
            looks, ill = live(server, exporter)
            writer.flush()
            seen = exporter.wait_for(
                lambda seen: seen.total("exporter_journal_lines_total") >= server.lines
            )
            observed = seen.matching("gpu_observed_seconds_total", signal="utilization").values()
            counted, expected = shown_counts(seen), +server.expected
            said = exporter.said
    judge(looks, ill, counted, expected)
    print(f"journal on the disk at most {server.most_bytes / MEGABYTE:.0f} MB")
    assert min(observed) >= SECONDS - 5
    assert "Traceback" not in said


def live(server: FastServer, exporter: RunningExporter) -> tuple[list[Look], int]:
    """Writes and scrapes on the beat; the looks taken, and how many scrapes showed trouble."""
    began = time.monotonic()
    looks: list[Look] = []
    minute: list[Look] = []
    ill, slowest, rotate_at = 0, 0.0, LINES_A_FILE
    written, scrape_at = 0, 1.0
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
            if server.lines >= rotate_at:
                server.rotate_and_vacuum(seen.total("exporter_journal_lines_total"))
                rotate_at = server.lines + LINES_A_FILE
            if int(at / 60) > len(looks) // 60 and len(minute) > 1:
                print_minute(minute, seen, slowest)
                looks += minute
                minute, slowest = [], 0.0
        time.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - began - at)))
    return looks + minute, ill


def judge(looks: list[Look], ill: int, counted: Counts, expected: Counts) -> None:
    """The verdict in one line, then the assertions."""
    lost, doubled = sum((expected - counted).values()), sum((counted - expected).values())
    later = [each.fds for each in looks if each.at >= min(WARM_UP_SECONDS, SECONDS / 6)]
    slope = slope_per_hour(looks, lambda each: each.rss) / MEGABYTE
    anonymous = slope_per_hour(looks, lambda each: each.anonymous) / MEGABYTE
    print(
        f"{expected['lines',]:,} lines: {lost} counts lost, {doubled} doubled; "
        f"{len(looks)} scrapes, {ill} of them with a source down or a gap; "
        f"fds {min(later)} to {max(later)}; RSS {slope:+.2f} MB/h (anonymous {anonymous:+.2f})"
    )
    assert counted == expected
    assert ill == 0
    if SECONDS >= 3600:
        assert abs(slope_per_hour(looks, lambda each: each.fds)) < 1
        assert slope < LONGEST_SLOPE_MB_PER_HOUR
    else:
        print(f"too short to judge slopes: {SECONDS:g} s")
