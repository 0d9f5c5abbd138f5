"""Rounds of the sampler over the real pynvml and the fake driver, in time driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exporter.records import (
    GpmWindow,
    GpuGauges,
    GpuProcesses,
    GpuState,
    Record,
    RingSamples,
    Signal,
)
from exporter.sources.gpus.nvml import NvmlDriver
from exporter.sources.gpus.rounds import GpuRounds
from tests.fake_nvml import FakeNvml

START = 1_790_000_000.0


class Rig:
    """A machine, its driver and the sampler's rounds; one `round` is one second."""

    def __init__(self, folder: Path, gpus: int = 8) -> None:
        self.fake = FakeNvml(folder / "nvml", gpus)
        self.proc_root = folder / "proc"
        self.now = START
        self.records: list[Record] = []
        self.driver = NvmlDriver()
        self.rounds = GpuRounds(
            self.driver,
            proc_root=self.proc_root,
            wall=lambda: self.now,
            monotonic=lambda: self.now - 1_000_000.0,
        )
        self.pass_time(0.0)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.fake.control.virtual_now_us = round(self.now * 1e6)

    def start(self) -> None:
        self.records += self.rounds.start()

    def round(self, number: int = 1) -> None:
        for _ in range(number):
            self.pass_time(1.0)
            self.records += self.rounds.take()

    def add_process(self, gpu: int, pid: int, title: str, parent: int = 1) -> None:
        """Runs a process on a GPU, with a command line as setproctitle leaves it."""
        card = self.fake.control.gpu[gpu]
        place = list(card.pids).index(0)
        card.pids[place], card.pid_memory[place] = pid, 1 << 30
        folder = self.proc_root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cmdline").write_bytes(title.encode() + b"\0" * 40)
        (folder / "stat").write_text(f"{pid} (sglang::) 7 schedu) S {parent} {pid} 0\n")

    # --- what came out ---

    def samples(self, gpu: int, signal: Signal) -> list[tuple[float, float]]:
        return [
            sample
            for record in self.records
            if isinstance(record, RingSamples) and (record.gpu, record.signal) == (gpu, signal)
            for sample in record.samples
        ]

    def states(self, gpu: int) -> list[tuple[bool, str | None]]:
        return [(r.up, r.reason) for r in self.records if isinstance(r, GpuState) and r.gpu == gpu]

    def windows(self, gpu: int) -> list[GpmWindow]:
        return [r for r in self.records if isinstance(r, GpmWindow) and r.gpu == gpu]

    def gauges(self, gpu: int) -> list[GpuGauges]:
        return [r for r in self.records if isinstance(r, GpuGauges) and r.gpu == gpu]

    def processes(self) -> list[GpuProcesses]:
        return [r for r in self.records if isinstance(r, GpuProcesses)]

    def assert_exact(self, gpu: int, since: float = START) -> None:
        """Every sample the driver ever had since then came out once, with its value.

        Of utilization those of the last round may have to wait for the next.
        """
        for signal, unit in ((Signal.UTILIZATION, 100), (Signal.POWER, 1000)):
            expected = self.fake.ring(gpu, signal, round(since * 1e6), round(self.now * 1e6))
            got = [(round(at * 1e6), value) for at, value in self.samples(gpu, signal)]
            if signal is Signal.UTILIZATION and got[-1][0] <= round((self.now - 1.0) * 1e6):
                expected = [each for each in expected if each[0] <= round((self.now - 1.0) * 1e6)]
            assert [at for at, _ in got] == [at for at, _ in expected], (gpu, signal)
            integral = sum(value for _, value in got)
            true = sum(value for _, value in expected) / unit
            # The driver rounds to whole percents and milliwatts.
            assert abs(integral - true) <= len(got) * 0.5 / unit + 1e-6, (gpu, signal)


@contextmanager
def machine(folder: Path, gpus: int = 8) -> Iterator[Rig]:
    """A rig whose fake driver this process's pynvml uses until the block ends."""
    rig = Rig(folder, gpus)
    with rig.fake.loaded():
        yield rig
        rig.rounds.stop()
