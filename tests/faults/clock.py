"""The wall clock of a running host is set: exporter, journal and driver see it step together."""

from __future__ import annotations

import functools
import mmap
import subprocess
import tempfile
from pathlib import Path

from tests.fake_nvml import FakeNvml
from tests.fast_server import FastServer, shown_counts
from tests.faults import Outcome, beside
from tests.faults.journal import LINES, gaps, lines
from tests.journal_lives import STAGES, UNIT
from tests.journal_writer import JournalWriter
from tests.running import Metrics, RunningExporter

HOUR_SECONDS = 3600
_SOURCE = Path(__file__).with_name("clock_shift.c")


@functools.cache
def _library() -> Path:
    built = Path(tempfile.mkdtemp(prefix="clock-shift-")) / "clock_shift.so"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*command, "-o", str(built), str(_SOURCE)], check=True)
    return built


class ShiftedClock:
    """The wall clock of the processes started with `environment`."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(_library()), "CLOCK_SHIFT": str(path)}
        self.seconds = 0

    def step(self, seconds: int) -> None:
        self.seconds += seconds
        self._shared[:] = self.seconds.to_bytes(8, "little", signed=True)


STEPS = (-HOUR_SECONDS, HOUR_SECONDS, HOUR_SECONDS)
GAUGES = ("gpu_utilization_ratio", "gpu_power_watts", "stage_gpu_utilization_ratio")


def stepped(folder: Path, times: int) -> Outcome:
    """Set back by an hour, forward again, and forward by another hour; lines after each step.

    While it is set back nothing is known of the GPUs; none of their old gauges may be shown.
    """
    fake, clock = FakeNvml(folder / "nvml", STAGES), ShiftedClock(folder / "clock")
    args = ["serve", f"--unit={UNIT}", f"--journal-dir={folder / 'journal'}", "--from-start"]
    unknown = known_again = 0
    with JournalWriter(folder / "journal") as writer:
        server = FastServer(writer, seed=11)
        server.start()
        with RunningExporter(args, folder, fake.environment() | clock.environment) as exporter:
            exporter.wait_for(_gauges)
            for step in STEPS * times:
                clock.step(step)
                writer.set_clock(clock.seconds)
                server.write(LINES)
                writer.flush()
                if step < 0:
                    exporter.wait_for(lambda seen: not _gauges(seen))
                    unknown += 1
                else:
                    before = _observed(exporter.metrics())
                    exporter.wait_for(lambda seen: _gauges(seen) and _observed(seen) > before)  # noqa: B023
                    known_again += 1
                seen = exporter.wait_for(lambda seen: lines(seen) >= server.lines)
    return beside(
        server.expected,
        shown_counts(seen),
        gaps=(0, round(gaps(seen))),
        times_GPUs_unknown=(times, unknown),
        and_known_again=(2 * times, known_again),
    )


def _gauges(metrics: Metrics) -> bool:
    return any(metrics.matching(name) for name in GAUGES)


def _observed(metrics: Metrics) -> float:
    """Seconds seen of the GPU that was seen least."""
    seen = metrics.matching("gpu_observed_seconds_total", signal="utilization")
    return min(seen.values(), default=0.0)
