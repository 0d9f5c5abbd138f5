"""What a Python service of this kind begins with: memory and processor time by library, and ours.

    .venv/bin/python -m bench.memory_floor [--quick]

Each line is a process that does what the one before does, and more; the last is the exporter after
its first scrape, with neither GPU nor journal. Each is started a few times: the median counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.processor_time import memory_mib, processor_seconds
from bench.rows import Row, run_alone
from tests.running import RunningExporter

STARTS, QUICK_STARTS = 7, 2
_SERVES = """
import asyncio
from aiohttp import web

async def answer(request):
    return web.Response(text="ok")

async def serve():
    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    reader, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(b"GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    assert (await reader.read()).endswith(b"ok")
    writer.close()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""
_WAITS = "print('ready', flush=True)\ninput()"
_LIMIT = "… and aiohttp.web, one request answered"
LADDER = {
    "Python": _WAITS,
    "… and asyncio, which brings TLS": f"import asyncio\n{_WAITS}",
    _LIMIT: _SERVES,
    "… and prometheus_client, PyYAML, pynvml": f"import prometheus_client, yaml, pynvml\n{_SERVES}",
}
"""What runs; each prints a line when it is there."""
Cost = tuple[float, float]
"""Resident MiB and seconds on a core."""


def cost_of(code: str) -> Cost:
    """A process that runs it, once it is there."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"it did not come up: {code}")
            return memory_mib(process.pid), processor_seconds(process.pid)
        finally:
            process.kill()


def cost_of_exporter() -> Cost:
    """The exporter after its first scrape."""
    with tempfile.TemporaryDirectory() as folder:
        given = ["serve", "--stdin", "--no-nvml"]
        with RunningExporter(given, Path(folder)) as running:
            running.metrics()
            return memory_mib(running.pid), processor_seconds(running.pid)


def median(costs: list[Cost]) -> Cost:
    """Of each."""
    return statistics.median(c[0] for c in costs), statistics.median(c[1] for c in costs)


def measure(quick: bool) -> list[Row]:
    """All in turn, so that what else the machine does meets all of them."""
    costs: dict[str, list[Cost]] = {name: [] for name in LADDER}
    ours: list[Cost] = []
    for _ in range(QUICK_STARTS if quick else STARTS):
        for name, code in LADDER.items():
            costs[name].append(cost_of(code))
        ours.append(cost_of_exporter())
    print("| what runs | RSS | processor time |\n|---|---|---|")
    found = {name: median(taken) for name, taken in costs.items()}
    for name, (mib, seconds) in {**found, "the exporter after a scrape": median(ours)}.items():
        print(f"| {name} | {mib:.1f} MiB | {seconds:.2f} s |")
    (mib, seconds), (least_mib, least_seconds) = median(ours), found[_LIMIT]
    against = "a server of aiohttp.web that answered once"
    return [
        Row("RSS after the start, no GPU, no journal", f"{mib:.1f} MiB", f"{against}: {least_mib:.1f} MiB", mib / least_mib),
        Row("processor time of the start", f"{seconds:.2f} s", f"{against}: {least_seconds:.2f} s", seconds / least_seconds),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_alone(measure, __doc__))
