"""The door to pynvml: base units, one error map, nothing that blocks or changes a setting."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from exporter import gpu_driver
from exporter.gpu_driver import LIBRARY_CALLS, DriverError, GpmMetrics, GpuDriver, RingReading
from exporter.records import GpuIdentity, Signal
from exporter.sources.gpus.nvml import NvmlDriver, code_name
from exporter.sources.gpus.nvml_rings import ENTRY_BYTES, RingBuffer
from exporter.sources.gpus.nvml_values import clock_reasons, multiprocessor_count
from tests.fake_nvml import CODES, FakeNvml, functions

NOW = 1_790_000_000_000_000


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    fake = FakeNvml(tmp_path / "nvml", gpus=2)
    fake.control.virtual_now_us = NOW
    with fake.loaded():
        yield fake


@pytest.fixture
def driver(fake: FakeNvml) -> GpuDriver:
    driver = NvmlDriver()
    driver.start()
    for gpu in range(driver.count()):
        driver.identity(gpu)
    return driver


def test_identity_tells_who_the_gpu_is(driver: GpuDriver) -> None:
    assert driver.identity(1) == GpuIdentity(
        gpu=1,
        uuid="GPU-00000000-fake-0000-0000-000000000001",
        model="NVIDIA Fake",
        pci_bus_id="00000000:11:00.0",
        power_limit_watts=700.0,
        multiprocessors=132,
    )


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetNumGpuCores"]
)
def test_an_identity_without_a_detail_is_still_one(
    function: str, fake: FakeNvml, driver: GpuDriver
) -> None:
    fake.fault(function, "NOT_SUPPORTED", gpu=1)
    assert driver.identity(1).uuid.endswith("1")


def test_gauges_are_in_base_units(fake: FakeNvml, driver: GpuDriver) -> None:
    fake.control.gpu[0].duty = 1.0
    assert driver.utilization(0) == 1.0
    assert driver.power_watts(0) == 600.0
    assert driver.power_limit_watts(0) == 700.0
    assert driver.memory_bytes(0) == (100 << 30, 141 << 30)
    assert driver.temperature_celsius(0) == 40.0
    assert driver.sm_clock_hertz(0) == 1.98e9
    assert driver.persistence_mode(0) is True
    fake.control.gpu[0].event_reasons = 0x1 | 0x4 | 0x40
    assert driver.throttle_reasons(0) == ("sw_power_cap", "hw_thermal_slowdown")


def test_energy_grows_by_watts_times_seconds(fake: FakeNvml, driver: GpuDriver) -> None:
    fake.control.gpu[0].duty = 1.0
    before = driver.energy_joules(0)
    fake.control.virtual_now_us += 10_000_000
    assert driver.energy_joules(0) - before == pytest.approx(6000.0)


def test_a_ring_gives_shares_and_watts_oldest_first(fake: FakeNvml, driver: GpuDriver) -> None:
    for signal, kept, unit in ((Signal.UTILIZATION, 71, 100), (Signal.POWER, 119, 1000)):
        step = 200_000 if unit == 100 else 20_000
        reading = driver.ring(0, signal, 0)
        expected = fake.ring(0, signal, NOW - kept * step, NOW)
        assert [at for at, _ in reading.samples] == [at for at, _ in expected]
        for (_, value), (_, true) in zip(reading.samples, expected, strict=True):
            assert value == pytest.approx(true / unit, abs=0.03 if unit == 1000 else 0.0051)


def test_only_what_is_newer_is_given_and_nothing_new_is_no_error(driver: GpuDriver) -> None:
    newest = driver.ring(0, Signal.POWER, 0).samples[-1][0]
    assert len(driver.ring(0, Signal.POWER, newest - 100_000).samples) == 5
    assert driver.ring(0, Signal.POWER, newest) == RingReading(())


def test_a_ring_that_outgrew_its_buffer_loses_nothing(fake: FakeNvml, driver: GpuDriver) -> None:
    driver.ring(0, Signal.POWER, 0)
    fake.control.power_kept = 1000
    assert len(driver.ring(0, Signal.POWER, 0).samples) == 1000


def test_a_ring_asks_the_library_once_after_the_first_time(
    fake: FakeNvml, driver: GpuDriver
) -> None:
    driver.ring(0, Signal.POWER, 0)
    before = fake.calls("nvmlDeviceGetSamples")
    driver.ring(0, Signal.POWER, 0)
    assert fake.calls("nvmlDeviceGetSamples") == before + 1


def test_invalid_entries_are_left_out_and_counted(fake: FakeNvml, driver: GpuDriver) -> None:
    fake.control.gpu[0].corrupt_every = 7
    for signal in (Signal.UTILIZATION, Signal.POWER):
        reading = driver.ring(0, signal, 0)
        assert reading.dropped in {10, 11, 17}
        assert len(reading.samples) + reading.dropped in {71, 119}


@pytest.mark.parametrize(
    ("value_type", "member", "kind"),
    [
        (0, "dVal", float),
        (1, "uiVal", int),
        (2, "ulVal", int),
        (3, "ullVal", int),
        (4, "sllVal", int),
        (5, "siVal", int),
        (6, "usVal", int),
    ],
)
def test_each_value_type_is_read_from_its_member(value_type: int, member: str, kind: type) -> None:
    entries = (pynvml.c_nvmlSample_t * 3)()
    for place, entry in enumerate(entries):
        entry.timeStamp = (0, 2_000, 1_000)[place]
        entry.sampleValue.ullVal = 0xDEADBEEF_DEADBEEF  # what a short member leaves behind
        setattr(entry.sampleValue, member, kind(50 + place))

    def get_samples(_handle, _kind, _newer, type_out, count, buffer) -> int:  # type: ignore[no-untyped-def]  # a C function
        type_out._obj.value = value_type
        count._obj.value = 3
        if buffer is not None:
            ctypes.memmove(buffer, entries, ctypes.sizeof(entries))
        return 0

    reading = RingBuffer(Signal.UTILIZATION).read(get_samples, None, 0)
    assert reading == RingReading(((1_000, 0.52), (2_000, 0.51)), dropped=1)


def test_a_library_that_never_has_room_is_given_up() -> None:
    assert RingBuffer(Signal.POWER).read(lambda *_: CODES["INSUFFICIENT_SIZE"], None, 0) == 7


def test_an_entry_is_as_large_as_pynvmls_structure() -> None:
    assert ctypes.sizeof(pynvml.c_nvmlSample_t) == ENTRY_BYTES


def test_gpm_activities_are_shares_of_the_window(fake: FakeNvml, driver: GpuDriver) -> None:
    fake.control.gpu[0].duty = 1.0
    fake.control.gpu[0].tensor = 0
    assert driver.gpm_supported(0)
    earlier, later = driver.gpm_buffer(), driver.gpm_buffer()
    driver.gpm_sample(0, earlier)
    fake.control.virtual_now_us += 500_000
    driver.gpm_sample(0, later)
    assert driver.gpm_metrics(0, earlier, later) == GpmMetrics(0.9, 0.12, 0.6, None)
    fake.control.gpm_nan = 1
    assert driver.gpm_metrics(0, earlier, later) == GpmMetrics()
    driver.gpm_free(earlier)
    driver.gpm_free(later)


def test_byte_counters_fail_one_by_one(fake: FakeNvml, driver: GpuDriver) -> None:
    sent, received = driver.pcie_bytes(0)
    assert sent is not None
    assert received is not None
    assert sent == pytest.approx(2 * received)
    fake.control.gpu[0].pcie_code = CODES["NOT_SUPPORTED"]
    with pytest.raises(DriverError, match="nvmlDeviceGetFieldValues answered NOT_SUPPORTED"):
        driver.pcie_bytes(0)


def test_processes_are_pids_with_their_memory(fake: FakeNvml, driver: GpuDriver) -> None:
    assert driver.processes(0) == []
    fake.control.gpu[0].pids[1], fake.control.gpu[0].pid_memory[1] = 4242, 7 << 30
    fake.control.gpu[0].pids[2], fake.control.gpu[0].pid_memory[2] = 4243, 2**64 - 1
    assert driver.processes(0) == [(4242, 7 << 30), (4243, None)]


def test_an_xid_is_told_with_its_gpu(fake: FakeNvml, driver: GpuDriver) -> None:
    assert driver.watch_xids([0, 1]) == (0, 1)
    assert driver.wait_for_xid(0.0) is None
    fake.report_xid(1, 79)
    assert driver.wait_for_xid(0.0) == (1, 79)
    assert driver.wait_for_xid(0.0) is None


def test_a_gpu_without_events_is_not_watched(fake: FakeNvml, driver: GpuDriver) -> None:
    fake.fault("nvmlDeviceRegisterEvents", "NOT_SUPPORTED", gpu=0)
    assert driver.watch_xids([0, 1]) == (1,)


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_its_name_in_the_error(code: str, fake: FakeNvml, driver: GpuDriver) -> None:
    fake.fault("nvmlDeviceGetTemperature", code, gpu=0)
    with pytest.raises(DriverError) as caught:
        driver.temperature_celsius(0)
    assert (caught.value.call, caught.value.code) == ("nvmlDeviceGetTemperature", code)


def test_a_code_newer_than_pynvml_keeps_its_number() -> None:
    assert code_name(777) == "CODE_777"


def test_without_the_library_it_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_name: str) -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", no_library)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    with pytest.raises(DriverError) as caught:
        NvmlDriver().start()
    assert caught.value.code == "LIBRARY_NOT_FOUND"


def test_before_the_start_and_after_the_stop_nothing_answers(
    fake: FakeNvml, driver: GpuDriver
) -> None:
    driver.stop()
    driver.stop()
    with pytest.raises(DriverError, match="UNINITIALIZED"):
        driver.ring(0, Signal.POWER, 0)
    driver.start()
    driver.identity(0)
    assert driver.ring(0, Signal.POWER, 0).samples


def test_every_method_is_counted_under_a_function_of_the_library() -> None:
    methods = {name for name in vars(GpuDriver) if not name.startswith("_")}
    assert methods - LIBRARY_CALLS.keys() == {"stop", "gpm_free"}
    assert set(LIBRARY_CALLS.values()) <= set(functions())


def test_the_source_changes_no_setting_and_never_asks_for_pcie_throughput() -> None:
    folder = Path(gpu_driver.__file__).parent / "sources"
    text = "".join(path.read_text("utf-8") for path in folder.glob("gpus/nvml*.py"))
    asked = set(re.findall(r'"(nvml[A-Z]\w+)"', text))
    assert asked
    assert not [name for name in asked if "Set" in name.removeprefix("nvmlEventSet")]
    assert "nvmlDeviceGetPcieThroughput" not in asked


def test_reasons_and_cards_newer_than_this_list_are_unknown() -> None:
    assert clock_reasons(1 << 40) == ()
    assert multiprocessor_count(16_896, (9, 0)) == 132
    assert multiprocessor_count(16_896, (99, 0)) is None
