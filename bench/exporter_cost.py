"""What the exporter costs: 8 GPUs with power rings, 8 stages, 50 lines a second, a scrape every 5 s.

    .venv/bin/python -m bench.exporter_cost [--seconds 60]

Three runs against the tests' fake driver and a real journal: calls that cost nothing (what is ours
alone), calls that burn what they cost on an H200 (held against those calls' own time), and the
first again under a profiler for the share of each part. Needs no GPU.
"""

from __future__ import annotations

import argparse
import pstats
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fake_nvml import FakeNvml
from tests.journal_writer import JournalWriter
from tests.running import Metrics, RunningExporter

NANOSECONDS = 1e9
STAGES = 8
LINES_PER_SECOND = 50
SCRAPE_SECONDS = 5.0
SETTLE_SECONDS = 5.0

PROFILED = """
import atexit, cProfile, os
profile = cProfile.Profile()
atexit.register(lambda: (profile.disable(), profile.dump_stats(os.environ["EXPORTER_PROFILE"])))
profile.enable()
"""
"""Starts with the interpreter, so that the exporter itself knows nothing of it."""

PARTS = {
    "NVML (hand-over)": ("sources/gpus",),
    "journal": ("sources/journal", "systemd", "positions.py"),
    "log lines": ("exporter/sglang", "admission.py"),
    "activity": ("exporter/activity/",),
    "pipeline": ("exporter/pipeline", "statistics.py"),
    "samples and gauges": ("sample_rings", "gpu_state", "stage_state", "stage_map"),
    "scrape": ("collector", "web", "exposition", "prometheus_client", "gzip", "aiohttp", "api.py"),
}


def lines(second: int) -> Iterator[tuple[int, str]]:
    """The batch lines of one second: (pp_rank, message)."""
    for number in range(LINES_PER_SECOND):
        rank = number % STAGES
        yield (
            rank,
            f"[2026-11-30 10:00:{second % 60:02d} PP{rank}] Decode batch, #running-req: 4, #token: "
            f"{30_000 + second}, token usage: 0.31, cuda graph: True, gen throughput (token/s): "
            f"{870 + number / 100:.2f}, #queue-req: 0",
        )


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Time on a core of the main thread and of the others, to the nanosecond (schedstat)."""
    main = others = 0.0
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        spent = int((task / "schedstat").read_text().split()[0]) / NANOSECONDS
        if int(task.name) == pid:
            main += spent
        else:
            others += spent
    return main, others


def driver_seconds(metrics: Metrics) -> float:
    """Time inside calls of the driver's library so far."""
    return metrics.total("exporter_nvml_call_seconds_sum")


def run(
    folder: Path, seconds: float, *, costs: bool, profile: Path | None = None
) -> dict[str, float]:
    """One run; CPU in percent of a core."""
    folder.mkdir()
    fake = FakeNvml(folder / "nvml", gpus=STAGES)
    for rank in range(STAGES):
        fake.control.gpu[rank].period_seconds = 0.3
        fake.control.gpu[rank].duty = 0.4 + 0.05 * rank
    journal = folder / "journal"
    environment = fake.environment(measured_costs=costs)
    if profile is not None:
        (folder / "sitecustomize.py").write_text(PROFILED)
        environment |= {"EXPORTER_PROFILE": str(profile), "PYTHONPATH": str(folder)}
    config = folder / "exporter.yaml"
    stages = ", ".join(f"{rank}: [{rank}]" for rank in range(STAGES))
    config.write_text(
        f"journal_directory: {journal}\nservers:\n  - unit: sglang.service\n"
        f"    stages: {{{stages}}}\n"
    )
    with (
        JournalWriter(journal) as writer,
        RunningExporter(["serve", "--config", str(config)], folder, environment) as running,
    ):
        started = time.monotonic()
        before: tuple[float, float, float] | None = None
        second = 0
        measured_from = started
        while (now := time.monotonic() - started) < SETTLE_SECONDS + seconds:
            for rank, message in lines(second):
                writer.write(
                    message,
                    pid=4000 + rank,
                    cmdline=f"sglang::scheduler_PP{rank}",
                    unit="sglang.service",
                )
            writer.flush()
            if second % SCRAPE_SECONDS == 0:
                scrape = running.metrics()
                if before is None and now >= SETTLE_SECONDS:
                    before = (*cpu_seconds(running.pid), driver_seconds(scrape))
                    measured_from = time.monotonic()
            second += 1
            time.sleep(max(0.0, started + second - time.monotonic()))  # a script
        scrape = running.metrics()
        elapsed = time.monotonic() - measured_from
        main, others = cpu_seconds(running.pid)
        running.terminate()
    assert before is not None, "the run was too short to settle"
    return {
        "main thread": 100 * (main - before[0]) / elapsed,
        "driver threads": 100 * (others - before[1]) / elapsed,
        "driver calls": 100 * (driver_seconds(scrape) - before[2]) / elapsed,
        "lines": scrape.total("exporter_journal_lines_total"),
    }


def shares(profile: Path) -> dict[str, float]:
    """Own time by part of the code, as shares of the profiled thread's time."""
    spent = dict.fromkeys((*PARTS, "event loop and the rest"), 0.0)
    for (file, _, name), row in pstats.Stats(str(profile)).stats.items():  # type: ignore[attr-defined]  # typeshed leaves it out
        own = row[2]
        if "poll" in name or "select" in name:
            continue  # waiting, not work
        part = next(
            (p for p, words in PARTS.items() if any(word in file for word in words)),
            "event loop and the rest",
        )
        spent[part] += own
    total = sum(spent.values())
    return {part: value / total for part, value in spent.items()}


def main() -> int:
    """Runs all three and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        free = run(folder / "free", seconds, costs=False)
        paid = run(folder / "paid", seconds, costs=True)
        profile = folder / "profile"
        run(folder / "profiled", min(seconds, 30.0), costs=False, profile=profile)
        parts = shares(profile)
    own = free["main thread"] + free["driver threads"] - free["driver calls"]
    whole = paid["main thread"] + paid["driver threads"]
    print("| run | main thread | driver threads | inside driver calls |\n|---|---|---|---|")
    for name, row in (("calls cost nothing", free), ("calls cost what an H200's do", paid)):
        print(
            f"| {name} | {row['main thread']:.2f} % | {row['driver threads']:.2f} % "
            f"| {row['driver calls']:.2f} % |"
        )
    print(f"\nwithout the driver's own time: {own:.2f} % of a core (bar: 2 %)")
    print(
        f"with it: {whole:.2f} %, {whole / paid['driver calls']:.2f} x the calls' own (bar: 1.3 x)"
    )
    print("\n| part of the main thread | share |\n|---|---|")
    for part, share in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"| {part} | {share:.0%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
