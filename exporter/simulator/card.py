"""Eight cards behind the driver's interface: what their rings, gauges and counters would say.

Answers only what lies before the simulation's present, from any thread; never blocks but in
`wait_for_xid`. Levels are those of a 600 W card in the recordings of real decode loads.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

from exporter.gpu_driver import DriverError, GpmBuffer, GpmMetrics, RingReading
from exporter.records import GpuIdentity, Signal
from exporter.simulator.activity import (
    GRID_SECONDS,
    POWER_KEPT,
    UTILIZATION_KEPT,
    CardActivity,
    Totals,
)
from exporter.simulator.processes import SCHEDULERS
from exporter.simulator.scenarios import Scenario

MODEL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
_POWER_LIMIT_WATTS = 600.0
_MULTIPROCESSORS = 188
_MEMORY_BYTES = 97_887 * 2**20
_RESERVED_BYTES = 610 * 2**20
_IDLE_HERTZ, _BUSY_HERTZ = 180e6, 2_430e6
_GPM_LAG_SECONDS = 0.06
"""A GPM read sees the point of the 0.1 s grid that lies 60 to 160 ms back."""
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class World:
    """What the cards are asked about, and how to look at it without a tear."""

    cards: Sequence[CardActivity]
    now: Callable[[], float]
    handed_over_bytes: Callable[[], int]
    lock: AbstractContextManager[object]
    started_at: float


class SimulatedBuffer:
    """One GPM sample; `None` until it is taken."""

    def __init__(self) -> None:
        self.totals: Totals | None = None

    @property
    def taken_at(self) -> float | None:
        """The instant it speaks of, in epoch seconds."""
        return self.totals.at if self.totals is not None else None


class SimulatedDriver:
    """Implements `exporter.gpu_driver.GpuDriver` over simulated cards; GPU k runs stage k."""

    def __init__(self, scenario: Scenario, world: World) -> None:
        self._scenario = scenario
        self._world = world
        self._xids: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def report_xid(self, gpu: int, xid: int) -> None:
        """Hands an XID to whoever waits for one."""
        self._xids.put((gpu, xid))

    def start(self) -> None:
        """Nothing to load."""

    def stop(self) -> None:
        """Nothing to unload."""

    def count(self) -> int:
        """Eight, lost or not."""
        return len(self._world.cards)

    def identity(self, gpu: int) -> GpuIdentity:
        """See `GpuDriver`."""
        self._card("nvmlDeviceGetHandleByIndex_v2", gpu)
        return GpuIdentity(
            gpu=gpu,
            uuid=f"GPU-5d0e0000-0000-4000-8000-00000000000{gpu}",
            model=MODEL,
            pci_bus_id=f"00000000:{0x11 + 0x10 * gpu:02X}:00.0",
            power_limit_watts=_POWER_LIMIT_WATTS,
            multiprocessors=_MULTIPROCESSORS,
        )

    def persistence_mode(self, gpu: int) -> bool:
        """On."""
        self._card("nvmlDeviceGetPersistenceMode", gpu)
        return True

    def ring(self, gpu: int, signal: Signal, newer_than_us: int) -> RingReading:
        """See `GpuDriver`; keeps 71 utilization and 119 power samples, as measured."""
        call = "nvmlDeviceGetSamples"
        card = self._card(call, gpu)
        if signal is Signal.POWER and not self._scenario.power_ring:
            raise DriverError(call, "NOT_SUPPORTED")
        if signal is Signal.GPM:
            raise DriverError(call, "INVALID_ARGUMENT")
        samples = card.power if signal is Signal.POWER else card.utilization
        kept = POWER_KEPT if signal is Signal.POWER else UTILIZATION_KEPT
        with self._world.lock:
            taken = _newest(samples, self._world.now(), kept)
        # A card that was away comes back with an empty ring.
        stamped = [(int(at * _US), value) for at, value in taken if not self._is_lost(gpu, at)]
        return RingReading(tuple(each for each in stamped if each[0] > newer_than_us))

    def utilization(self, gpu: int) -> float:
        """The share of a 20 ms moment, refreshed every 200 ms: it aliases as the real one does."""
        card = self._card("nvmlDeviceGetUtilizationRates", gpu)
        with self._world.lock:
            window = _newest(card.utilization, self._world.now(), 1)
            if not window:
                return 0.0
            at = window[0][0]
            earlier, later = card.totals(at - GRID_SECONDS / 5), card.totals(at)
        resident = later.working + later.waiting - earlier.working - earlier.waiting
        seconds = later.at - earlier.at
        return min(round(resident / seconds, 2), 1.0) if seconds > 0 else 0.0

    def power_watts(self, gpu: int) -> float:
        """Mean of the last second."""
        card = self._card("nvmlDeviceGetPowerUsage", gpu)
        if not self._scenario.power_ring:
            raise DriverError("nvmlDeviceGetPowerUsage", "NOT_SUPPORTED")
        return self._mean_watts(card)

    def power_limit_watts(self, gpu: int) -> float:
        """See `GpuDriver`."""
        self._card("nvmlDeviceGetEnforcedPowerLimit", gpu)
        return _POWER_LIMIT_WATTS

    def energy_joules(self, gpu: int) -> float:
        """See `GpuDriver`; starts with an hour of idle."""
        card = self._card("nvmlDeviceGetTotalEnergyConsumption", gpu)
        with self._world.lock:
            return 3600 * card.levels.idle_watts + card.totals(self._world.now()).joules

    def memory_bytes(self, gpu: int) -> tuple[int, int]:
        """See `GpuDriver`."""
        self._card("nvmlDeviceGetMemoryInfo", gpu)
        return _RESERVED_BYTES + self._process_bytes(gpu), _MEMORY_BYTES

    def temperature_celsius(self, gpu: int) -> float:
        """Follows the power of the last second."""
        card = self._card("nvmlDeviceGetTemperature", gpu)
        fault = self._scenario.fault
        extra = fault.extra_celsius if fault is not None and fault.gpu == gpu else 0.0
        return float(round(27.0 + 0.11 * self._mean_watts(card) + extra))

    def sm_clock_hertz(self, gpu: int) -> float:
        """Low when nothing was resident in the last second."""
        card = self._card("nvmlDeviceGetClockInfo", gpu)
        with self._world.lock:
            now = self._world.now()
            earlier, later = card.totals(now - 1.0), card.totals(now)
        if later.working + later.waiting <= earlier.working + earlier.waiting:
            return _IDLE_HERTZ
        fault = self._scenario.fault
        ratio = fault.clock_ratio if fault is not None and fault.gpu == gpu else 1.0
        return round(_BUSY_HERTZ * ratio / 15e6) * 15e6

    def throttle_reasons(self, gpu: int) -> tuple[str, ...]:
        """See `GpuDriver`."""
        self._card("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        fault = self._scenario.fault
        if fault is None or fault.gpu != gpu or fault.throttle_reason is None:
            return ()
        return (fault.throttle_reason,)

    def pcie_bytes(self, gpu: int) -> tuple[int | None, int | None]:
        """Hidden states: every stage but the last sends them on, every one but the first gets them."""
        self._card("nvmlDeviceGetFieldValues", gpu)
        handed_over = self._world.handed_over_bytes()
        sends, receives = gpu < len(self._world.cards) - 1, gpu > 0
        return handed_over * sends, handed_over * receives

    def processes(self, gpu: int) -> Sequence[tuple[int, int | None]]:
        """The scheduler of the stage on this card."""
        self._card("nvmlDeviceGetComputeRunningProcesses", gpu)
        return [(SCHEDULERS[gpu].pid, self._process_bytes(gpu))]

    def gpm_supported(self, gpu: int) -> bool:
        """As the scenario says."""
        self._card("nvmlGpmQueryDeviceSupport", gpu)
        return self._scenario.gpm

    def gpm_buffer(self) -> GpmBuffer:
        """See `GpuDriver`."""
        return SimulatedBuffer()

    def gpm_sample(self, gpu: int, into: GpmBuffer) -> None:
        """See `GpuDriver`."""
        card = self._card("nvmlGpmSampleGet", gpu)
        if not self._scenario.gpm:
            raise DriverError("nvmlGpmSampleGet", "NOT_SUPPORTED")
        with self._world.lock:
            into_buffer = _buffer(into)
            elapsed = self._world.now() - _GPM_LAG_SECONDS - self._world.started_at
            grid_at = self._world.started_at + int(elapsed / GRID_SECONDS) * GRID_SECONDS
            into_buffer.totals = card.totals(grid_at)

    def gpm_metrics(self, gpu: int, earlier: GpmBuffer, later: GpmBuffer) -> GpmMetrics:
        """See `GpuDriver`; empty between two reads of the same grid point."""
        card = self._card("nvmlGpmMetricsGet", gpu)
        first, second = _buffer(earlier).totals, _buffer(later).totals
        if first is None or second is None or second.at <= first.at:
            return GpmMetrics()
        seconds = second.at - first.at
        decode = (second.decode - first.decode) / seconds
        prefill = (second.prefill - first.prefill) / seconds
        waiting = (second.waiting - first.waiting) / seconds
        levels = card.levels
        sm = levels.decode_sm * decode + levels.prefill_sm * prefill + levels.waiting_sm * waiting
        return GpmMetrics(
            sm_ratio=sm,
            occupancy_ratio=0.2 * sm,
            dram_ratio=levels.decode_dram * decode + levels.prefill_dram * prefill,
            tensor_ratio=levels.decode_tensor * decode + levels.prefill_tensor * prefill,
        )

    def gpm_free(self, buffer: GpmBuffer) -> None:
        """Nothing to free."""

    def watch_xids(self, gpus: Sequence[int]) -> tuple[int, ...]:
        """Every card can report."""
        return tuple(gpus)

    def wait_for_xid(self, timeout_seconds: float) -> tuple[int, int] | None:
        """See `GpuDriver`."""
        try:
            return self._xids.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def _card(self, call: str, gpu: int) -> CardActivity:
        """The card, if it answers now."""
        if not 0 <= gpu < len(self._world.cards):
            raise DriverError(call, "INVALID_ARGUMENT")
        if self._is_lost(gpu, self._world.now()):
            raise DriverError(call, "GPU_IS_LOST")
        return self._world.cards[gpu]

    def _is_lost(self, gpu: int, at: float) -> bool:
        fault = self._scenario.fault
        if fault is None or fault.gpu != gpu or fault.lost is None:
            return False
        return fault.lost.end_if_inside(at - self._world.started_at) is not None

    def _mean_watts(self, card: CardActivity) -> float:
        with self._world.lock:
            now = self._world.now()
            earlier, later = card.totals(now - 1.0), card.totals(now)
        seconds = later.at - earlier.at
        joules = later.joules - earlier.joules
        return joules / seconds if seconds > 0 else card.levels.idle_watts

    def _process_bytes(self, gpu: int) -> int:
        return 90_112 * 2**20 + (gpu == len(self._world.cards) - 1) * 320 * 2**20


def _newest(
    samples: Sequence[tuple[float, float]], now: float, kept: int
) -> list[tuple[float, float]]:
    """The newest of those before now, oldest first; a late stage's windows may lie ahead of it."""
    before_now = (sample for sample in reversed(samples) if sample[0] <= now)
    return list(islice(before_now, kept))[::-1]


def _buffer(buffer: GpmBuffer) -> SimulatedBuffer:
    if not isinstance(buffer, SimulatedBuffer):
        raise TypeError(f"not a sample of this driver: {buffer!r}")
    return buffer
