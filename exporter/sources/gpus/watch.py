"""One GPU over the rounds: what it answers, what it will never answer, whether it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

from exporter.gpu_driver import LOST_CODES, UNSUPPORTED_CODES, DriverError, GpuDriver
from exporter.records import (
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuState,
    Record,
    RingSamples,
    Signal,
)
from exporter.sources.gpus.call_tally import CallTally
from exporter.sources.gpus.gpm_windows import GpmWindows
from exporter.sources.gpus.pacing import BackOff, Due
from exporter.sources.gpus.ring_cursor import RingCursor

P = ParamSpec("P")
T = TypeVar("T")

INVALID_SAMPLE = "INVALID_SAMPLE"
"""Code under which dropped ring entries are counted: no code of NVML's."""

PCIE_SECONDS = 10.0
ENERGY_SECONDS = 60.0
"""How often the driver's energy counter, the dearest of all calls (4.5 ms), is read where a power ring
carries it on; else as often as PCIe bytes."""

_MUTE_ROUNDS = 3
_PROVEN_SECONDS = 60.0


class GpuLostError(Exception):
    """The GPU does not answer any more; `code` is the driver's word for it."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class GpuWatch:
    """Asks one GPU; every asking method may raise `GpuLostError`. Belongs to the sampling thread.

    Attributes:
        gpu: Its number in records: the NVML index it had when it was first seen.
        index: Its NVML index now; `None` while the library does not list it.
        uuid: `None` until it answered for the first time.
        up: Whether it answers.
        is_new: Whether it has not been asked since it came up.
        down_at: Since when it does not (monotonic).
    """

    def __init__(
        self,
        gpu: int,
        driver: GpuDriver,
        tally: CallTally,
        *,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.gpu = gpu
        self.index: int | None = gpu
        self.uuid: str | None = None
        self.up = False
        self.is_new = True
        self.down_at = monotonic()
        self.back_off = BackOff(1.0, 30.0)
        self._up_at = self.down_at
        self._told_down = False
        self._driver = driver
        self._tally = tally
        self._wall = wall
        self._monotonic = monotonic
        self._cursors = {signal: RingCursor(gpu, signal, wall()) for signal in _RING_SIGNALS}
        self._gpm = GpmWindows(driver, tally, wall=wall, monotonic=monotonic)
        self._unsupported: set[tuple[str, object]] = set()
        self._pcie_due, self._energy_due = Due(), Due()
        self._pcie: tuple[int | None, int | None] | None = None
        self._energy: float | None = None
        self._answers = self._mute_rounds = 0
        self._failure: str | None = None
        self._lost_call: Callable[[int], object] | None = None

    # --- asking --------------------------------------------------------------------------------

    def drain(self, signal: Signal) -> RingSamples | None:
        """What the driver's ring holds that was not seen yet; `None` if nothing or no ring."""
        cursor = self._cursors[signal]
        reading = self.ask(self._driver.ring, signal, cursor.newest_us)
        if reading is None:
            return None
        if reading.dropped:
            call = "nvmlDeviceGetSamples"
            self._tally.count_error(call, INVALID_SAMPLE, reading.dropped)
        samples = cursor.take(reading)
        if samples is not None:
            self._tally.count_samples(signal, len(samples.samples))
        return samples

    def read_gauges(self) -> GpuGauges:
        """Momentary readings; PCIe bytes and energy are read rarely and repeated between.

        The polled gauges of utilization and power are read only where there is no ring.
        """
        ask, driver, now = self.ask, self._driver, self._monotonic()
        has_ring = not self._has_no_ring(Signal.POWER)
        if self._pcie_due.is_due(now, PCIE_SECONDS):
            self._pcie = ask(driver.pcie_bytes)
        if self._energy_due.is_due(now, ENERGY_SECONDS if has_ring else PCIE_SECONDS):
            self._energy = ask(driver.energy_joules)
        used, total = ask(driver.memory_bytes) or (None, None)
        sent, received = self._pcie or (None, None)
        return GpuGauges(
            gpu=self.gpu,
            read_at=self._wall(),
            polled_utilization_ratio=(
                ask(driver.utilization) if self._has_no_ring(Signal.UTILIZATION) else None
            ),
            power_watts=None if has_ring else ask(driver.power_watts),
            power_limit_watts=ask(driver.power_limit_watts),
            energy_joules=self._energy,
            memory_used_bytes=used,
            memory_total_bytes=total,
            temperature_celsius=ask(driver.temperature_celsius),
            sm_clock_hertz=ask(driver.sm_clock_hertz),
            pcie_transmit_bytes=sent,
            pcie_receive_bytes=received,
            throttle_reasons=ask(driver.throttle_reasons),
        )

    def take_gpm_window(self) -> GpmWindow | None:
        """SM, DRAM and tensor activity since the last round; `None` where GPM does not answer."""
        return None if self.index is None else self._gpm.take(self.gpu, self.index)

    def end_round(self) -> None:
        """Judges the round: three in a row with failures and no answer mean the GPU is gone."""
        self.is_new = False
        failure, answers = self._failure, self._answers
        self._failure, self._answers = None, 0
        self._mute_rounds = self._mute_rounds + 1 if failure and not answers else 0
        if failure and self._mute_rounds >= _MUTE_ROUNDS:
            self._lost_call = None
            raise GpuLostError(failure)

    def ask(
        self,
        method: Callable[Concatenate[int, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """Calls a driver method for this GPU; `None` if it is not supported or failed.

        Raises:
            GpuLostError: The GPU, not just this call, is in trouble.
        """
        key = (method.__name__, args[0] if args else None)
        if self.index is None or key in self._unsupported:
            return None
        try:
            value = self._tally.call(method, self.index, *args, **kwargs)
        except DriverError as error:
            if error.code in LOST_CODES:
                self._lost_call = lambda index: self._tally.call(method, index, *args, **kwargs)
                raise GpuLostError(error.code) from error
            if error.code in UNSUPPORTED_CODES:
                self._unsupported.add(key)
            else:
                self._failure = error.code
            return None
        self._answers += 1
        return value

    def _has_no_ring(self, signal: Signal) -> bool:
        return (self._driver.ring.__name__, signal) in self._unsupported

    # --- going and coming ----------------------------------------------------------------------

    def go_down(self, code: str) -> GpuState | None:
        """Stops asking; what was learned of its rings stays, so that nothing is read twice.

        Returns:
            The news, or `None` if it was told already.
        """
        now = self._monotonic()
        if self.up:
            self.down_at = now
            if now - self._up_at > _PROVEN_SECONDS:
                self.back_off.reset()
        self.back_off.fail(now)
        if not self.up and self._told_down:
            return None
        self.up, self._told_down = False, True
        self._mute_rounds = 0
        self._gpm.interrupt()
        self._pcie = self._energy = None
        return GpuState(self.gpu, self._wall(), up=False, reason=code)

    def retry(self) -> tuple[Record, ...]:
        """Asks whether the GPU is back: for its handle, then for what it failed to answer.

        Raises:
            DriverError: It is not.
            GpuLostError: Another GPU answers at its index.
        """
        if self.index is None:
            raise GpuLostError("GPU_NOT_FOUND")
        identity = self._tally.call(self._driver.identity, self.index)
        if self.uuid is not None and identity.uuid != self.uuid:
            raise GpuLostError("GPU_NOT_FOUND")
        return self.come_up(identity)

    def come_up(self, identity: GpuIdentity) -> tuple[Record, ...]:
        """Takes the identity a GPU answered with; records only if it was not up before.

        Raises:
            DriverError: It still fails the call that told its loss.
        """
        self.uuid = identity.uuid
        if self.up:
            return ()
        if self._lost_call is not None:
            self._lost_call(identity.gpu)
        self._lost_call = None
        self.up = True
        self.is_new = True
        self._up_at = self._monotonic()
        self._pcie_due, self._energy_due = Due(), Due()
        return (
            replace(identity, gpu=self.gpu),
            GpuState(self.gpu, self._wall(), up=True),
        )

    def release(self) -> None:
        """Before the library shuts down: frees what it holds; all is probed anew afterwards."""
        self._gpm.release()
        self._unsupported.clear()


_RING_SIGNALS = (Signal.POWER, Signal.UTILIZATION)
