"""How processor time and memory grow with stages and with lines, drawn in a picture.

    .venv/bin/python -m bench.growth [--quick] [--output docs/images]

1, 8 and 64 stages (a GPU each) at 50 lines a second, and 10, 1,000 and 10,000 lines a second of
8 stages and GPUs; calls of the fake driver cost nothing, so this is what is ours. A scrape every 5 s.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench import bytecode
from bench.growth_picture import Panel, picture
from bench.played_server import LINES_PER_SECOND, STAGES, played
from bench.processor_time import memory_mib, processor_seconds
from bench.rows import HEADER, Row
from bench.scraper import Scraper

SECONDS, QUICK_SECONDS = 30.0, 5.0
SETTLE_SECONDS, QUICK_SETTLE_SECONDS = 10.0, 2.0
SCRAPE_SECONDS = 5.0
STAGE_COUNTS = (1, 8, 64)
LINE_RATES = (10, 1000, 10_000)
PICTURE = "growth.svg"


@dataclass(frozen=True, slots=True)
class Point:
    """What one size cost."""

    size: int
    cpu_percent: float
    rss_mib: float
    lines_per_second: float


def point(stages: int, rate: float, quick: bool) -> Point:
    """One exporter of that size, measured after it settled."""
    settle, seconds = (QUICK_SETTLE_SECONDS, QUICK_SECONDS) if quick else (SETTLE_SECONDS, SECONDS)
    with (
        tempfile.TemporaryDirectory() as directory,
        played(Path(directory) / "exporter", stages=stages, lines_per_second=rate) as running,
    ):
        running.wait_for(lambda metrics: metrics.total("gpu_up") == stages)
        time.sleep(settle)
        scraper = Scraper(running.port)
        lines = running.metrics().total("exporter_journal_lines_total")
        began, before = time.monotonic(), processor_seconds(running.pid)
        beat = began
        while beat < began + seconds:
            scraper.scrape()
            beat += SCRAPE_SECONDS
            time.sleep(max(0.0, min(beat, began + seconds) - time.monotonic()))
        elapsed = time.monotonic() - began
        spent = processor_seconds(running.pid) - before
        read = running.metrics().total("exporter_journal_lines_total") - lines
        memory = memory_mib(running.pid)
    found = Point(stages, 100 * spent / elapsed, memory, read / elapsed)
    print(
        f"| {stages} | {found.lines_per_second:,.0f} | {found.cpu_percent:.2f} | {found.rss_mib:.1f} |",
        flush=True,
    )
    return found


def growth_row(what: str, points: list[Point]) -> Row:
    """From the middle size to the largest: how much faster than the size the cost grew."""
    middle, largest = points[-2], points[-1]
    sizes = largest.size / middle.size
    costs = largest.cpu_percent / middle.cpu_percent
    ours = f"{middle.cpu_percent:.2f} to {largest.cpu_percent:.2f} % of a core, {middle.rss_mib:.0f} to {largest.rss_mib:.0f} MiB"
    name = f"CPU from {middle.size:,} to {largest.size:,} {what}"
    return Row(name, ours, f"linear: {sizes:.1f} times", costs / sizes, 1.0)


def measure(quick: bool, output: Path | None = None) -> list[Row]:
    """All sizes, one after the other; draws the picture where a folder is given."""
    print("| stages | lines/s read | CPU, % of a core | RSS, MiB |\n|---|---|---|---|")
    by_stages = [point(stages, LINES_PER_SECOND, quick) for stages in STAGE_COUNTS]
    by_lines = [point(STAGES, rate, quick) for rate in LINE_RATES]
    by_lines = [replace(p, size=round(p.lines_per_second)) for p in by_lines]
    if output is not None:
        panels = [
            Panel(what, unit, [(p.size, value(p)) for p in points])
            for what, points in (("stages, a GPU each, 50 lines/s", by_stages), ("lines/s, 8 stages and GPUs", by_lines))
            for unit, value in (("% of a core", lambda p: p.cpu_percent), ("MiB resident", lambda p: p.rss_mib))
        ]  # fmt: skip
        output.mkdir(parents=True, exist_ok=True)
        (output / PICTURE).write_text(picture(panels))
    return [growth_row("stages", by_stages), growth_row("lines/s", by_lines)]


def main() -> int:
    """One command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--output", type=Path, help=f"folder for {PICTURE}")
    given = parser.parse_args()
    bytecode.write()
    rows = functools.partial(measure, output=given.output)(given.quick)
    print("\n" + HEADER)
    for row in rows:
        print(row.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
