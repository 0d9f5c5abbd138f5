"""What the GPU sampler asks of a driver: NVML in production, a simulated card in the demo.

One method is one driver call, so that its time and its failure can be counted under its name.
Every method may raise `DriverError`; values the driver does not know are absent, never zero.
All methods but `wait_for_xid` are called from one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from exporter.records import GpuIdentity, Signal

LIBRARY_CALLS: Mapping[str, str] = MappingProxyType(
    {
        "start": "nvmlInitWithFlags",
        "count": "nvmlDeviceGetCount_v2",
        "identity": "nvmlDeviceGetHandleByIndex_v2",
        "persistence_mode": "nvmlDeviceGetPersistenceMode",
        "ring": "nvmlDeviceGetSamples",
        "utilization": "nvmlDeviceGetUtilizationRates",
        "power_watts": "nvmlDeviceGetPowerUsage",
        "power_limit_watts": "nvmlDeviceGetEnforcedPowerLimit",
        "energy_joules": "nvmlDeviceGetTotalEnergyConsumption",
        "memory_bytes": "nvmlDeviceGetMemoryInfo_v2",
        "temperature_celsius": "nvmlDeviceGetTemperature",
        "sm_clock_hertz": "nvmlDeviceGetClockInfo",
        "throttle_reasons": "nvmlDeviceGetCurrentClocksEventReasons",
        "pcie_bytes": "nvmlDeviceGetFieldValues",
        "processes": "nvmlDeviceGetComputeRunningProcesses_v3",
        "gpm_supported": "nvmlGpmQueryDeviceSupport",
        "gpm_buffer": "nvmlGpmSampleAlloc",
        "gpm_sample": "nvmlGpmSampleGet",
        "gpm_metrics": "nvmlGpmMetricsGet",
        "watch_xids": "nvmlEventSetCreate",
        "wait_for_xid": "nvmlEventSetWait_v2",
    }
)
"""Method → the library function its time is counted under (label `call`)."""

LOST_CODES = frozenset(
    {
        "GPU_IS_LOST",
        "GPU_NOT_FOUND",
        "RESET_REQUIRED",
        "UNINITIALIZED",
        "UNKNOWN",
        "DRIVER_NOT_LOADED",
    }
)
"""The GPU (or the library under it) is gone; only asking anew from its handle on can help."""

UNSUPPORTED_CODES = frozenset(
    {
        "NOT_SUPPORTED",
        "FUNCTION_NOT_FOUND",
        "INVALID_ARGUMENT",
        "ARGUMENT_VERSION_MISMATCH",
        "DEPRECATED",
    }
)
"""This card, driver or library will never answer this call; asking again changes nothing."""

MISMATCH_CODE = "LIB_RM_VERSION_MISMATCH"
"""The driver was replaced under the running process; no call will ever work again in it."""


class DriverError(Exception):
    """A driver call failed.

    Attributes:
        call: Name of the library function, e.g. `nvmlDeviceGetSamples`.
        code: NVML's return code without its prefix, e.g. `GPU_IS_LOST`, `NOT_SUPPORTED`.
    """

    def __init__(self, call: str, code: str, message: str = "") -> None:
        super().__init__(message or f"{call} answered {code}")
        self.call = call
        self.code = code


@dataclass(frozen=True, slots=True)
class RingReading:
    """Samples newer than the timestamp asked for, oldest first: (microseconds since 1970, value).

    Values are a share 0 to 1 (utilization) or watts (power). Samples the driver marks invalid
    (timestamp 0, utilization over 100) are left out and counted in `dropped`.
    """

    samples: tuple[tuple[int, float], ...]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class GpmMetrics:
    """Activity between two GPM samples, shares 0 to 1; `None` where the card does not answer."""

    sm_ratio: float | None = None
    occupancy_ratio: float | None = None
    dram_ratio: float | None = None
    tensor_ratio: float | None = None


class GpmBuffer(Protocol):
    """One allocated GPM sample; belongs to the thread that made it."""


class GpuDriver(Protocol):
    """The driver calls the sampler uses; `gpu` is the NVML index."""

    def start(self) -> None:
        """`nvmlInitWithFlags`. Called again after `stop` when the driver was lost."""

    def stop(self) -> None:
        """`nvmlShutdown`. Never raises."""

    def count(self) -> int:
        """`nvmlDeviceGetCount_v2`: number of GPUs, answering or not."""

    def identity(self, gpu: int) -> GpuIdentity:
        """Handle, UUID, name, PCI bus id, power limit and multiprocessor count of one GPU.

        The only method that gets the handle anew; a lost GPU must be asked for it again.
        """

    def persistence_mode(self, gpu: int) -> bool:
        """`nvmlDeviceGetPersistenceMode`."""

    def ring(self, gpu: int, signal: Signal, newer_than_us: int) -> RingReading:
        """`nvmlDeviceGetSamples`: the driver's ring of UTILIZATION or POWER.

        Check: none; nvidia-smi shows the polled gauge. An empty ring (NOT_FOUND) is an empty
        reading, not an error.
        """

    def utilization(self, gpu: int) -> float:
        """`nvmlDeviceGetUtilizationRates`.gpu as a share: the polled gauge, which aliases.

        Check: `nvidia-smi --query-gpu=utilization.gpu`.
        """

    def power_watts(self, gpu: int) -> float:
        """`nvmlDeviceGetPowerUsage`. Check: `nvidia-smi --query-gpu=power.draw`."""

    def power_limit_watts(self, gpu: int) -> float:
        """`nvmlDeviceGetEnforcedPowerLimit`. Check: `nvidia-smi --query-gpu=enforced.power.limit`."""

    def energy_joules(self, gpu: int) -> float:
        """`nvmlDeviceGetTotalEnergyConsumption`; 2.5 ms and more, so asked for rarely."""

    def memory_bytes(self, gpu: int) -> tuple[int, int]:
        """`nvmlDeviceGetMemoryInfo_v2`: (used, total), used without what the driver reserves.

        Check: `nvidia-smi --query-gpu=memory.used,memory.total`.
        """

    def temperature_celsius(self, gpu: int) -> float:
        """`nvmlDeviceGetTemperature`, core. Check: `--query-gpu=temperature.gpu`."""

    def sm_clock_hertz(self, gpu: int) -> float:
        """`nvmlDeviceGetClockInfo`, SM. Check: `--query-gpu=clocks.sm`."""

    def throttle_reasons(self, gpu: int) -> tuple[str, ...]:
        """`nvmlDeviceGetCurrentClocksEventReasons`: names of the reasons in force, without idle.

        Check: `nvidia-smi -q -d PERFORMANCE`.
        """

    def pcie_bytes(self, gpu: int) -> tuple[int | None, int | None]:
        """`nvmlDeviceGetFieldValues` 197, 198: (transmitted, received) since the driver was loaded.

        `None` for a field the card does not answer; raises when it answers neither.
        """

    def processes(self, gpu: int) -> Sequence[tuple[int, int | None]]:
        """`nvmlDeviceGetComputeRunningProcesses`: (PID, memory in bytes or `None`)."""

    def gpm_supported(self, gpu: int) -> bool:
        """`nvmlGpmQueryDeviceSupport`: Hopper and newer."""

    def gpm_buffer(self) -> GpmBuffer:
        """`nvmlGpmSampleAlloc`."""

    def gpm_sample(self, gpu: int, into: GpmBuffer) -> None:
        """`nvmlGpmSampleGet`; raises IN_USE while another client holds GPM."""

    def gpm_metrics(self, gpu: int, earlier: GpmBuffer, later: GpmBuffer) -> GpmMetrics:
        """`nvmlGpmMetricsGet` between two samples at least 100 ms apart."""

    def gpm_free(self, buffer: GpmBuffer) -> None:
        """`nvmlGpmSampleFree`. Never raises."""

    def watch_xids(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """`nvmlEventSetCreate` and `nvmlDeviceRegisterEvents`; returns the GPUs that can report."""

    def wait_for_xid(self, timeout_seconds: float) -> tuple[int, int] | None:
        """`nvmlEventSetWait_v2` on a thread of its own: (gpu, xid), or `None` after the timeout."""
