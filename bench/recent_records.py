"""What the newest ten minutes cost to keep: 8 GPUs with power rings and GPM, 50 lines a second.

    .venv/bin/python -m bench.recent_records

Prints memory and processor time of a simulated quarter of an hour, and of writing recordings of it.
Needs no GPU and takes seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

from bench.played_server import LINES_PER_SECOND, STAGES, batch_line
from exporter.admission import Admission
from exporter.recent.records import MOST_SECONDS, RecentRecords
from exporter.records import GpmWindow, GpuGauges, LogLine, Record, RingSamples, Signal

SIMULATED_SECONDS = 900
BEGAN_AT = 1_796_032_800.0
_RINGS = ((Signal.POWER, 50), (Signal.UTILIZATION, 5))


def resident_kib() -> int:
    """Memory of this process."""
    for line in Path("/proc/self/status").read_text().split("\n"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status names no VmRSS")


def gpu_records(second: float, rng: random.Random) -> Iterator[Record]:
    """What the sampler hands over once a second."""
    for gpu in range(STAGES):
        for signal, count in _RINGS:
            span = 1.0 / count
            taken = tuple(
                (round(second + span * index + rng.uniform(0, 0.001), 6), _value(signal, rng))
                for index in range(count)
            )
            yield RingSamples(gpu, signal, round(rng.gauss(span, 1e-5), 6), taken)
        ratios = (rng.random() for _ in range(5))
        yield GpmWindow(gpu, second, second + 1.0, *ratios)
        yield GpuGauges(
            gpu,
            second,
            power_limit_watts=700.0,
            energy_joules=1e9 + second,
            memory_used_bytes=80 << 30,
            memory_total_bytes=141 << 30,
            temperature_celsius=float(rng.randrange(50, 70)),
            sm_clock_hertz=1.98e9,
            pcie_transmit_bytes=int(second) << 20,
            pcie_receive_bytes=int(second) << 20,
            throttle_reasons=(),
        )


def _value(signal: Signal, rng: random.Random) -> float:
    return (
        rng.randrange(100) / 100 if signal is Signal.UTILIZATION else rng.randrange(700_000) / 1e3
    )


def main() -> None:
    """Feeds and measures."""
    rng, now = random.Random(1), BEGAN_AT
    recent, admission = RecentRecords(lambda: now), Admission()
    spent, before = 0.0, resident_kib()
    for second in range(SIMULATED_SECONDS):
        now = BEGAN_AT + second
        fed: list[tuple[Record, LogLine | None]] = [(r, None) for r in gpu_records(now, rng)]
        for number in range(LINES_PER_SECOND):
            rank, message = batch_line(second * LINES_PER_SECOND + number)
            title = f"sglang::scheduler_PP{rank}"
            line = LogLine("sglang", now, message, 4000 + rank, title)
            if (made := admission.admit(line)) is not None:
                fed.append((made, line))
        started = time.process_time()
        for made, from_line in fed:
            recent.keep(made, from_line)
        spent += time.process_time() - started
        if second in (0, 60, 300, 600, SIMULATED_SECONDS - 1):
            print(f"after {second:4d} s: {(resident_kib() - before) / 1024:5.1f} MiB more")
    print(f"to keep: {100 * spent / SIMULATED_SECONDS:.2f} % of a core")
    for seconds in (60, MOST_SECONDS):
        started = time.process_time()
        recording = recent.recording(seconds, ())
        taken = time.process_time() - started
        longest, size = 0.0, 0
        pieces = recording.compressed()
        while True:
            began = time.process_time()
            if (piece := next(pieces, None)) is None:
                break
            longest, size = max(longest, time.process_time() - began), size + len(piece)
        whole = time.process_time() - started
        print(
            f"a recording of {seconds} s: {taken * 1e3:.1f} ms on the event loop, {whole:.2f} s in "
            f"a thread in pieces of at most {longest * 1e3:.0f} ms, {size / 1e6:.2f} MB; then "
            f"{(resident_kib() - before) / 1024:.1f} MiB more"
        )


if __name__ == "__main__":
    main()
