"""What watching 8 GPUs costs a process: the exporter, nvitop-exporter, and a bare loop in C.

    .venv/bin/python -m bench.gpu_cost [--quick]

All three run at once for ten minutes, each with a fake driver of its own whose calls burn what they
cost on an H200 (`tests/fake_nvml`; nvmlDeviceGetPcieThroughput, which nvitop asks, waits 20 ms
besides, as it does there). The exporter runs with its defaults and reads 50 lines
a second of 8 stages besides; nvitop-exporter runs at its default interval of a second. Both are
scraped every 5 s. The loop makes the exporter's calls at its rhythm.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peers import PeerAbsentError, nvitop_exporter
from bench.played_server import STAGES, played, rhythmic_gpus
from bench.processor_time import memory_mib, processor_seconds, thread_seconds
from bench.rows import Row, run_alone
from bench.scraper import Scraper
from tests.fake_nvml import FakeNvml, functions
from tests.running import Metrics, RunningExporter

SECONDS, QUICK_SECONDS = 600, 10
SETTLE_SECONDS, QUICK_SETTLE_SECONDS = 20, 4
SCRAPE_SECONDS = 5.0
_SOURCE = Path(__file__).with_name("nvml_loop.c")


def driver(path: Path) -> FakeNvml:
    """Eight cards; the wait for XIDs blocks, as the real one does."""
    fake = rhythmic_gpus(path)
    fake.control.xid_nap_ms = 1000
    return fake


class BareLoop:
    """The same calls from C, for a number of whole seconds."""

    def __init__(self, folder: Path, seconds: int, environment: Mapping[str, str]) -> None:
        program = folder / "nvml_loop"
        command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", str(_SOURCE)]
        subprocess.run([*command, "-o", str(program), "-ldl"], check=True)
        self._seconds = seconds
        self._process = subprocess.Popen(
            [str(program), str(seconds)], env=dict(environment), stdout=subprocess.PIPE, text=True
        )

    def cpu_percent(self) -> float:
        """Of a core, over its whole life; waits for its end."""
        said, _ = self._process.communicate()
        return 100 * float(said) / self._seconds

    def close(self) -> None:
        """Ends it, done or not."""
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Used:
    """A process over the measured stretch; shares of a core in percent."""

    cpu: float
    rss_mib: float
    main_thread: float = 0.0
    other_threads: float = 0.0
    samples_per_second: float = 0.0


class Meter:
    """One process from now on."""

    def __init__(self, pid: int) -> None:
        self._pid, self._began = pid, time.monotonic()
        self._process, self._threads = processor_seconds(pid), thread_seconds(pid)

    def used(self, samples: float = 0.0) -> Used:
        """Since it was made."""
        seconds = time.monotonic() - self._began
        now = thread_seconds(self._pid)
        grown = {tid: spent - self._threads.get(tid, 0.0) for tid, spent in now.items()}
        main = grown.pop(self._pid)
        return Used(
            100 * (processor_seconds(self._pid) - self._process) / seconds,
            memory_mib(self._pid),
            100 * main / seconds,
            100 * sum(grown.values()) / seconds,
            samples / seconds,
        )


def samples(metrics: Metrics) -> float:
    """Of all signals so far."""
    return metrics.total("exporter_samples_total")


def watch(
    running: RunningExporter, peer: tuple[int, int] | None, quick: bool
) -> tuple[Used, Used | None, list[float]]:
    """Both over the same stretch; the scrapes' seconds are the exporter's."""
    settle, seconds = (QUICK_SETTLE_SECONDS, QUICK_SECONDS) if quick else (SETTLE_SECONDS, SECONDS)
    running.wait_for(lambda metrics: metrics.total("gpu_up") == STAGES)
    time.sleep(settle)
    before = samples(running.metrics())
    own = Scraper(running.port)
    other = Scraper(peer[1]) if peer else None
    meters = Meter(running.pid), Meter(peer[0]) if peer else None
    began, beat, taken = time.monotonic(), time.monotonic(), list[float]()
    while beat < began + seconds:
        taken.append(own.scrape()[0])
        if other is not None:
            other.scrape()
        beat += SCRAPE_SECONDS
        time.sleep(max(0.0, beat - time.monotonic()))
    theirs = meters[1].used() if meters[1] else None
    return meters[0].used(samples(running.metrics()) - before), theirs, taken


def calls_per_second(fake: FakeNvml, seconds: float) -> str:
    """What a process asked its driver, most asked first."""
    counts = {name: fake.calls(name) / seconds for name in functions()}
    asked = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.removeprefix('nvmlDevice')} {n:.1f}" for name, n in asked if n >= 0.1)


def measure(quick: bool) -> list[Row]:
    """All at once."""
    absent, peer = "", None
    seconds = QUICK_SECONDS if quick else SECONDS
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        folder = Path(directory)
        nvitops, bare = driver(folder / "nvml-nvitop"), driver(folder / "nvml-loop")
        try:
            given = nvitops.environment(measured_costs=True)
            process, port = stack.enter_context(nvitop_exporter(folder / "nvitop.txt", given))
            peer = process.pid, port
            started = time.monotonic()
        except PeerAbsentError as error:
            absent = str(error)
        running = stack.enter_context(played(folder / "exporter", costs=True))
        loop = BareLoop(folder, seconds, bare.environment(measured_costs=True))
        stack.callback(loop.close)
        ours, theirs, _ = watch(running, peer, quick)
        in_c = loop.cpu_percent()
        if peer:
            print(f"nvitop asks, a second: {calls_per_second(nvitops, time.monotonic() - started)}")
    print(
        f"exporter: main thread {ours.main_thread:.2f} %, other threads {ours.other_threads:.2f} %, "
        f"without the calls' own {in_c:.2f} %: {ours.cpu - in_c:.2f} % of a core"
    )
    return _rows(ours, theirs, in_c, absent, seconds)


def _rows(ours: Used, theirs: Used | None, in_c: float, absent: str, seconds: float) -> list[Row]:
    cpu = f"CPU of the process, {STAGES} GPUs, defaults, {ours.samples_per_second:.0f} samples/s"
    memory = f"RSS after {seconds / 60:.1f} minutes"
    rows = []
    if theirs is None:
        rows.append(Row(cpu, f"{ours.cpu:.2f} %", absent))
        rows.append(Row(memory, f"{ours.rss_mib:.1f} MiB", absent))
    else:
        against = f"nvitop-exporter, {STAGES} a second: {theirs.cpu:.2f} %"
        rows.append(Row(cpu, f"{ours.cpu:.2f} %", against, ours.cpu / theirs.cpu, 0.5))
        against = f"nvitop-exporter: {theirs.rss_mib:.1f} MiB"
        rows.append(Row(memory, f"{ours.rss_mib:.1f} MiB", against, ours.rss_mib / theirs.rss_mib, 0.8))  # fmt: skip
    against = f"the same calls from C: {in_c:.2f} %"
    rows.append(Row("NVML part: CPU of the sampling thread", f"{ours.other_threads:.2f} %", against, ours.other_threads / in_c, 1.5))  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(run_alone(measure, __doc__))
