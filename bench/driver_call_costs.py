"""What one driver call takes, and how much of that is processor time: on a card, or a fake one.

    python3 -m bench.driver_call_costs [--times 30]

A call that waits costs its caller nothing but patience; one that works costs a core. The fake
driver's costs (`tests/fake_nvml`) come from here. Calls of ours and those that nvitop-exporter makes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pynvml

from exporter.gpu_driver import DriverError
from exporter.records import Signal
from exporter.sources.gpus.nvml import NvmlDriver

TIMES = 30
PAUSE_SECONDS = 0.02
GPM_PAUSE_SECONDS = 0.12
_LINKS = 18
_MICRO = 1e6

Call = Callable[[], object]


def calls(driver: NvmlDriver) -> dict[str, Call]:
    """By name, those of the first GPU."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    links = [
        (field, link)
        for field in (
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        )
        for link in range(_LINKS)
    ]
    newest = dict.fromkeys(Signal, 0)
    second_ago = (time.time_ns() - 1_000_000_000) // 1000

    def drain(signal: Signal) -> None:
        reading = driver.ring(0, signal, newest[signal])
        newest[signal] = max([newest[signal], *(at for at, _ in reading.samples)])

    return {
        "GetSamples, utilization": lambda: drain(Signal.UTILIZATION),
        "GetSamples, power": lambda: drain(Signal.POWER),
        "GetTotalEnergyConsumption": lambda: driver.energy_joules(0),
        "GetFieldValues, PCIe bytes": lambda: driver.pcie_bytes(0),
        "GetComputeRunningProcesses": lambda: driver.processes(0),
        "GetMemoryInfo": lambda: driver.memory_bytes(0),
        "GetEnforcedPowerLimit": lambda: driver.power_limit_watts(0),
        "GetTemperature": lambda: driver.temperature_celsius(0),
        "GetClockInfo": lambda: driver.sm_clock_hertz(0),
        "GetCurrentClocksEventReasons": lambda: driver.throttle_reasons(0),
        "GetUtilizationRates (nvitop)": lambda: driver.utilization(0),
        "GetPowerUsage (nvitop)": lambda: driver.power_watts(0),
        "GetClockInfo, each of 4 (nvitop)": lambda: pynvml.nvmlDeviceGetClockInfo(handle, 0),
        "GetTemperatureV (nvitop)": lambda: pynvml.nvmlDeviceGetTemperatureV(handle, 0),
        "GetPowerManagementLimit (nvitop)": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(
            handle
        ),
        "GetProcessUtilization (nvitop)": lambda: pynvml.nvmlDeviceGetProcessUtilization(
            handle, second_ago
        ),
        "GetPcieThroughput (nvitop)": lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, 0),
        "GetFieldValues, 36 of NVLink (nvitop)": lambda: pynvml.nvmlDeviceGetFieldValues(
            handle, links
        ),
        "GetEncoderUtilization (nvitop)": lambda: pynvml.nvmlDeviceGetEncoderUtilization(handle),
        "GetFanSpeed (nvitop)": lambda: pynvml.nvmlDeviceGetFanSpeed(handle),
        "GetGraphicsRunningProcesses (nvitop)": lambda: (
            pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
        ),
    }


def timed(call: Call, times: int, pause_seconds: float) -> tuple[list[float], list[float], int]:
    """Seconds and processor seconds of each, and how many failed."""
    walls, processors, failed = [], [], 0
    for _ in range(times):
        time.sleep(pause_seconds)
        wall, processor = time.perf_counter(), time.thread_time()
        try:
            call()
        except (DriverError, pynvml.NVMLError, AttributeError):
            failed += 1
        processors.append(time.thread_time() - processor)
        walls.append(time.perf_counter() - wall)
    return walls, processors, failed


def row(name: str, call: Call, times: int, pause_seconds: float = PAUSE_SECONDS) -> str:
    """Of the table."""
    walls, processors, failed = timed(call, times, pause_seconds)
    wall, processor = _MICRO * statistics.median(walls), _MICRO * statistics.fmean(processors)
    slowest = _MICRO * max(walls)
    return f"| {name} | {wall:.0f} | {slowest:.0f} | {processor:.0f} | {failed or ''} |"


def report(times: int) -> None:
    """The whole table."""
    driver = NvmlDriver()
    driver.start()
    try:
        driver.identity(0)  # finds its handle
        print("| call | median us | longest us | processor time, mean us | failed |")
        print("|---|---|---|---|---|")
        for name, call in calls(driver).items():
            print(row(name, call, times), flush=True)
        if driver.gpm_supported(0):
            _report_gpm(driver, times)
    finally:
        driver.stop()


def _report_gpm(driver: NvmlDriver, times: int) -> None:
    buffers = [driver.gpm_buffer(), driver.gpm_buffer()]

    def take() -> None:
        buffers.reverse()
        driver.gpm_sample(0, buffers[1])

    print(row("GpmSampleGet", take, times, GPM_PAUSE_SECONDS), flush=True)
    print(
        row("GpmMetricsGet, 4 metrics", lambda: driver.gpm_metrics(0, *buffers), times), flush=True
    )
    graphics = pynvml.c_nvmlGpmMetricsGet_t()
    graphics.version, graphics.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    graphics.sample1, graphics.sample2 = buffers
    graphics.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    name = "GpmMetricsGet, graphics activity alone"
    print(row(name, lambda: pynvml.nvmlGpmMetricsGet(graphics), times), flush=True)
    for buffer in buffers:
        driver.gpm_free(buffer)


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES)
    report(parser.parse_args().times)


if __name__ == "__main__":
    main()
