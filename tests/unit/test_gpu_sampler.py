"""The sampler as a source: a thread that may hang, an event loop that never waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pynvml
import pytest

from exporter.records import (
    FatalSourceError,
    GpuGauges,
    GpuIdentity,
    GpuProcesses,
    GpuState,
    Record,
    RingSamples,
    Signal,
    SourceUnavailableError,
    XidError,
)
from exporter.sources.gpus import sampler as gpu_sampler
from exporter.sources.gpus.nvml import NvmlDriver
from exporter.sources.gpus.sampler import GpuSampler
from tests.fake_nvml import FakeNvml

PERIOD = 0.05


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    fake = FakeNvml(tmp_path / "nvml", gpus=8)
    with fake.loaded():
        yield fake


@pytest.fixture
def sampler(fake: FakeNvml, tmp_path: Path) -> GpuSampler:
    return GpuSampler(NvmlDriver(), proc_root=tmp_path, period_seconds=PERIOD)


@asynccontextmanager
async def running(sampler: GpuSampler) -> AsyncIterator[list[Record]]:
    """What the sampler emits while the block runs."""
    records: list[Record] = []
    await sampler.open(None)
    task = asyncio.create_task(sampler.run(records.append))
    try:
        yield records
    finally:
        task.cancel()
        await asyncio.wait({task})
        await sampler.close()


async def until(condition: Callable[[], object]) -> None:
    """Waits for something that another thread brings about."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 60 s"
        await asyncio.sleep(0.005)


def of(records: list[Record], kind: type[Record], gpu: int) -> list[Record]:
    return [record for record in records if type(record) is kind and record.gpu == gpu]  # type: ignore[union-attr]  # only GPU records are asked for


async def test_every_gpu_is_introduced_before_its_samples(sampler: GpuSampler) -> None:
    async with running(sampler) as records:
        await until(lambda: of(records, RingSamples, 7))
    first = records.index(of(records, RingSamples, 7)[0])
    introduced = records[:first]
    for gpu in range(8):
        assert of(introduced, GpuIdentity, gpu)
        assert of(introduced, GpuState, gpu)
    assert any(type(record) is GpuProcesses for record in records)
    assert of(records, GpuGauges, 0)


async def test_its_health_and_the_drivers_are_kept_up_to_date(sampler: GpuSampler) -> None:
    assert not sampler.health.up
    driver_health = sampler.driver_health
    async with running(sampler) as records:
        await until(lambda: of(records, RingSamples, 0))
        assert sampler.health.up
        assert sampler.health.name == "nvml"
    assert not sampler.health.up
    assert sampler.driver_health is driver_health
    assert driver_health.call_counts["nvmlDeviceGetSamples"] > 0
    assert driver_health.samples[Signal.POWER] > 0


async def test_a_hanging_call_stops_neither_the_loop_nor_the_other_gpus_afterwards(
    fake: FakeNvml, sampler: GpuSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sampler, "HUNG_SECONDS", 0.1)
    monkeypatch.setattr(gpu_sampler, "_LOOK_SECONDS", 0.02)
    async with running(sampler) as records:
        await until(lambda: of(records, RingSamples, 0))
        fake.hang("nvmlDeviceGetTemperature", 1.2, gpu=3)
        longest = 0.0
        turned = time.monotonic()
        while sampler.health.up:
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - turned)
            turned = time.monotonic()
        assert longest < 1.0  # it would be 1.2 s if the loop waited for the call
        assert "nvmlDeviceGetTemperature has not returned" in (sampler.health.last_error or "")
        await until(lambda: sampler.health.up)
        assert sampler.health.last_error is None
        before = len(of(records, RingSamples, 7))
        await until(lambda: len(of(records, RingSamples, 7)) > before + 5)
    # 1.2 s fit into every ring, so nothing is lost, on any GPU.
    for gpu in range(8):
        assert_complete(fake, records, gpu)


def assert_complete(fake: FakeNvml, records: list[Record], gpu: int) -> None:
    for signal in (Signal.UTILIZATION, Signal.POWER):
        got = [
            round(at * 1e6)
            for record in records
            if isinstance(record, RingSamples) and (record.gpu, record.signal) == (gpu, signal)
            for at, _ in record.samples
        ]
        expected = fake.ring(gpu, signal, got[0] - 1, got[-1])
        assert got == [at for at, _ in expected]


async def test_closing_does_not_wait_for_a_hanging_call(
    fake: FakeNvml, sampler: GpuSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sampler, "_CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(gpu_sampler, "HUNG_SECONDS", 0.1)
    async with running(sampler) as records:
        await until(lambda: of(records, RingSamples, 0))
        fake.hang("nvmlDeviceGetMemoryInfo_v2", 1.0, gpu=0)
        await until(lambda: sampler._rounds.tally.in_call is not None)
        await until(sampler._hung)
    thread = sampler._thread
    assert thread is not None
    assert thread.is_alive()
    with pytest.raises(SourceUnavailableError, match="nvmlDeviceGetMemoryInfo_v2 has not returned"):
        await sampler.open(None)
    await until(lambda: not thread.is_alive())
    async with running(sampler) as records:
        await until(lambda: of(records, RingSamples, 0))


async def test_a_driver_that_hangs_at_the_start_is_unavailable(
    fake: FakeNvml, sampler: GpuSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sampler, "_OPEN_SECONDS", 0.1)
    monkeypatch.setattr(gpu_sampler, "_CLOSE_SECONDS", 0.05)
    fake.hang("nvmlInitWithFlags", 0.5)
    with pytest.raises(SourceUnavailableError, match="cannot read GPUs"):
        await sampler.open(None)
    thread = sampler._thread
    await until(lambda: thread is not None and not thread.is_alive())


async def test_an_xid_arrives_with_its_gpu(fake: FakeNvml, sampler: GpuSampler) -> None:
    async with running(sampler) as records:
        await until(lambda: fake.calls("nvmlEventSetWait_v2"))
        fake.report_xid(5, 31)
        await until(lambda: of(records, XidError, 5))
    (event,) = of(records, XidError, 5)
    assert isinstance(event, XidError)
    assert event.xid == 31


async def test_xids_still_arrive_after_the_library_was_started_again(
    fake: FakeNvml, sampler: GpuSampler
) -> None:
    async with running(sampler) as records:
        await until(lambda: fake.calls("nvmlEventSetWait_v2"))
        for gpu in range(8):
            fake.lose_until_restart(gpu)
        await until(lambda: len(of(records, GpuIdentity, 5)) == 2)
        created = fake.calls("nvmlEventSetCreate")
        await until(lambda: fake.calls("nvmlEventSetCreate") > created or created == 2)
        waits = fake.calls("nvmlEventSetWait_v2")
        await until(lambda: fake.calls("nvmlEventSetWait_v2") > waits + 2)
        fake.report_xid(5, 31)
        await until(lambda: of(records, XidError, 5))


async def test_a_driver_without_xid_events_is_asked_once(
    fake: FakeNvml, sampler: GpuSampler
) -> None:
    fake.fault("nvmlEventSetWait_v2", "NOT_SUPPORTED")
    async with running(sampler):
        await until(
            lambda: ("nvmlEventSetWait_v2", "NOT_SUPPORTED") in sampler.driver_health.errors
        )
        rounds = fake.calls("nvmlDeviceGetSamples")
        await until(lambda: fake.calls("nvmlDeviceGetSamples") > rounds + 200)
    # On a slow machine the sampler may have begun anew meanwhile, with a set of its own.
    assert fake.calls("nvmlEventSetWait_v2") <= fake.calls("nvmlEventSetCreate") < 20


async def test_without_the_library_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_name: str) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(pynvml, "CDLL", no_library)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    sampler = GpuSampler(NvmlDriver())
    for _ in range(2):
        with pytest.raises(SourceUnavailableError, match=r"install the NVIDIA driver.*log alone"):
            await sampler.open(None)
        await sampler.close()
    assert sampler.driver_health.errors == {("nvmlInitWithFlags", "LIBRARY_NOT_FOUND"): 2}


async def test_a_driver_that_appears_later_is_read(fake: FakeNvml, sampler: GpuSampler) -> None:
    fake.fault("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
    with pytest.raises(SourceUnavailableError, match="modprobe nvidia"):
        await sampler.open(None)
    await sampler.close()
    fake.fault("nvmlInitWithFlags", None)
    async with running(sampler) as records:
        await until(lambda: of(records, RingSamples, 0))


async def test_a_replaced_driver_is_fatal_at_the_start_and_later(
    fake: FakeNvml, sampler: GpuSampler
) -> None:
    fake.fault("nvmlInitWithFlags", "LIB_RM_VERSION_MISMATCH")
    with pytest.raises(FatalSourceError, match="updated under a running process"):
        await sampler.open(None)
    await sampler.close()
    fake.fault("nvmlInitWithFlags", None)
    await sampler.open(None)
    fake.fault("nvmlDeviceGetSamples", "LIB_RM_VERSION_MISMATCH", gpu=3)
    with pytest.raises(FatalSourceError, match="restart the exporter"):
        await sampler.run(lambda _record: None)
    await sampler.close()


async def test_when_the_driver_goes_away_all_gpus_go_down_and_the_source_says_so(
    fake: FakeNvml, sampler: GpuSampler
) -> None:
    records: list[Record] = []
    await sampler.open(None)
    task = asyncio.create_task(sampler.run(records.append))
    await until(lambda: of(records, RingSamples, 0))
    fake.fault("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
    for gpu in range(8):
        fake.lose(gpu, "UNINITIALIZED")
    with pytest.raises(SourceUnavailableError, match="kernel driver is not loaded"):
        await task
    await sampler.close()
    for gpu in range(8):
        states = [state.up for state in of(records, GpuState, gpu) if isinstance(state, GpuState)]
        assert states == [True, False]
        fake.lose(gpu, None)
    fake.fault("nvmlInitWithFlags", None)
    async with running(sampler) as later:
        await until(lambda: of(later, RingSamples, 0))
    assert of(later, GpuIdentity, 0) == of(records, GpuIdentity, 0)
    # The rings kept what happened meanwhile, and nothing comes twice.
    assert_complete(fake, records + later, 0)


async def test_no_thread_is_left_behind(sampler: GpuSampler) -> None:
    async with running(sampler) as records:
        await until(lambda: of(records, RingSamples, 0))
    thread = sampler._thread
    assert thread is not None
    thread.join(5)
    assert not thread.is_alive()


# --- in a process of its own, found by LD_LIBRARY_PATH, in real time --------------------------

_PROGRAM = """
import asyncio, json, sys
from exporter.records import GpuState, RingSamples
from exporter.sources.gpus.sampler import GpuSampler
from exporter.sources.gpus.nvml import NvmlDriver

async def main() -> None:
    sampler, records = GpuSampler(NvmlDriver()), []
    await sampler.open(None)
    try:
        await asyncio.wait_for(sampler.run(records.append), float(sys.argv[1]))
    except TimeoutError:
        pass
    await sampler.close()
    rings = [(r.gpu, r.signal, r.samples) for r in records if type(r) is RingSamples]
    states = [(r.gpu, r.up, r.reason) for r in records if type(r) is GpuState]
    print(json.dumps({"rings": rings, "states": states}))

asyncio.run(main())
"""


def start_program(environment: dict[str, str], seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(seconds)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_whole_process_finds_the_driver_and_reads_it_exactly(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "nvml", gpus=8)
    fake.lose(3)
    program = start_program(fake.environment(measured_costs=True), 8.0)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    told = json.loads(out)
    assert [3, False, "GPU_IS_LOST"] in told["states"]
    for gpu in (0, 1, 2, 4, 5, 6, 7):
        for signal, unit in (("utilization", 100), ("power", 1000)):
            samples = [
                (round(at * 1e6), value)
                for number, name, some in told["rings"]
                if (number, name) == (gpu, signal)
                for at, value in some
            ]
            expected = fake.ring(gpu, signal, samples[0][0] - 1, samples[-1][0])
            assert [at for at, _ in samples] == [at for at, _ in expected]
            assert samples[-1][0] - samples[0][0] > 1_500_000
            for (_, value), (_, true) in zip(samples, expected, strict=True):
                assert value == pytest.approx(true / unit, abs=0.03 if unit == 1000 else 0.0051)


def test_a_whole_process_ends_with_the_reason_when_the_driver_was_replaced(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "nvml", gpus=8)
    fake.fault("nvmlDeviceGetTemperature", "LIB_RM_VERSION_MISMATCH", gpu=3)
    program = start_program(fake.environment(), 30.0)
    _, err = program.communicate(timeout=60)
    assert program.returncode != 0
    assert "FatalSourceError" in err
    assert "restart the exporter" in err
