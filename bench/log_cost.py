"""What a line costs on its way into a metric: the exporter against `journalctl -o cat` and mtail.

    .venv/bin/python -m bench.log_cost [--quick]

One real journal of 200,000 entries with the fields journald adds, half of them batch lines, 100 a
second until now. Processor time (user and system,
start-up included) until all are counted and were scraped once. mtail reads a pipe one buffer a
poll, 4 MB/s at the best, so it gets what journalctl printed as a file; the time of both is added.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.peers import PeerAbsentError, debian_program
from bench.played_server import UNIT, write_batch_line, write_other_line
from bench.processor_time import processor_seconds
from bench.rows import Row, run_alone
from tests.journal_writer import JournalWriter
from tests.running import Metrics, RunningExporter

ENTRIES, QUICK_ENTRIES = 200_000, 20_000
ENTRIES_PER_SECOND = 100
ROUNDS = 3
PROGRAM = Path(__file__).with_name("sglang.mtail")

_READER = """
import asyncio, sys, time
from pathlib import Path
from exporter.sources.journal.source import JournalMatch, JournalSource
started = time.process_time()
async def read(directory, entries):
    match = JournalMatch(unit="sglang.service")
    source = JournalSource("sglang", match, lambda message: False, directory=directory, from_start=True)
    await source.open(None)
    reading = asyncio.create_task(source.run(lambda line: None))
    while source.health.lines < entries:
        await asyncio.sleep(0.01)
    reading.cancel()
asyncio.run(read(Path(sys.argv[1]), int(sys.argv[2])))
print(time.process_time() - started)
"""
"""The journal's source alone: every entry's message is looked at, none is kept; no parser."""


def write_journal(directory: Path, entries: int) -> None:
    """Every other entry a batch line; what 50 of them a second left until now."""
    first_us = int((time.time() - entries / ENTRIES_PER_SECOND) * 1e6)
    with JournalWriter(directory) as writer:
        for number in range(entries // 2):
            at_us = first_us + number * 2_000_000 // ENTRIES_PER_SECOND
            write_batch_line(writer, number, realtime_us=at_us)
            write_other_line(writer, number, realtime_us=at_us + 1)
        writer.flush()


def child_seconds(command: Sequence[str], output: Path) -> float:
    """Processor time of a program that runs to its end, threads included."""
    with output.open("wb") as stdout:
        process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


class Run:
    """One journal, read in every way."""

    def __init__(self, folder: Path, entries: int) -> None:
        self._folder, self._entries = folder, entries
        self._journal = folder / "journal"
        write_journal(self._journal, entries)
        self._text = folder / "journal.txt"
        self.start_up: list[float] = []

    def exporter(self) -> tuple[float, Metrics]:
        """Processor time until one scrape holds all, and that scrape."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            given = ["--journal-dir", str(self._journal), "--unit", UNIT, "--from-start"]
            with RunningExporter(["serve", "--no-nvml", *given], Path(folder)) as running:
                self.start_up.append(processor_seconds(running.pid))
                while True:
                    self._wait_until_it_rests(running.pid)
                    metrics = running.metrics()
                    if metrics.total("exporter_journal_lines_total") >= self._entries:
                        return processor_seconds(running.pid), metrics

    def _wait_until_it_rests(self, pid: int) -> None:
        """It is left alone while it works: each look costs it a scrape."""
        used, now = 0.0, processor_seconds(pid)
        while now - used > 0.01:
            time.sleep(0.25)
            used, now = now, processor_seconds(pid)

    def journalctl(self) -> float:
        """Processor time of printing the messages of the unit."""
        command = ["journalctl", "-D", str(self._journal), "-o", "cat", f"_SYSTEMD_UNIT={UNIT}"]
        return child_seconds(command, self._text)

    def mtail(self) -> tuple[float, Metrics]:
        """Processor time over what journalctl printed, and what it counted."""
        output = self._folder / "mtail.txt"
        flags = ["--one_shot", "--one_shot_format", "prometheus", "--address", "127.0.0.1"]
        command = [debian_program("mtail"), "--progs", str(PROGRAM), "--logs", str(self._text)]
        spent = child_seconds([*command, *flags, "--port", "0"], output)
        return spent, Metrics.parse(output.read_text())

    def reader(self) -> tuple[float, float]:
        """Processor time of the journal's source alone: in all, and without Python's start-up."""
        output = self._folder / "reader.txt"
        command = [sys.executable, "-c", _READER, str(self._journal), str(self._entries)]
        return child_seconds(command, output), float(output.read_text())


def counts(metrics: Metrics, prefix: str) -> dict[tuple[str, str], float]:
    """Batch lines by (pp_rank, mode), and prefill tokens by (pp_rank, origin)."""
    found = {}
    for name, label in (("batches_total", "mode"), ("prefill_tokens_total", "origin")):
        for (_, labels), value in metrics.matching(prefix + name).items():
            pairs = dict(labels)
            found[pairs["pp_rank"], pairs[label]] = value
    return found


def _compare(ours: dict[tuple[str, str], float], theirs: dict[tuple[str, str], float]) -> None:
    """Ends the run if the two did not count the same: then they did not do the same."""
    if different := {key for key in ours | theirs if ours.get(key, 0.0) != theirs.get(key, 0.0)}:
        told = {key: (ours.get(key), theirs.get(key)) for key in sorted(different)[:4]}
        raise RuntimeError(f"the exporter and mtail count differently (ours, theirs): {told}")


def measure(quick: bool) -> list[Row]:
    """All ways in turn, each round; medians."""
    entries, rounds = (QUICK_ENTRIES, 1) if quick else (ENTRIES, ROUNDS)
    ours, theirs, printed, read_all, read = [], [], [], [], []
    absent = None
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), entries)
        for _ in range(rounds):
            spent, metrics = run.exporter()
            ours.append(spent)
            printed.append(run.journalctl())
            try:
                of_mtail, counted = run.mtail()
            except PeerAbsentError as error:
                absent = str(error)
            else:
                theirs.append(printed[-1] + of_mtail)
                _compare(counts(metrics, "stage_"), counts(counted, ""))
            whole, without_start = run.reader()
            read_all.append(whole)
            read.append(without_start)
    own, print_only, start = map(statistics.median, (ours, printed, run.start_up))
    what = f"log to metrics, {entries:,} entries, half batch lines: CPU, start-up included"
    if theirs:
        peer = statistics.median(theirs)
        against = f"`journalctl -o cat` and mtail: {peer:.2f} s (the same counts)"
        rows = [Row(what, f"{own:.2f} s", against, own / peer, 0.75)]
        added = f"... start-up ({start:.2f} s) left out"
        rows.append(Row(added, f"{own - start:.2f} s", against, (own - start) / peer))
    else:
        rows = [Row(what, f"{own:.2f} s", absent or "")]
    rows.append(Row("... to", f"{own:.2f} s", f"`journalctl -o cat` alone: {print_only:.2f} s", own / print_only))  # fmt: skip
    reading, whole = statistics.median(read), statistics.median(read_all)
    against = f"`journalctl -o cat`: {print_only:.2f} s"
    what = "reading alone (the journal's source, every message looked at, none kept): CPU"
    rows.append(Row(what, f"{reading:.2f} s", against, reading / print_only, 0.6))
    what = "... with the start-up of Python"
    rows.append(Row(what, f"{whole:.2f} s", against, whole / print_only))
    return rows


if __name__ == "__main__":
    sys.exit(run_alone(measure, __doc__))
