"""How long a scrape takes at 50 a second: the exporter with 8 stages and 8 GPUs, and node_exporter.

    .venv/bin/python -m bench.scrape_time [--quick]

The same client scrapes both, in stretches that take turns, over one open connection, gzip accepted.
Meanwhile 50 lines a second are printed and the GPUs are sampled.
"""

from __future__ import annotations

import contextlib
import gzip
import sys
import tempfile
import time
from pathlib import Path

from bench.peers import PeerAbsentError, debian_program, free_port, serving
from bench.played_server import STAGES, played
from bench.rows import Row, run_alone
from bench.scraper import Scraper, percentile

SCRAPES_PER_SECOND = 50
STRETCH_SECONDS, QUICK_STRETCH_SECONDS = 10.0, 2.0
STRETCHES = 4
WARM_UP_SECONDS = 20.0
NODE_EXPORTER = "prometheus-node-exporter"


def stretch(scraper: Scraper, seconds: float) -> list[float]:
    """Scrapes on a beat; one that takes longer than the beat puts the next one off."""
    taken, beat = [], time.monotonic()
    for _ in range(int(seconds * SCRAPES_PER_SECOND)):
        time.sleep(max(0.0, beat - time.monotonic()))
        beat = max(beat + 1 / SCRAPES_PER_SECOND, time.monotonic())
        taken.append(scraper.scrape()[0])
    return taken


def about(scraper: Scraper) -> str:
    """How much is said."""
    _, body = scraper.scrape()
    text = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    series = sum(not line.startswith(b"#") for line in text.strip().split(b"\n"))
    return f"{series} series, {len(text) / 1000:.0f} kB"


def measure(quick: bool) -> list[Row]:
    """Stretches in turn."""
    seconds = QUICK_STRETCH_SECONDS if quick else STRETCH_SECONDS
    ours, theirs, absent = list[float](), list[float](), ""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        folder = Path(directory)
        port, peer = free_port(), None
        try:
            command = [debian_program(NODE_EXPORTER), f"--web.listen-address=127.0.0.1:{port}"]
            stack.enter_context(serving(command, port, folder / "node_exporter.txt"))
            peer = Scraper(port)
        except PeerAbsentError as error:
            absent = str(error)
        running = stack.enter_context(played(folder / "exporter"))
        running.wait_for(lambda metrics: metrics.total("gpu_up") == STAGES)
        time.sleep(1.0 if quick else WARM_UP_SECONDS)
        own = Scraper(running.port)
        for _ in range(STRETCHES):
            ours += stretch(own, seconds)
            theirs += stretch(peer, seconds) if peer else []
        sizes = about(own), about(peer) if peer else ""
    rows = []
    for name, share in (("median", 0.5), ("p99", 0.99)):
        mine = percentile(ours, share)
        what = f"scrape, {STAGES} stages, {SCRAPES_PER_SECOND} a second: {name} ({sizes[0]})"
        if theirs:
            other = percentile(theirs, share)
            against = f"node_exporter: {1e3 * other:.1f} ms ({sizes[1]})"
            rows.append(Row(what, f"{1e3 * mine:.1f} ms", against, mine / other, 1.0))
        else:
            rows.append(Row(what, f"{1e3 * mine:.1f} ms", absent))
    return rows


if __name__ == "__main__":
    sys.exit(run_alone(measure, __doc__))
