"""NVML through nvidia-ml-py: the only door to `pynvml`, one method a driver call, one error map.

Goes in: GPU indices. Comes out: base units (shares 0 to 1, watts, bytes) or `DriverError`. It
keeps handles and buffers, decides nothing, changes no setting, and never asks for
`nvmlDeviceGetPcieThroughput`, which blocks 20 ms a call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pynvml

from exporter.gpu_driver import LOST_CODES, MISMATCH_CODE, DriverError, GpmMetrics, RingReading
from exporter.records import GpuIdentity, Signal
from exporter.sources.gpus.nvml_rings import CALL as GET_SAMPLES
from exporter.sources.gpus.nvml_rings import MILLIWATTS_PER_WATT, PERCENT, RingBuffer
from exporter.sources.gpus.nvml_values import activity_ratio, clock_reasons, multiprocessor_count

MILLIJOULES_PER_JOULE = 1000.0
HERTZ_PER_MEGAHERTZ = 1_000_000.0

_CODE_NAMES = {
    value: name.removeprefix("NVML_ERROR_")
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}
_LIBRARY_NAMES = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
}
"""Where pynvml's name is not the library's: errors are counted under the latter."""

_GPM_METRICS = {
    "sm_ratio": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "occupancy_ratio": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "dram_ratio": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "tensor_ratio": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}
"""Not graphics activity: it alone takes 1.9 ms, these four together 0.1 (measured on an H200), and
the utilization ring tells residency already."""


def code_name(code: int) -> str:
    """NVML's return code without its prefix: `GPU_IS_LOST`; `CODE_n` for one unknown here."""
    return str(_CODE_NAMES.get(code, f"CODE_{code}"))


class NvmlDriver:
    """The driver's library; one instance and one thread at a time (but for `wait_for_xid`)."""

    def __init__(self) -> None:
        self._handles: dict[int, Any] = {}
        self._rings: dict[tuple[int, Signal], RingBuffer] = {}
        self._gpm_request = pynvml.c_nvmlGpmMetricsGet_t()
        self._event_set: Any = None

    def start(self) -> None:
        """`nvmlInitWithFlags`; finds and loads `libnvidia-ml.so.1` the first time."""
        self._call("nvmlInit")

    def stop(self) -> None:
        """`nvmlShutdown`. Never raises; handles and the event set are void after it."""
        try:
            if self._event_set is not None:
                self._call("nvmlEventSetFree", self._event_set)
            self._call("nvmlShutdown")
        except DriverError:
            pass  # a library that is lost already has nothing to shut down
        finally:
            self._event_set = None
            self._handles.clear()

    def count(self) -> int:
        """`nvmlDeviceGetCount_v2`: number of GPUs, answering or not."""
        return int(self._call("nvmlDeviceGetCount"))

    def identity(self, gpu: int) -> GpuIdentity:
        """Handle, UUID, name, PCI bus id, power limit and multiprocessor count of one GPU."""
        handle = self._call("nvmlDeviceGetHandleByIndex", gpu)
        uuid = str(self._call("nvmlDeviceGetUUID", handle))
        self._handles[gpu] = handle
        pci = self._optional("nvmlDeviceGetPciInfo_v3", handle)
        limit = self._optional("nvmlDeviceGetEnforcedPowerLimit", handle)
        return GpuIdentity(
            gpu=gpu,
            uuid=uuid,
            model=self._optional("nvmlDeviceGetName", handle),
            pci_bus_id=None if pci is None else pci.busId,
            power_limit_watts=None if limit is None else limit / MILLIWATTS_PER_WATT,
            multiprocessors=self._multiprocessors(handle),
        )

    def _multiprocessors(self, handle: Any) -> int | None:
        cores = self._optional("nvmlDeviceGetNumGpuCores", handle)
        capability = self._optional("nvmlDeviceGetCudaComputeCapability", handle)
        if cores is None or capability is None:
            return None
        return multiprocessor_count(cores, tuple(capability))

    def persistence_mode(self, gpu: int) -> bool:
        """`nvmlDeviceGetPersistenceMode`. Check: `nvidia-smi --query-gpu=persistence_mode`."""
        return bool(self._call("nvmlDeviceGetPersistenceMode", self._handle(gpu)))

    def ring(self, gpu: int, signal: Signal, newer_than_us: int) -> RingReading:
        """`nvmlDeviceGetSamples`: the driver's ring of UTILIZATION or POWER.

        Check: none; nvidia-smi shows the polled gauge.
        """
        handle = self._handle(gpu)
        try:
            get_samples = pynvml.nvmlLib.nvmlDeviceGetSamples
        except AttributeError as error:
            raise DriverError(GET_SAMPLES, "FUNCTION_NOT_FOUND") from error
        buffer = self._rings.setdefault((gpu, signal), RingBuffer(signal))
        reading = buffer.read(get_samples, handle, newer_than_us)
        if isinstance(reading, int):
            raise DriverError(GET_SAMPLES, code_name(reading))
        return reading

    def utilization(self, gpu: int) -> float:
        """`nvmlDeviceGetUtilizationRates`.gpu as a share: the polled gauge, which aliases.

        Check: `nvidia-smi --query-gpu=utilization.gpu`.
        """
        return float(self._call("nvmlDeviceGetUtilizationRates", self._handle(gpu)).gpu) / PERCENT

    def power_watts(self, gpu: int) -> float:
        """`nvmlDeviceGetPowerUsage`: board power, mean of 1 s on Ampere and newer.

        Check: `nvidia-smi --query-gpu=power.draw`.
        """
        milliwatts = self._call("nvmlDeviceGetPowerUsage", self._handle(gpu))
        return float(milliwatts) / MILLIWATTS_PER_WATT

    def power_limit_watts(self, gpu: int) -> float:
        """`nvmlDeviceGetEnforcedPowerLimit`. Check: `nvidia-smi --query-gpu=enforced.power.limit`."""
        milliwatts = self._call("nvmlDeviceGetEnforcedPowerLimit", self._handle(gpu))
        return float(milliwatts) / MILLIWATTS_PER_WATT

    def energy_joules(self, gpu: int) -> float:
        """`nvmlDeviceGetTotalEnergyConsumption` since the driver was loaded.

        Takes 2.5 to 4.8 ms, p99 28 ms (measured on H200s). Check: `nvidia-smi -q`, "Total".
        """
        millijoules = self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle(gpu))
        return float(millijoules) / MILLIJOULES_PER_JOULE

    def memory_bytes(self, gpu: int) -> tuple[int, int]:
        """`nvmlDeviceGetMemoryInfo_v2`: (used, total), used without what the driver reserves.

        Check: `nvidia-smi --query-gpu=memory.used,memory.total`.
        """
        memory = self._call("nvmlDeviceGetMemoryInfo", self._handle(gpu), pynvml.nvmlMemory_v2)
        return int(memory.used), int(memory.total)

    def temperature_celsius(self, gpu: int) -> float:
        """`nvmlDeviceGetTemperature`, core. Check: `nvidia-smi --query-gpu=temperature.gpu`."""
        sensor = pynvml.NVML_TEMPERATURE_GPU
        return float(self._call("nvmlDeviceGetTemperature", self._handle(gpu), sensor))

    def sm_clock_hertz(self, gpu: int) -> float:
        """`nvmlDeviceGetClockInfo`, SM. Check: `nvidia-smi --query-gpu=clocks.sm`."""
        megahertz = self._call("nvmlDeviceGetClockInfo", self._handle(gpu), pynvml.NVML_CLOCK_SM)
        return float(megahertz) * HERTZ_PER_MEGAHERTZ

    def throttle_reasons(self, gpu: int) -> tuple[str, ...]:
        """`nvmlDeviceGetCurrentClocksEventReasons`: names of the reasons in force, without idle.

        Bits newer than this list are left out. Check: `nvidia-smi -q -d PERFORMANCE`.
        """
        bits = self._call("nvmlDeviceGetCurrentClocksEventReasons", self._handle(gpu))
        return clock_reasons(bits)

    def pcie_bytes(self, gpu: int) -> tuple[int | None, int | None]:
        """`nvmlDeviceGetFieldValues` 197, 198: (transmitted, received) since the driver was loaded.

        `None` for a field with a return code of its own; raises when both have one.
        """
        fields = [pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES]
        sent, received = self._call("nvmlDeviceGetFieldValues", self._handle(gpu), fields)
        if sent.nvmlReturn and received.nvmlReturn:
            raise DriverError("nvmlDeviceGetFieldValues", code_name(sent.nvmlReturn))
        return _counter(sent), _counter(received)

    def processes(self, gpu: int) -> Sequence[tuple[int, int | None]]:
        """`nvmlDeviceGetComputeRunningProcesses_v3`: (PID, memory in bytes or `None`).

        PIDs are the host's. Check: `nvidia-smi --query-compute-apps=pid,used_memory`.
        """
        running = self._call("nvmlDeviceGetComputeRunningProcesses_v3", self._handle(gpu))
        return [(int(process.pid), process.usedGpuMemory) for process in running]

    def gpm_supported(self, gpu: int) -> bool:
        """`nvmlGpmQueryDeviceSupport`: Hopper and newer."""
        support = self._call("nvmlGpmQueryDeviceSupport", self._handle(gpu))
        return bool(support.isSupportedDevice)

    def gpm_buffer(self) -> Any:
        """`nvmlGpmSampleAlloc`; never share one between threads."""
        return self._call("nvmlGpmSampleAlloc")

    def gpm_sample(self, gpu: int, into: Any) -> None:
        """`nvmlGpmSampleGet`; raises IN_USE while another client holds GPM."""
        self._call("nvmlGpmSampleGet", self._handle(gpu), into)

    def gpm_metrics(self, gpu: int, earlier: Any, later: Any) -> GpmMetrics:
        """`nvmlGpmMetricsGet` between two samples at least 100 ms apart.

        Each metric has a return code of its own; one that failed or is no number is `None`.
        Check: `dcgmi dmon -e 1002,1003,1005,1004` (only one client at a time).
        """
        request = self._gpm_request
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        request.sample1, request.sample2 = earlier, later
        for place, metric_id in enumerate(_GPM_METRICS.values()):
            request.metrics[place].metricId = metric_id
        self._call("nvmlGpmMetricsGet", request)
        answers = request.metrics[: len(_GPM_METRICS)]
        ratios = [activity_ratio(answer.nvmlReturn, answer.value) for answer in answers]
        return GpmMetrics(**dict(zip(_GPM_METRICS, ratios, strict=True)))

    def gpm_free(self, buffer: Any) -> None:
        """`nvmlGpmSampleFree`. Never raises: a lost library has freed it already."""
        try:
            self._call("nvmlGpmSampleFree", buffer)
        except DriverError:
            return

    def watch_xids(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """`nvmlEventSetCreate` and `nvmlDeviceRegisterEvents`; returns the GPUs that can report."""
        if self._event_set is not None:
            self._call("nvmlEventSetFree", self._event_set)
        self._event_set = self._call("nvmlEventSetCreate")
        kind = pynvml.nvmlEventTypeXidCriticalError
        watched = []
        for gpu in gpus:
            try:
                self._call("nvmlDeviceRegisterEvents", self._handle(gpu), kind, self._event_set)
            except DriverError as error:
                if error.code == MISMATCH_CODE:
                    raise
                continue  # a card without events (or gone): it shows by its other calls
            watched.append(gpu)
        return tuple(watched)

    def wait_for_xid(self, timeout_seconds: float) -> tuple[int, int] | None:
        """`nvmlEventSetWait_v2` on a thread of its own: (gpu, xid), or `None` after the timeout."""
        milliseconds = int(timeout_seconds * 1000)
        try:
            event = self._call("nvmlEventSetWait_v2", self._event_set, milliseconds)
        except DriverError as error:
            if error.code == "TIMEOUT":
                return None
            raise
        address = _address(event.device)
        for gpu, handle in tuple(self._handles.items()):
            if _address(handle) == address:
                return gpu, int(event.eventData)
        return None

    def _handle(self, gpu: int) -> Any:
        try:
            return self._handles[gpu]
        except KeyError:
            raise DriverError("nvmlDeviceGetHandleByIndex_v2", "UNINITIALIZED") from None

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, name)(*arguments)
        except pynvml.NVMLError as error:
            call = _LIBRARY_NAMES.get(name, name)
            raise DriverError(call, code_name(error.value)) from error

    def _optional(self, name: str, *arguments: Any) -> Any:
        """Calls for something a GPU can do without: `None` unless the GPU itself is in trouble."""
        try:
            return self._call(name, *arguments)
        except DriverError as error:
            if error.code in LOST_CODES or error.code == MISMATCH_CODE:
                raise
            return None


def _counter(field: Any) -> int | None:
    """A byte counter's field value; `None` where it has a return code of its own."""
    if field.nvmlReturn:
        return None
    if field.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(field.value.uiVal)
    return int(field.value.ullVal)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
