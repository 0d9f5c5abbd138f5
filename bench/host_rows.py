"""Every row that needs no GPU, measured beside its peer in the same run: `make bench`.

    .venv/bin/python -m bench.host_rows [--quick] [--only NAME ...] [--output docs/images]

About 20 minutes; `--quick` shows in one or two that everything works, its figures mean nothing.
Each subject is a script of its own in `bench/`. One that fails is named and costs its own rows.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import sys
import time
import traceback
from pathlib import Path

from bench import (
    bytecode,
    gpu_cost,
    growth,
    log_cost,
    log_latency,
    memory_floor,
    scrape_time,
    start_time,
)
from bench.rows import HEADER, Measure, Row

IMAGES = Path("docs/images")


def subjects(output: Path | None) -> dict[str, Measure]:
    """By name, in their order; the longest last."""
    return {
        "log_cost": log_cost.measure,
        "log_latency": log_latency.measure,
        "scrape_time": scrape_time.measure,
        "start_time": start_time.measure,
        "memory_floor": memory_floor.measure,
        "growth": functools.partial(growth.measure, output=output),
        "gpu_cost": gpu_cost.measure,
    }


def measured(name: str, measure: Measure, quick: bool) -> list[Row]:
    """The rows of one subject; a row that says so, where it failed."""
    began = time.monotonic()
    print(f"\n{name} ...", flush=True)
    try:
        rows = list(measure(quick))
    except Exception:  # noqa: BLE001  # the others are still worth their time
        traceback.print_exc()
        rows = [Row(name, "failed, see above", "")]
    for row in rows:
        print(row.line())
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return rows


def main() -> int:
    """One command, one table; exit code 1 if a subject failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = subjects(None)
    parser.add_argument("--quick", action="store_true", help="short: shows only that it works")
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", default=list(known))
    parser.add_argument("--output", type=Path, help="folder for the picture of growth")
    given = parser.parse_args()
    bytecode.write()
    before = os.getloadavg()[0]
    rows = [
        row
        for name, measure in subjects(given.output).items()
        if name in given.only
        for row in measured(name, measure, given.quick)
    ]
    print(
        f"\n{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release()}"
    )
    print(f"load before it {before:.1f}, after it {os.getloadavg()[0]:.1f}\n")
    print(HEADER)
    for row in rows:
        print(row.line())
    return int(any(row.ours.startswith("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
