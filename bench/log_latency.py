"""How long after a line was written its metric shows it: the exporter against mtail.

    .venv/bin/python -m bench.log_latency [--quick]

50 lines a second go into a real journal and, the same text, into a file that mtail tails. At random
instants a line of a stage of its own is written to both, and one of the two is asked by the same
poller until it shows it, the exporter and mtail in turn. The journal's way includes
systemd-journal-remote, which writes it; the file's is one write.
"""

from __future__ import annotations

import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from bench.peers import PeerAbsentError, debian_program, free_port, serving
from bench.played_server import LINES_PER_SECOND, UNIT, batch_line
from bench.rows import Row, run_alone
from bench.scraper import Scraper, percentile
from tests.journal_writer import JournalWriter
from tests.running import RunningExporter

PROBES, QUICK_PROBES = 200, 20
PROBED_STAGE = 8
MOST_PAUSE_SECONDS = 0.5
POLL_SECONDS = 0.004
WAIT_SECONDS = 10.0
PROGRAM = Path(__file__).with_name("sglang.mtail")


class Log:
    """What the server prints, into a journal and a file at once; for several threads."""

    def __init__(self, writer: JournalWriter, text: IO[str]) -> None:
        self._writer, self._text = writer, text
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._printing = threading.Thread(target=self._print, daemon=True)

    def write(self, rank: int, message: str) -> float:
        """Writes one line and returns when that was done."""
        with self._lock:
            self._writer.write(message, pid=4000 + rank, cmdline=f"sglang::scheduler_PP{rank}", unit=UNIT)  # fmt: skip
            self._writer.send()
            self._text.write(message + "\n")
            self._text.flush()
            return time.monotonic()

    def begin(self) -> None:
        """Starts the 50 lines a second."""
        self._printing.start()

    def end(self) -> None:
        """Stops them."""
        self._over.set()
        self._printing.join()

    def _print(self) -> None:
        number = 0
        while not self._over.wait(1 / LINES_PER_SECOND):
            self.write(*batch_line(number, PROBED_STAGE))
            number += 1


def shown(pattern: str) -> Callable[[bytes], float]:
    """Reads one counter out of an exposition, 0 if it is absent."""
    compiled = re.compile(pattern.encode(), re.MULTILINE)

    def read(text: bytes) -> float:
        found = compiled.search(text)
        return float(found[1]) if found else 0.0

    return read


OURS = shown(
    rf'^sglang_pipeline_stage_batches_total{{[^}}]*mode="decode"[^}}]*pp_rank="{PROBED_STAGE}"[^}}]*}} (\S+)'
)
THEIRS = shown(rf'^batches_total{{[^}}]*pp_rank="{PROBED_STAGE}"[^}}]*}} (\S+)')


def latency(
    scraper: Scraper, read: Callable[[bytes], float], written_at: float, count: int
) -> float:
    """Seconds from the writing to the end of the first answer that shows it."""
    while True:
        _, text = scraper.scrape()
        now = time.monotonic()
        if read(text) >= count:
            return now - written_at
        if now > written_at + WAIT_SECONDS:
            raise RuntimeError(f"line {count} was not shown within {WAIT_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def probe(
    log: Log, ours: Scraper, theirs: Scraper | None, probes: int
) -> tuple[list[float], list[float]]:
    """Latencies of the exporter and of the peer, in turn, at random instants."""
    rng = random.Random(8)
    found: tuple[list[float], list[float]] = ([], [])
    _, message = batch_line(0, PROBED_STAGE)
    for number in range(2 * probes if theirs else probes):
        time.sleep(rng.uniform(0.05, MOST_PAUSE_SECONDS))
        written_at = log.write(PROBED_STAGE, message.replace("PP0]", f"PP{PROBED_STAGE}]"))
        if theirs and number % 2:
            found[1].append(latency(theirs, THEIRS, written_at, number + 1))
        else:
            found[0].append(latency(ours, OURS, written_at, number + 1))
    return found


def run(
    folder: Path, probes: int, mtail_port: int | None, text: IO[str]
) -> tuple[list[float], list[float]]:
    """The exporter beside mtail, or alone."""
    journal = folder / "journal"
    arguments = ["serve", "--no-nvml", "--journal-dir", str(journal), "--unit", UNIT]
    with JournalWriter(journal) as writer:
        writer.write("the server starts", cmdline="python -m sglang.launch_server")
        writer.flush()
        with RunningExporter(arguments, folder) as running:
            running.wait_for(lambda metrics: metrics.total("exporter_source_up"))
            log = Log(writer, text)
            log.begin()
            try:
                time.sleep(1.0)
                ours = Scraper(running.port, encoding="identity")
                theirs = Scraper(mtail_port, encoding="identity") if mtail_port else None
                return probe(log, ours, theirs, probes)
            finally:
                log.end()


def measure(quick: bool) -> list[Row]:
    """Median and p99."""
    probes = QUICK_PROBES if quick else PROBES
    absent = ""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "logs").mkdir()
        with (folder / "logs" / "server.log").open("w", encoding="utf-8") as text:
            try:
                port = free_port()
                command = [debian_program("mtail"), "--progs", str(PROGRAM), "--logs", text.name]
                command += ["--address", "127.0.0.1", "--port", str(port), "--logtostderr"]
                with serving(command, port, folder / "mtail.txt"):
                    ours, theirs = run(folder, probes, port, text)
            except PeerAbsentError as error:
                absent = str(error)
                ours, theirs = run(folder, probes, None, text)
    rows = []
    for name, share, bar in (("p99", 0.99, 1.0), ("median", 0.5, None)):
        own = percentile(ours, share)
        what = f"line written to visible in `/metrics`, {name} of {len(ours)}, at 50 lines/s"
        if theirs:
            peer = percentile(theirs, share)
            against = f"mtail on a file: {1e3 * peer:.0f} ms"
            rows.append(Row(what, f"{1e3 * own:.0f} ms", against, own / peer, bar))
        else:
            rows.append(Row(what, f"{1e3 * own:.0f} ms", absent))
    print(f"mean: exporter {1e3 * statistics.fmean(ours):.1f} ms")
    return rows


if __name__ == "__main__":
    sys.exit(run_alone(measure, __doc__))
