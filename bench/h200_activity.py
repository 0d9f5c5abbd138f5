"""Measures how well working, waiting and idle are told apart on a real GPU.

    python3 -m bench.h200_activity --output results

Runs six mixes of a spin, of work and of idleness, whose times are known, and records NVML's rings
and GPM beside them (recording.jsonl.gz, truth.jsonl). Then the estimator goes over the recording,
by everything, by power and ring, and by GPM and ring; nothing is given to it. Prints a table.
`--recording` judges one made before; `--dry-run` makes one of simulated cards, without a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.activity_mixes import IDLE_SECONDS, MIX_SETS, Truth, read_truths
from exporter.activity.gpu import GpuActivity
from exporter.recordings.reader import read_records
from exporter.recordings.writer import RecordingWriter
from exporter.records import (
    ActivityWindow,
    GpmWindow,
    GpuIdentity,
    Method,
    Record,
    RingSamples,
    Signal,
)
from exporter.sources.gpus.nvml import NvmlDriver
from exporter.sources.gpus.sampler import GpuSampler
from tests.activity_simulator import BEGAN_AT, Card, State, Timeline, records

MIX_SECONDS = 40.0
READY_WITHIN_SECONDS = 180.0
LAG_SECONDS = 2.5
"""After the load, until the last samples have arrived."""
SETTLE_SECONDS = 1.0
"""At both ends of a mix, not judged."""
GPU = 0
ROOT = Path(__file__).parents[1]
WAYS: dict[str, tuple[Sequence[Signal], float]] = {
    "everything": ((Signal.UTILIZATION, Signal.POWER, Signal.GPM), 0.05),
    "power + ring": ((Signal.UTILIZATION, Signal.POWER), 0.08),
    "GPM + ring": ((Signal.UTILIZATION, Signal.GPM), 0.05),
}
"""Signals and the bound of each share's error."""


@dataclass(frozen=True, slots=True)
class Row:
    """One mix, by one way of looking at it: shares said and true."""

    way: str
    mix: str
    working: float
    waiting: float
    true_working: float
    true_waiting: float
    methods: dict[str, float]
    """Share of time by each method."""

    @property
    def worst(self) -> float:
        """The largest error of the three shares."""
        working, waiting = self.working - self.true_working, self.waiting - self.true_waiting
        return max(abs(working), abs(waiting), abs(working + waiting))


# --- recording ---------------------------------------------------------------------------------


async def record(writer: RecordingWriter, load: subprocess.Popen[str]) -> None:
    """Records the GPUs until the load is over."""
    sampler = GpuSampler(NvmlDriver())
    await sampler.open(None)

    def emit(item: Record) -> None:
        if getattr(item, "gpu", None) == GPU:
            writer.write(item)

    sampling = asyncio.create_task(sampler.run(emit))
    assert load.stdin is not None
    load.stdin.write("go\n")
    load.stdin.flush()
    over = asyncio.create_task(asyncio.to_thread(load.wait))
    await asyncio.wait({over, sampling}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(LAG_SECONDS)
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)
    await sampler.close()
    if load.returncode:
        raise RuntimeError(f"the load ended with exit code {load.returncode}; see above")


def record_gpu(output: Path, seconds: float, mixes: str) -> None:
    """Runs the load in a process of its own and records beside it."""
    module = [sys.executable, "-m", "bench.activity_load"]
    arguments = ["--output", str(output / "truth.jsonl"), "--seconds", str(seconds)]
    arguments += ["--mixes", mixes]
    load = subprocess.Popen(
        [*module, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(READY_WITHIN_SECONDS, load.kill)
    watchdog.start()
    try:
        assert load.stdout is not None
        ready = load.stdout.readline()
        watchdog.cancel()
        if not ready:
            raise RuntimeError("the load did not start; see what it said above")
        print(json.loads(ready)["gpu"], flush=True)
        with RecordingWriter(output / "recording.jsonl.gz", note="bench.h200_activity") as writer:
            asyncio.run(record(writer, load))
    finally:
        watchdog.cancel()
        load.kill()
        load.wait()


SIMULATED = Card(
    watts=(124.0, 146.0, 400.0, 705.0, 230.0),
    sm=(0.0, 0.15, 0.97, 0.94, 0.30),
    dram=(0.0, 0.0, 0.88, 0.19, 0.0),
    tensor=(0.0, 0.0, 0.0, 0.9, 0.0),
    power_limit_watts=700.0,
    noise_watts=1.5,
    smoothing_seconds=0.015,
)
_STATES = {"matmul": State.PREFILL, "copy": State.DECODE, "few_sms": State.LIGHT}


def record_simulated(output: Path, seconds: float, mixes: str) -> None:
    """The same of a card that is simulated."""
    rng = random.Random(1)
    timeline = Timeline()
    timeline.extend(IDLE_SECONDS, State.IDLE)
    with (output / "truth.jsonl").open("w", encoding="ascii") as truths:
        for mix in MIX_SETS[mixes]:
            began_at = at = timeline.ends[-1]
            waits, works = [], []
            for waiting, working, period in mix.cycles(rng, seconds):
                timeline.extend(at + waiting, State.WAITING)
                timeline.extend(at + waiting + working, _STATES[mix.kind])
                timeline.extend(at + period, State.IDLE)
                start = BEGAN_AT + at
                waits.append((start, start + waiting))
                works.append((start + waiting, start + waiting + working))
                at += period
            truth = Truth(mix, BEGAN_AT + began_at, BEGAN_AT + at, waits, works)
            print(truth.to_json(), file=truths)
    with RecordingWriter(output / "recording.jsonl.gz", note="simulated", host="none") as writer:
        limit = SIMULATED.power_limit_watts
        writer.write(GpuIdentity(GPU, "GPU-simulated", power_limit_watts=limit))
        for item in records(timeline, SIMULATED, rng):
            writer.write(item)


# --- judging -----------------------------------------------------------------------------------


def estimate(recording: Path, signals: Sequence[Signal]) -> list[ActivityWindow]:
    """What the estimator says, given nothing but some signals of a recording."""
    activity = GpuActivity(GPU)
    windows: list[ActivityWindow] = []
    for item in read_records(recording):
        if isinstance(item, GpuIdentity):
            activity.power_limit_watts = item.power_limit_watts
            activity.multiprocessors = item.multiprocessors
            activity.note_model(item.model)
        is_ring = isinstance(item, RingSamples) and item.signal in signals
        if is_ring or (isinstance(item, GpmWindow) and Signal.GPM in signals):
            windows += activity.fold(item)  # type: ignore[arg-type]  # one of the two, as just seen
    return windows + activity.flush()


def row(way: str, truth: Truth, windows: Iterable[ActivityWindow]) -> Row | None:
    """One mix; `None` if nothing was said of it."""
    start, end = truth.began_at + SETTLE_SECONDS, truth.ended_at - SETTLE_SECONDS
    working = waiting = seconds = 0.0
    methods: Counter[str] = Counter()
    inside = [w for w in windows if w.started_at >= start and w.ended_at <= end]
    for window in inside:
        span = window.ended_at - window.started_at
        seconds += span
        working += span * window.working_ratio
        waiting += span * (window.waiting_ratio or 0.0)
        methods[window.method.value] += span  # type: ignore[assignment]  # seconds, not a count
    if not inside:
        return None
    true_working, true_waiting = truth.shares(inside[0].started_at, inside[-1].ended_at)
    shares = {method: round(spent / seconds, 2) for method, spent in methods.items()}
    return Row(
        way,
        truth.mix.label,
        working / seconds,
        waiting / seconds,
        true_working,
        true_waiting,
        shares,
    )


def judge(output: Path) -> None:
    """Prints the table and the bounds, and writes results.json."""
    truths = read_truths(output / "truth.jsonl")
    rows: list[Row] = []
    print("| by | mix | working | true | waiting | true | worst error | method |")
    print("|---" * 8 + "|")
    for way, (signals, _) in WAYS.items():
        windows = estimate(output / "recording.jsonl.gz", signals)
        for truth in truths:
            found = row(way, truth, windows)
            if found is None:
                print(f"| {way} | {truth.mix.label} | nothing was recorded |")
                continue
            rows.append(found)
            methods = ", ".join(f"{name} {share:.0%}" for name, share in found.methods.items())
            print(
                f"| {way} | {found.mix} | {found.working:.3f} | {found.true_working:.3f} "
                f"| {found.waiting:.3f} | {found.true_waiting:.3f} | {found.worst:.3f} | {methods} |"
            )
    (output / "results.json").write_text(json.dumps([asdict(each) for each in rows], indent=1))
    for way, (_, bound) in WAYS.items():
        of_way = [each for each in rows if each.way == way]
        if all(set(each.methods) == {Method.RESIDENCY} for each in of_way):
            print(f"{way}: nothing learned, all said as an upper bound (residency)")
            continue
        worst = max(each.worst for each in of_way)
        verdict = "holds" if worst <= bound else "BROKEN"
        print(f"{way}: worst error {worst:.3f}, bound {bound:.2f} {verdict}")


def main() -> None:
    """One command, one result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for what came out")
    parser.add_argument("--seconds", type=float, default=MIX_SECONDS, help="of one mix")
    parser.add_argument("--mixes", choices=MIX_SETS, default="first", help="which six")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: simulated cards")
    parser.add_argument(
        "--recording", action="store_true", help="judge what lies in the folder already"
    )
    arguments = parser.parse_args()
    arguments.output = arguments.output.resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.recording:
        make = record_simulated if arguments.dry_run else record_gpu
        make(arguments.output, arguments.seconds, arguments.mixes)
    judge(arguments.output)


if __name__ == "__main__":
    main()
