"""One GPU as its driver shows it: integrals of its signals, gauges while they are fresh."""

from __future__ import annotations

from collections import Counter

from exporter.records import (
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuState,
    RingSamples,
    Signal,
)
from exporter.sample_rings import SignalIntegral
from exporter.snapshot import GpuRank, GpuSnapshot

GAUGE_FRESH_SECONDS = 5.0
"""Gauges are read every 2 s; older than this (a hanging driver) they are unknown, and so they are
when they lie as far ahead: the clock was set back."""
RARE_GAUGE_FRESH_SECONDS = 30.0
"""The same for counters of the driver that are read more rarely and repeated between."""
POWER_SECONDS = 600
"""Seconds whose mean power is kept, for a look back."""
THROTTLE_READ_SECONDS = 5.0
"""A throttle reason is charged the time since the reading before it, if that is not longer."""


class _CarriedEnergy:
    """The driver's energy counter, carried on by its power samples from one reading to the next.

    Both come from one sensor: over a minute they differed by 0.2 % at the most on an H200.
    """

    def __init__(self) -> None:
        self._read_joules: float | None = None
        self._read_at_joules = 0.0
        self._least_joules = 0.0

    def take(self, read_joules: float, power_joules: float) -> None:
        """Takes the driver's counter, and the integral of the power samples until then."""
        before = self._read_joules
        if read_joules == before:
            return  # the same reading, repeated
        is_reset = before is None or read_joules < before
        self._least_joules = 0.0 if is_reset else self.joules(power_joules)
        self._read_joules, self._read_at_joules = read_joules, power_joules

    def joules(self, power_joules: float) -> float:
        """Energy until the integral had that value; never less than was said of this counter."""
        carried = (self._read_joules or 0.0) + power_joules - self._read_at_joules
        return max(self._least_joules, carried)


class GpuSeries:
    """Folds the records of one GPU."""

    def __init__(self, gpu: int) -> None:
        self.identity = GpuIdentity(gpu, uuid="")
        self.up: bool | None = None
        self.down_reason: str | None = None
        self.utilization = SignalIntegral()
        self.power = SignalIntegral(POWER_SECONDS)
        self.sm = SignalIntegral()
        self.dram = SignalIntegral()
        self.xid_errors: Counter[int] = Counter()
        self.throttled_seconds: dict[str, float] = {}
        self._gauges: GpuGauges | None = None
        self._rare: dict[str, tuple[float, float]] = {}
        self._energy = _CarriedEnergy()

    def fold_identity(self, identity: GpuIdentity) -> None:
        """Learns who the GPU is."""
        self.identity = identity
        if self.up is None and identity.model is not None:
            self.up = True

    def fold_samples(self, record: RingSamples) -> None:
        """Integrates ring samples of utilization or power."""
        self.up = True if self.up is None else self.up
        integral = self.utilization if record.signal is Signal.UTILIZATION else self.power
        for taken_at, value in record.samples:
            integral.add_sample(taken_at, record.nominal_seconds, value)

    def fold_gpm(self, window: GpmWindow) -> None:
        """Integrates one GPM window; an activity the card did not answer is missed time."""
        if window.sm_ratio is not None:
            self.sm.add_window(window.started_at, window.ended_at, window.sm_ratio)
        if window.dram_ratio is not None:
            self.dram.add_window(window.started_at, window.ended_at, window.dram_ratio)

    def fold_gauges(self, gauges: GpuGauges) -> None:
        """Takes momentary readings and charges throttle reasons with the time between two."""
        before = self._gauges
        if before is not None and gauges.throttle_reasons:
            elapsed = gauges.read_at - before.read_at
            if 0 < elapsed <= THROTTLE_READ_SECONDS:
                for reason in gauges.throttle_reasons:
                    self.throttled_seconds[reason] = (
                        self.throttled_seconds.get(reason, 0.0) + elapsed
                    )
        elif gauges.throttle_reasons:
            for reason in gauges.throttle_reasons:
                self.throttled_seconds.setdefault(reason, 0.0)
        self._gauges = gauges
        for key in ("energy_joules", "pcie_transmit_bytes", "pcie_receive_bytes"):
            value = getattr(gauges, key)
            if value is not None:
                self._rare[key] = (value, gauges.read_at)
        if gauges.energy_joules is not None:
            self._energy.take(gauges.energy_joules, self.power.value_seconds)

    def fold_state(self, state: GpuState) -> None:
        """The GPU stopped answering or came back; while it is down its gauges are unknown."""
        self.up = state.up
        self.down_reason = None if state.up else state.reason
        if not state.up:
            self._gauges = None
            self._rare.clear()

    def last_sample_at(self) -> float | None:
        """End of the newest sample of any signal; `None` before the first."""
        ends = [
            integral.last_at
            for integral in (self.utilization, self.power, self.sm)
            if integral.last_at is not None
        ]
        return max(ends, default=None)

    def utilization_second(self, now: float) -> int | None:
        """The newest complete second of the ring; `None` if there is none or it is stale."""
        second = self.utilization.last_complete_second()
        if second is None or self.up is False or abs(now - (second + 1)) > GAUGE_FRESH_SECONDS:
            return None
        return second

    def snapshot(self, now: float, ranks: tuple[GpuRank, ...]) -> GpuSnapshot:
        """The GPU at `now`."""
        gauges = self._gauges
        if gauges is None or abs(now - gauges.read_at) > GAUGE_FRESH_SECONDS:
            gauges = GpuGauges(self.identity.gpu, now)
        integrals = {Signal.UTILIZATION: self.utilization, Signal.POWER: self.power}
        integrals[Signal.GPM] = self.sm if self.sm.last_at is not None else self.dram
        seen = {signal: i for signal, i in integrals.items() if i.last_at is not None}
        return GpuSnapshot(
            gpu=self.identity.gpu,
            uuid=self.identity.uuid,
            model=self.identity.model,
            pci_bus_id=self.identity.pci_bus_id,
            ranks=ranks,
            up=self.up,
            down_reason=self.down_reason,
            utilization_ratio=self._utilization(now, gauges),
            resident_seconds=_value(self.utilization),
            sm_active_seconds=_value(self.sm),
            dram_active_seconds=_value(self.dram),
            observed_seconds={signal: i.observed_seconds for signal, i in seen.items()},
            missed_seconds={signal: i.missed_seconds for signal, i in seen.items()},
            power_watts=self._power(now, gauges),
            power_limit_watts=(
                gauges.power_limit_watts
                if gauges.power_limit_watts is not None or self.up is False
                else self.identity.power_limit_watts
            ),
            energy_joules=self._energy_joules(now),
            memory_used_bytes=gauges.memory_used_bytes,
            memory_total_bytes=gauges.memory_total_bytes,
            temperature_celsius=gauges.temperature_celsius,
            sm_clock_hertz=gauges.sm_clock_hertz,
            pcie_transmit_bytes=_whole(self._rare_value("pcie_transmit_bytes", now)),
            pcie_receive_bytes=_whole(self._rare_value("pcie_receive_bytes", now)),
            throttled_seconds=dict(self.throttled_seconds),
            xid_errors=dict(self.xid_errors),
            last_sample_at=self.last_sample_at(),
        )

    def _utilization(self, now: float, gauges: GpuGauges) -> float | None:
        if self.utilization.last_at is None:
            return gauges.polled_utilization_ratio
        second = self.utilization_second(now)
        return None if second is None else self.utilization.second_mean(second)

    def _power(self, now: float, gauges: GpuGauges) -> float | None:
        second = self.power.last_complete_second()
        if (
            second is not None
            and self.up is not False
            and abs(now - (second + 1)) <= GAUGE_FRESH_SECONDS
        ):
            mean = self.power.second_mean(second)
            if mean is not None:
                return mean
        return gauges.power_watts

    def _energy_joules(self, now: float) -> float | None:
        if self._rare_value("energy_joules", now) is None:
            return None
        return self._energy.joules(self.power.value_seconds)

    def _rare_value(self, key: str, now: float) -> float | None:
        entry = self._rare.get(key)
        if entry is None or abs(now - entry[1]) > RARE_GAUGE_FRESH_SECONDS:
            return None
        return entry[0]


def _value(integral: SignalIntegral) -> float | None:
    return None if integral.last_at is None else integral.value_seconds


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
