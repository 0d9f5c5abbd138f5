"""Where the exporter's own time goes: by part of the code, and how often its loop wakes up.

    .venv/bin/python -m bench.main_thread [--seconds 60] [--calls 25]

8 GPUs, 8 stages, 50 lines a second, a scrape every 5 s; calls of the fake driver cost nothing. One
run as it is, for processor time and wake-ups; one under a profiler, for the share of each part.
"""

from __future__ import annotations

import argparse
import pstats
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.played_server import STAGES, played
from bench.processor_time import processor_seconds, thread_seconds
from bench.scraper import Scraper
from tests.running import RunningExporter

SCRAPE_SECONDS = 5.0
SETTLE_SECONDS = 15.0
BAR_PERCENT = 2.0

PROFILED = """
import atexit, cProfile, os, signal
profile = cProfile.Profile()
atexit.register(lambda: (profile.disable(), profile.dump_stats(os.environ["EXPORTER_PROFILE"])))
signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
"""
"""Starts with the interpreter, so that the exporter itself knows nothing of it."""

PARTS = {
    "NVML (hand-over)": ("sources/gpus",),
    "journal": ("sources/journal", "systemd", "positions.py"),
    "log lines": ("exporter/sglang", "admission.py"),
    "activity": ("exporter/activity/",),
    "pipeline": ("exporter/pipeline", "statistics.py"),
    "samples and gauges": ("sample_rings", "gpu_state", "stage_state", "stage_map"),
    "newest ten minutes": ("exporter/recent", "recordings"),
    "scrape": ("collector", "web.py", "prometheus_client", "gzip", "aiohttp", "api.py"),
}


def scraped(running: RunningExporter, seconds: float) -> None:
    """Lets time pass as Prometheus would."""
    scraper, beat = Scraper(running.port), time.monotonic()
    ends_at = beat + seconds
    while beat < ends_at:
        scraper.scrape()
        beat += SCRAPE_SECONDS
        time.sleep(max(0.0, min(beat, ends_at) - time.monotonic()))


def wake_ups(pid: int) -> dict[bool, int]:
    """How often the main thread (`True`) and the others gave up their core of their own accord."""
    counts = {True: 0, False: 0}
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        for line in (task / "status").read_text().split("\n"):
            if line.startswith("voluntary_ctxt_switches:"):
                counts[int(task.name) == pid] += int(line.split()[1])
    return counts


def as_it_is(folder: Path, seconds: float) -> None:
    """Prints processor time and wake-ups."""
    with played(folder) as running:
        running.wait_for(lambda metrics: metrics.total("gpu_up") == STAGES)
        scraped(running, SETTLE_SECONDS)
        began, process = time.monotonic(), processor_seconds(running.pid)
        threads, woken = thread_seconds(running.pid), wake_ups(running.pid)
        inside = running.metrics().total("exporter_nvml_call_seconds_sum")
        scraped(running, seconds)
        elapsed = time.monotonic() - began
        inside = running.metrics().total("exporter_nvml_call_seconds_sum") - inside
        spent = 100 * (processor_seconds(running.pid) - process) / elapsed
        main = 100 * (thread_seconds(running.pid)[running.pid] - threads[running.pid]) / elapsed
        now = wake_ups(running.pid)
    print("| thread | CPU, % of a core | wake-ups a second |\n|---|---|---|")
    print(f"| main | {main:.2f} | {(now[True] - woken[True]) / elapsed:.0f} |")
    print(f"| others | {spent - main:.2f} | {(now[False] - woken[False]) / elapsed:.0f} |")
    own = spent - 100 * inside / elapsed
    print(f"\nwithout the driver's own time: {own:.2f} % of a core (bar: {BAR_PERCENT:g} %)")


def profiled(folder: Path, seconds: float) -> pstats.Stats:
    """The main thread's time once it has settled."""
    folder.mkdir()
    profile = folder / "profile"
    (folder / "sitecustomize.py").write_text(PROFILED)
    environment = {"EXPORTER_PROFILE": str(profile), "PYTHONPATH": str(folder)}
    with played(folder, environment=environment) as running:
        scraped(running, SETTLE_SECONDS)
        running.process.send_signal(10)  # SIGUSR1
        scraped(running, seconds)
        running.terminate()
    return pstats.Stats(str(profile))


def shares(
    stats: Mapping[tuple[str, int, str], tuple[int, int, float, float, object]],
) -> dict[str, float]:
    """Own time by part of the code, as shares of the profiled thread's time."""
    spent = dict.fromkeys((*PARTS, "event loop and the rest"), 0.0)
    for (file, _, name), row in stats.items():
        if "poll" in name or "select" in name:
            continue  # waiting, not work
        part = next(
            (p for p, words in PARTS.items() if any(word in file for word in words)),
            "event loop and the rest",
        )
        spent[part] += row[2]
    total = sum(spent.values())
    return {part: value / total for part, value in spent.items()}


def main() -> int:
    """Both runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--calls", type=int, default=0, help="functions to name, dearest first")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        as_it_is(Path(directory) / "as-it-is", given.seconds)
        stats = profiled(Path(directory) / "profiled", min(given.seconds, 30.0))
    print("\n| part of the main thread | share |\n|---|---|")
    parts = shares(stats.stats)  # type: ignore[attr-defined]  # typeshed leaves it out
    for part, share in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"| {part} | {share:.0%} |")
    if given.calls:
        stats.sort_stats("tottime").print_stats(given.calls)
    return 0


if __name__ == "__main__":
    sys.exit(main())
