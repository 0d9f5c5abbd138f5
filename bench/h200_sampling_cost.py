"""What being watched costs a GPU's load, and what watching costs: on a real card, under 200 s.

    python3 -m bench.h200_sampling_cost --output results

1. A decode-like CUDA-graph loop, in blocks A/B/B/A: in A the exporter stands still (SIGSTOP: it asks
   the driver nothing), in B it samples with its defaults, is fed and scraped. Passes a second by
   block, and the slowdown with a bootstrap interval over the units of four blocks.
2. Single driver calls, ours and nvitop's: what they take, and how much of it is processor time.
3. Processor time of the exporter and of nvitop-exporter at its default interval: each alone, then
   both at once, beside the same loop.

Every result is printed when it is there, so that a run that is cut short leaves what it had.
`--dry-run` needs no GPU: a loop on a core, and the tests' fake driver.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.duty_cycle_measurement import decode_lines
from bench.gpu_witnesses import NvitopExporter
from bench.processor_time import memory_mib, processor_seconds
from tests.fake_nvml import FakeNvml
from tests.running import Metrics, RunningExporter

ROOT = Path(__file__).parents[1]
BARE_SECONDS = 4.0
SETTLE_SECONDS = 3.0
SCRAPE_SECONDS = 5.0
LOAD_READY_SECONDS = 90.0
_BOOTSTRAPS = 10_000
_ORDER = "ABBA"
_MICRO = 1e6


class Passes:
    """The loop, and when each of its passes ended."""

    def __init__(self, folder: Path, *, cuda: bool) -> None:
        self._file = folder / "passes"
        self._file.touch()
        device = "cuda" if cuda else "cpu"
        command = ["-m", "bench.decode_loop_load", "--output", str(self._file), "--device", device]
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(LOAD_READY_SECONDS, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        watchdog.cancel()
        if not said:
            raise RuntimeError("the load did not start; see what it said above")
        self.about: dict[str, str] = json.loads(said)
        self._ends = array("d")

    def close(self) -> None:
        """Ends the loop."""
        self._process.kill()
        self._process.wait()

    def between(self, start: float, end: float) -> list[float]:
        """The instants in [start, end) at which a pass ended.

        Raises:
            RuntimeError: The loop has ended.
        """
        give_up_at = time.monotonic() + 5.0
        while not self._ends or self._ends[-1] < end:
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError("the load stopped; see what it said above")
            time.sleep(0.05)
            with self._file.open("rb") as file:
                file.seek(len(self._ends) * self._ends.itemsize)
                whole = file.read()
            self._ends.frombytes(whole[: len(whole) // 8 * 8])
        return self._ends[bisect_left(self._ends, start) : bisect_left(self._ends, end)].tolist()


@dataclass(frozen=True, slots=True)
class Block:
    """Passes of one stretch."""

    kind: str
    passes_per_second: float
    pass_seconds: list[float] = field(repr=False)

    @classmethod
    def measured(cls, kind: str, passes: Passes, start: float, end: float) -> Block:
        """From whole passes alone: first end to last end."""
        ends = passes.between(start, end)
        spans = [later - earlier for earlier, later in itertools.pairwise(ends)]
        return cls(kind, len(spans) / (ends[-1] - ends[0]), spans)


def slowdown(unit: Sequence[Block]) -> float:
    """How much fewer passes a second B has than A, as a share of A's."""
    rate = {
        kind: statistics.fmean(b.passes_per_second for b in unit if b.kind == kind) for kind in "AB"
    }
    return 1.0 - rate["B"] / rate["A"]


def among_the_same(unit: Sequence[Block]) -> float:
    """What the two blocks without sampling of a unit differ by: the noise of the load itself."""
    first, second = (block.passes_per_second for block in unit if block.kind == "A")
    return 1.0 - second / first


def interval(values: Sequence[float], rng: random.Random) -> tuple[float, float]:
    """95 % of the means of as many values drawn with replacement."""
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(_BOOTSTRAPS))
    return means[int(0.025 * _BOOTSTRAPS)], means[int(0.975 * _BOOTSTRAPS)]


def percentiles(blocks: Sequence[Block], kind: str) -> dict[str, float]:
    """Of the time of single passes, in microseconds."""
    spans = sorted(s for block in blocks if block.kind == kind for s in block.pass_seconds)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {name: _MICRO * spans[int(share * (len(spans) - 1))] for name, share in shares.items()}


class Feeding(threading.Thread):
    """Feeds lines once a second and scrapes every few, unless told to rest."""

    def __init__(self, exporter: RunningExporter | None, nvitop: NvitopExporter | None) -> None:
        super().__init__(daemon=True)
        self._exporter, self._nvitop = exporter, nvitop
        self.resting = threading.Event()
        self._over = threading.Event()

    def run(self) -> None:
        """A beat a second."""
        beat = 0
        while not self._over.wait(1.0):
            beat += 1
            if self.resting.is_set():
                continue
            if self._exporter is not None:
                self._exporter.feed(*decode_lines())
            if beat % SCRAPE_SECONDS == 0:
                self._scrape()

    def _scrape(self) -> None:
        if self._exporter is not None and not self.resting.is_set():
            self._exporter.get("/metrics")
        if self._nvitop is not None:
            self._nvitop.look()

    @contextmanager
    def going(self) -> Iterator[Feeding]:
        """While it lasts."""
        self.start()
        try:
            yield self
        finally:
            self._over.set()
            self.join()


class Bench:
    """Everything on one machine, and what came out so far."""

    def __init__(self, given: argparse.Namespace, stack: ExitStack) -> None:
        self._given, self._stack = given, stack
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._nvmls = 0
        self.passes = Passes(self._folder, cuda=not given.dry_run)
        stack.callback(self.passes.close)
        self.results: dict[str, Any] = {"gpu": self.passes.about["gpu"]}

    def environment(self) -> Mapping[str, str]:
        """What one more process needs to see the GPU; each fake driver serves one process."""
        if not self._given.dry_run:
            return {}
        self._nvmls += 1
        return FakeNvml(self._folder / f"nvml-{self._nvmls}").environment(measured_costs=True)

    def exporter(self, stack: ExitStack) -> RunningExporter:
        """A new one that has seen its first sample."""
        running = stack.enter_context(
            RunningExporter(["serve", "--stdin"], self._folder, self.environment())
        )
        running.wait_for(lambda metrics: metrics.matching("gpu_resident_seconds_total"), 30.0)
        return running

    def nvitop(self, stack: ExitStack) -> NvitopExporter:
        """A new one; whether it runs stands in `absent`."""
        log = self._given.output / "nvitop-exporter.log"
        uuid = self.passes.about.get("uuid", "GPU-00000000-fake-0000-0000-000000000000")
        nvitop = NvitopExporter(uuid, self.environment(), log)
        stack.callback(nvitop.close)
        return nvitop

    def say(self, key: str, value: Any) -> None:
        """Keeps a result, on disk at once."""
        self.results[key] = value
        (self._given.output / "results.json").write_text(json.dumps(self.results, indent=1))

    # --- what the load pays ---------------------------------------------------------------------

    def bare(self) -> float:
        """Passes a second with no exporter in the machine."""
        start = time.monotonic()
        time.sleep(BARE_SECONDS)
        return Block.measured("A", self.passes, start, start + BARE_SECONDS).passes_per_second

    def blocks(self) -> None:
        """A/B/B/A, unit by unit."""
        with ExitStack() as stack:
            exporter = self.exporter(stack)
            feeding = stack.enter_context(Feeding(exporter, None).going())
            time.sleep(SETTLE_SECONDS)
            before = exporter.metrics()
            units: list[list[Block]] = []
            print("| unit | A | B | B | A | slowdown |\n|---|---|---|---|---|---|")
            for number in range(self._given.units):
                units.append([self._block(kind, exporter, feeding) for kind in _ORDER])
                rates = " | ".join(f"{block.passes_per_second:.2f}" for block in units[-1])
                print(f"| {number + 1} | {rates} | {slowdown(units[-1]):+.4%} |", flush=True)
                self._judge(units)
            os.kill(exporter.pid, signal.SIGCONT)
            self.say("samples_drained", _grown(before, exporter.metrics()))
        sampled = self.results["samples_drained"]
        print("samples drained meanwhile: " + ", ".join(f"{k} {v:.0f}" for k, v in sampled.items()))
        self._print_judged()

    def _block(self, kind: str, exporter: RunningExporter, feeding: Feeding) -> Block:
        if kind == "A":
            feeding.resting.set()
            os.kill(exporter.pid, signal.SIGSTOP)
        else:
            os.kill(exporter.pid, signal.SIGCONT)
            feeding.resting.clear()
        start = time.monotonic()
        time.sleep(self._given.block_seconds)
        return Block.measured(kind, self.passes, start, start + self._given.block_seconds)

    def _judge(self, units: Sequence[Sequence[Block]]) -> None:
        rng = random.Random(8)
        all_blocks = [block for unit in units for block in unit]
        judged: dict[str, Any] = {
            "units": [[block.passes_per_second for block in unit] for unit in units]
        }
        for name, of in (("sampling", slowdown), ("nothing", among_the_same)):
            values = [of(unit) for unit in units]
            low, high = interval(values, rng)
            judged[name] = {"mean": statistics.fmean(values), "low": low, "high": high}
        judged["pass_microseconds"] = {kind: percentiles(all_blocks, kind) for kind in "AB"}
        self.say("blocks", judged)

    def _print_judged(self) -> None:
        judged = self.results["blocks"]
        print("\n| passes a second lost to | mean | 95 % of bootstrapped means |\n|---|---|---|")
        names = {"sampling": "sampling (B against A)", "nothing": "nothing (A against A)"}
        for key, name in names.items():
            row = judged[key]
            print(f"| {name} | {row['mean']:+.3%} | {row['low']:+.3%} to {row['high']:+.3%} |")
        print("\n| a pass, us | p50 | p99 | p99.9 |\n|---|---|---|---|")
        for kind, name in (("A", "no sampling"), ("B", "sampling")):
            row = judged["pass_microseconds"][kind]
            print(f"| {name} | " + " | ".join(f"{row[p]:.1f}" for p in row) + " |")

    def calls(self) -> None:
        """What single driver calls take; nobody else asks meanwhile, GPM has one client."""
        print("", flush=True)
        command = [sys.executable, "-m", "bench.driver_call_costs", "--times", "15"]
        environment = {**os.environ, **self.environment()}
        said = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        print(said, flush=True)
        self.say("calls", said.split("\n"))

    # --- what watching costs --------------------------------------------------------------------

    def processes(self) -> None:
        """Processor time of both exporters, alone and at once."""
        seconds = self._given.process_seconds
        rows: list[Cost] = []
        print("\n| beside the loop | process | CPU, % of a core | RSS, MiB |\n|---|---|---|---|")
        for when, ours, theirs in (
            ("alone", True, False),
            ("alone", False, True),
            ("both at once", True, True),
        ):
            with ExitStack() as stack:
                exporter = self.exporter(stack) if ours else None
                nvitop = self.nvitop(stack) if theirs else None
                stack.enter_context(Feeding(exporter, nvitop).going())
                time.sleep(SETTLE_SECONDS)
                pids = {}
                if exporter is not None:
                    pids["exporter"] = exporter.pid
                if nvitop is not None:
                    nvitop.look()
                    if nvitop.pid is None:
                        print(f"| {when} | nvitop-exporter | {nvitop.absent} | |", flush=True)
                    else:
                        pids["nvitop-exporter"] = nvitop.pid
                rows += costs_over(seconds, pids, when)
                for cost in rows[len(rows) - len(pids) :]:
                    print(cost.row(), flush=True)
            self.say("processes", [asdict(row) for row in rows])


@dataclass(frozen=True, slots=True)
class Cost:
    """One process over a stretch."""

    when: str
    name: str
    cpu_percent: float
    memory_mib: float

    def row(self) -> str:
        """Of the table."""
        return f"| {self.when} | {self.name} | {self.cpu_percent:.2f} | {self.memory_mib:.1f} |"


def costs_over(seconds: float, pids: Mapping[str, int], when: str) -> list[Cost]:
    """Measures all of them over the same stretch."""
    began = time.monotonic()
    before = {name: processor_seconds(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    return [
        Cost(
            when,
            name,
            100 * (processor_seconds(pid) - before[name]) / elapsed,
            memory_mib(pid),
        )
        for name, pid in pids.items()
    ]


def _grown(before: Metrics, after: Metrics) -> dict[str, float]:
    name = "exporter_samples_total"
    return {
        signal_name: after.total(name, signal=signal_name) - before.total(name, signal=signal_name)
        for signal_name in sorted(after.label_values(name, "signal"))
    }


def attempt(what: str, step: Callable[[], None]) -> bool:
    """Runs one part; one that fails is named and costs itself only."""
    try:
        step()
    except Exception as error:  # noqa: BLE001  # time on a card is dear: the rest shall still run
        print(f"{what} failed: {type(error).__name__}: {error}", flush=True)
        return False
    return True


def main() -> int:
    """One command, one result; exit code 1 if a part failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for what came out")
    parser.add_argument("--units", type=int, default=9, help="of four blocks")
    parser.add_argument("--block-seconds", type=float, default=2.0)
    parser.add_argument("--process-seconds", type=float, default=20.0, help="each of three")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: a fake driver")
    given = parser.parse_args()
    given.output = given.output.resolve()
    given.output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ExitStack() as stack:
        bench = Bench(given, stack)
        print(f"{bench.results['gpu']}: {bench.bare():.2f} passes a second with no exporter\n")
        whole = attempt("the blocks", bench.blocks)
        print(f"\n{bench.bare():.2f} passes a second with no exporter", flush=True)
        whole &= attempt("the calls", bench.calls)
        whole &= attempt("the processes", bench.processes)
    print(f"\ntook {time.monotonic() - began:.0f} s")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
