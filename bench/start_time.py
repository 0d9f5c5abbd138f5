"""From the start of the process to its first whole scrape, with 1 GB of journal behind it.

    .venv/bin/python -m bench.start_time [--quick]

The journal is written first: rotating files, every fifth entry a prompt of 5 kB that does not
compress, the server's arguments at the beginning of the launch. A scrape is whole when the journal
is read, all 8 GPUs answer, and the model that those arguments name is shown. Each start is timed
in two ways: without a saved position (the exporter's first life), and with one.
"""

from __future__ import annotations

import base64
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.played_server import (
    STAGES,
    configuration,
    rhythmic_gpus,
    write_batch_line,
    write_other_line,
)
from bench.rows import Row, run_alone
from tests.journal_writer import JournalWriter
from tests.running import RunningExporter

BYTES, QUICK_BYTES = 1_000_000_000, 50_000_000
FILE_BYTES = 128 << 20
"""journald's own largest file (SystemMaxFileSize=)."""
STARTS, QUICK_STARTS = 5, 2
BAR_SECONDS = 1.0
PROMPT_BYTES = 5000
LOOK_EVERY_SECONDS = 0.01
MOST_SECONDS = 60.0
MODEL = "/models/kimi"
ARGUMENTS = (
    f"[2026-11-30 10:00:00] server_args=ServerArgs(model_path='{MODEL}', tp_size=1, pp_size=8)"
)
_BATCH = 5000


def size_of(directory: Path) -> int:
    """Bytes of the journal's files."""
    return sum(path.stat().st_size for path in directory.iterdir())


def fill(writer: JournalWriter, size: int) -> int:
    """Writes until the journal is that large; returns the number of entries."""
    rng = random.Random(8)
    prompt = base64.b64encode(rng.randbytes(1 << 20)).decode()
    number = 0
    while size_of(writer.directory) < size:
        for _ in range(_BATCH):
            number += 1
            if number % 5 == 0:
                start = rng.randrange(len(prompt) - PROMPT_BYTES)
                text = f"Receive: obj=GenerateReqInput(text='{number}{prompt[start : start + PROMPT_BYTES]}')"
                writer.write(text, pid=3999, cmdline="python -m sglang.launch_server")
            elif number % 5 == 1:
                write_other_line(writer, number)
            else:
                write_batch_line(writer, number)
        writer.send()
    return number


def start(folder: Path, config: Path, environment: dict[str, str]) -> float:
    """Seconds from the start of one life to its first whole scrape."""
    began = time.monotonic()
    with RunningExporter(["serve", "--config", str(config)], folder, environment) as running:
        while True:
            metrics = running.metrics()
            whole = (
                metrics.total("exporter_source_up") == 2  # the journal and the GPUs
                and metrics.total("gpu_up") == STAGES
                and len(metrics.matching("gpu_memory_used_bytes")) == STAGES
                and bool(metrics.matching("info", model=MODEL))
            )
            if whole:
                taken = time.monotonic() - began
                running.terminate()
                return taken
            if time.monotonic() > began + MOST_SECONDS:
                raise RuntimeError(f"no whole scrape within {MOST_SECONDS:g} s: {running.said}")
            time.sleep(LOOK_EVERY_SECONDS)


def lives(folder: Path, starts: int, size: int) -> tuple[list[float], list[float], str]:
    """Starts of new exporters, starts of one that comes back, and how large the journal was."""
    config = configuration(folder, folder / "journal")
    environment = rhythmic_gpus(folder / "nvml").environment(measured_costs=True)
    with JournalWriter(folder / "journal", max_file_bytes=FILE_BYTES) as writer:
        writer.write(ARGUMENTS, pid=3999, cmdline="python -m sglang.launch_server")
        entries = fill(writer, size)
        writer.flush()
        about = f"{entries:,} entries, {size_of(writer.directory) / 1e9:.2f} GB"
    first, again = list[float](), list[float]()
    for number in range(starts):
        home = folder / f"life-{number}"
        home.mkdir()
        first.append(start(home, config, environment))
        again.append(start(home, config, environment))
    return first, again, about


def measure(quick: bool) -> list[Row]:
    """Medians, and the longest beside them."""
    with tempfile.TemporaryDirectory() as directory:
        size, starts = (QUICK_BYTES, QUICK_STARTS) if quick else (BYTES, STARTS)
        first, again, about = lives(Path(directory), starts, size)
    rows = []
    for name, taken in (("first life", first), ("with a saved position", again)):
        middle = statistics.median(taken)
        bar = f"{BAR_SECONDS:.1f} s"
        what = f"start to the first whole scrape, {about} of journal behind, {name}"
        ours = f"{middle:.2f} s (longest of {len(taken)}: {max(taken):.2f} s)"
        rows.append(Row(what, ours, "", bar_text=bar, met=middle <= BAR_SECONDS))
    return rows


if __name__ == "__main__":
    sys.exit(run_alone(measure, __doc__))
