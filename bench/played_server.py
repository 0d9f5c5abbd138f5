"""A server that prints, GPUs in a rhythm, and the exporter beside them: what measurements watch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.fake_nvml import FakeNvml
from tests.journal_writer import JournalWriter
from tests.running import RunningExporter

STAGES = 8
LINES_PER_SECOND = 50
UNIT = "sglang.service"
_TICK_SECONDS = 0.02
STDOUT_FIELDS = {
    "PRIORITY": 6,
    "SYSLOG_FACILITY": 3,
    "_UID": 997,
    "_GID": 997,
    "_COMM": "python",
    "_EXE": "/usr/bin/python3.11",
    "_CAP_EFFECTIVE": 0,
    "_SELINUX_CONTEXT": "unconfined",
    "_SYSTEMD_CGROUP": "/system.slice/sglang.service",
    "_SYSTEMD_SLICE": "system.slice",
    "_MACHINE_ID": "fedcba9876543210fedcba9876543210",
    "_HOSTNAME": "gpu-host",
    "_RUNTIME_SCOPE": "system",
}
"""What journald adds to a line of a unit's stdout, beside what `JournalWriter` writes itself."""


def batch_line(number: int, stages: int = STAGES) -> tuple[int, str]:
    """(pp_rank, message) of the n-th batch line: four decode lines, then a prefill line."""
    rank, now = number // 5 % stages, time.gmtime()
    head = f"[{time.strftime('%Y-%m-%d %H:%M:%S', now)} PP{rank}]"
    if number % 5 == 4:
        return rank, (
            f"{head} Prefill batch, #new-seq: {1 + number % 3}, #new-token: {512 + number % 4096}, "
            f"#cached-token: {number % 128}, token usage: 0.31, #running-req: {number % 9}, "
            f"#queue-req: {number % 7}, cuda graph: False"
        )
    return rank, (
        f"{head} Decode batch, #running-req: {1 + number % 8}, #token: {30_000 + number % 9000}, "
        f"token usage: 0.{number % 100:02d}, cuda graph: True, "
        f"gen throughput (token/s): {870 + number % 100 / 100:.2f}, #queue-req: {number % 7}"
    )


def other_line(number: int) -> str:
    """A line that is none of the scheduler's: an access log."""
    return (
        f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] INFO:     10.0.{number % 256}.7:{40000 + number % 20000}"
        ' - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    )


def write_batch_line(
    writer: JournalWriter, number: int, stages: int = STAGES, realtime_us: int | None = None
) -> None:
    """Writes the n-th batch line as its stage's scheduler; at that instant, or now."""
    rank, message = batch_line(number, stages)
    writer.write(
        message,
        pid=4000 + rank,
        cmdline=f"sglang::scheduler_PP{rank}",
        unit=UNIT,
        realtime_us=realtime_us,
        **STDOUT_FIELDS,
    )


def write_other_line(writer: JournalWriter, number: int, realtime_us: int | None = None) -> None:
    """Writes the n-th line of the server's main process."""
    writer.write(
        other_line(number),
        pid=3999,
        cmdline="python -m sglang.launch_server",
        unit=UNIT,
        realtime_us=realtime_us,
        **STDOUT_FIELDS,
    )


def rhythmic_gpus(path: Path, gpus: int = STAGES) -> FakeNvml:
    """A fake driver whose cards work in passes, each a little more than the one before."""
    fake = FakeNvml(path, gpus=gpus)
    for gpu in range(gpus):
        fake.control.gpu[gpu].period_seconds = 0.3
        fake.control.gpu[gpu].duty = 0.4 + 0.4 * gpu / gpus
        fake.control.gpu[gpu].pids[0] = os.getpid()  # a card that serves has a process
    return fake


def configuration(folder: Path, journal: Path, stages: int = STAGES) -> Path:
    """A configuration file: one server in that journal, stage n on GPU n."""
    config = folder / "exporter.yaml"
    places = ", ".join(f"{rank}: [{rank}]" for rank in range(stages))
    config.write_text(
        f"journal_directory: {journal}\nservers:\n  - unit: {UNIT}\n"
        f"    facts: {{pp_size: {stages}}}\n    stages: {{{places}}}\n"
    )
    return config


class Printing(threading.Thread):
    """Writes batch lines at an even rate: one at a time up to 50 a second."""

    def __init__(self, writer: JournalWriter, lines_per_second: float, stages: int) -> None:
        super().__init__(daemon=True)
        self._writer, self._rate, self._stages = writer, lines_per_second, stages
        self._over = threading.Event()
        self.written = 0

    def run(self) -> None:
        """Until `end`."""
        began = time.monotonic()
        while not self._over.wait(_TICK_SECONDS):
            due = int((time.monotonic() - began) * self._rate)
            for number in range(self.written, due):
                write_batch_line(self._writer, number, self._stages)
            self._writer.send()
            self.written = due

    def end(self) -> None:
        """Returns when nothing more is written."""
        self._over.set()
        self.join()


@contextmanager
def played(
    folder: Path,
    *,
    stages: int = STAGES,
    lines_per_second: float = LINES_PER_SECOND,
    costs: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningExporter]:
    """The exporter with its defaults; `costs`: driver calls burn what an H200's do."""
    folder.mkdir(exist_ok=True)
    fake = rhythmic_gpus(folder / "nvml", stages)
    fake.control.xid_nap_ms = 1000  # the real driver's wait for XIDs blocks
    journal = folder / "journal"
    config = configuration(folder, journal, stages)
    given = fake.environment(measured_costs=costs) | dict(environment or {})
    with (
        JournalWriter(journal) as writer,
        RunningExporter(["serve", "--config", str(config)], folder, given) as running,
    ):
        printing = Printing(writer, lines_per_second, stages)
        printing.start()
        try:
            yield running
        finally:
            printing.end()
