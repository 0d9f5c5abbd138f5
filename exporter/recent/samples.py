"""GPU samples of some seconds, packed: 8 bytes a ring sample instead of the 100 of its objects.

In: records of rings, GPM and gauges. Out: the same records, times to the microsecond, watts to the
milliwatt. What is closed is compressed, too: about 5 bytes a sample.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from exporter.records import GpmWindow, GpuGauges, Record, RingSamples, Signal

MICROSECONDS = 1e6
_SIGNALS = tuple(Signal)
_DECIMALS = {Signal.UTILIZATION: 6, Signal.POWER: 3, Signal.GPM: 6}
"""What the driver gives at most, and what a 32-bit number holds."""
_UNKNOWN = math.nan
_READINGS = (
    "polled_utilization_ratio",
    "power_watts",
    "power_limit_watts",
    "energy_joules",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "sm_clock_hertz",
    "pcie_transmit_bytes",
    "pcie_receive_bytes",
)
_WHOLE = tuple(name.endswith("_bytes") for name in _READINGS)
_FAST = 1


class PackedSamples:
    """What the GPUs said in a stretch of time; written only while it is the newest.

    Attributes:
        began_at: When the stretch began, whole epoch seconds.
        ended_at: When the newest record came.
    """

    def __init__(self, began_at: float) -> None:
        self.began_at = self.ended_at = float(math.floor(began_at))
        self._rings = array("f")  # rows: GPU, signal, nominal seconds, number of samples
        self._offsets = array("i")  # microseconds since `began_at`
        self._values = array("f")
        self._gpm = array("f")  # rows: GPU, five ratios
        self._gpm_offsets = array("i")  # pairs: start, end
        self._gauges = array("d")  # rows: GPU, instant, readings, index of the throttle reasons
        self._reasons: list[tuple[str, ...]] = []

    def add(self, record: RingSamples | GpmWindow | GpuGauges, now: float) -> None:
        """Takes a record that came at `now`; instants half an hour away cannot be kept."""
        self.ended_at = max(self.ended_at, now)
        try:
            if isinstance(record, RingSamples):
                self._add_ring(record)
            elif isinstance(record, GpmWindow):
                self._add_gpm(record)
            else:
                self._add_gauges(record)
        except (OverflowError, ValueError):  # a clock gone wrong, or no number
            return

    def closed(self) -> ClosedSamples:
        """What there is now, compressed; later records do not change it."""
        columns = {
            name: zlib.compress(column, _FAST)
            for name, column in vars(self).items()
            if isinstance(column, array)
        }
        return ClosedSamples(self.began_at, self.ended_at, columns, tuple(self._reasons))

    @classmethod
    def opened(cls, closed: ClosedSamples) -> PackedSamples:
        """As it was when it was closed."""
        samples = cls(closed.began_at)
        samples.ended_at = closed.ended_at
        for name, packed in closed.columns.items():
            getattr(samples, name).frombytes(zlib.decompress(packed))
        samples._reasons = list(closed.reasons)
        return samples

    def records(self, since: float) -> Iterator[Record]:
        """The records again, without samples up to an instant; kinds follow each other."""
        yield from self._ring_records(since)
        yield from self._gpm_records(since)
        yield from self._gauge_records(since)

    # --- rings ---------------------------------------------------------------------------------

    def _offset(self, at: float) -> int:
        return round((at - self.began_at) * MICROSECONDS)

    def _instant(self, offset: int) -> float:
        return round(self.began_at + offset / MICROSECONDS, 6)

    def _add_ring(self, record: RingSamples) -> None:
        began_at, samples = self.began_at, record.samples
        # Made whole before anything is appended: one bad instant must not leave half a row.
        offsets = array("i", [round((at - began_at) * MICROSECONDS) for at, _ in samples])
        self._offsets.extend(offsets)
        self._values.extend([value for _, value in samples])
        signal = _SIGNALS.index(record.signal)
        self._rings.extend((record.gpu, signal, record.nominal_seconds, len(samples)))

    def _ring_records(self, since: float) -> Iterator[RingSamples]:
        first = 0
        for gpu, index, nominal, count in _rows(self._rings, 4):
            signal, last = _SIGNALS[int(index)], first + int(count)
            decimals = _DECIMALS[signal]
            taken = zip(self._offsets[first:last], self._values[first:last], strict=True)
            samples = ((self._instant(offset), round(value, decimals)) for offset, value in taken)
            kept = tuple(sample for sample in samples if sample[0] > since)
            first = last
            if kept:
                yield RingSamples(int(gpu), signal, round(nominal, 6), kept)

    # --- GPM -----------------------------------------------------------------------------------

    def _add_gpm(self, window: GpmWindow) -> None:
        offsets = array("i", (self._offset(window.started_at), self._offset(window.ended_at)))
        ratios = (
            window.sm_ratio,
            window.occupancy_ratio,
            window.dram_ratio,
            window.tensor_ratio,
            window.graphics_ratio,
        )
        self._gpm_offsets.extend(offsets)
        self._gpm.extend(chain((window.gpu,), map(_packed, ratios)))

    def _gpm_records(self, since: float) -> Iterator[GpmWindow]:
        rows = zip(
            _rows(self._gpm, 6), zip(*(iter(self._gpm_offsets),) * 2, strict=True), strict=True
        )
        for (gpu, *ratios), (start, end) in rows:
            if (ended_at := self._instant(end)) > since:
                known = [None if math.isnan(ratio) else round(ratio, 6) for ratio in ratios]
                yield GpmWindow(int(gpu), self._instant(start), ended_at, *known)

    # --- gauges --------------------------------------------------------------------------------

    def _add_gauges(self, gauges: GpuGauges) -> None:
        reasons = gauges.throttle_reasons
        index: float | None = None
        if reasons is not None:
            if reasons not in self._reasons:
                self._reasons.append(reasons)
            index = self._reasons.index(reasons)
        readings = (getattr(gauges, name) for name in _READINGS)
        values = chain((gauges.gpu, gauges.read_at), map(_packed, (*readings, index)))
        self._gauges.extend(array("d", values))

    def _gauge_records(self, since: float) -> Iterator[GpuGauges]:
        for gpu, read_at, *readings, index in _rows(self._gauges, 3 + len(_READINGS)):
            if read_at <= since:
                continue
            known = {
                name: int(reading) if is_whole else reading
                for name, is_whole, reading in zip(_READINGS, _WHOLE, readings, strict=True)
                if not math.isnan(reading)
            }
            reasons = None if math.isnan(index) else self._reasons[int(index)]
            yield GpuGauges(int(gpu), read_at, **known, throttle_reasons=reasons)  # type: ignore[arg-type]  # whole where the record wants it


class ClosedSamples(NamedTuple):
    """A stretch of time that is over; never changed.

    Attributes:
        began_at: When it began.
        ended_at: When its newest record came.
        columns: Compressed arrays, by their name.
        reasons: Throttle reasons that the gauges name by their index.
    """

    began_at: float
    ended_at: float
    columns: Mapping[str, bytes]
    reasons: tuple[tuple[str, ...], ...]

    def records(self, since: float) -> Iterator[Record]:
        """As those of `PackedSamples`."""
        return PackedSamples.opened(self).records(since)


def _rows(values: Iterable[float], width: int) -> Iterator[tuple[float, ...]]:
    row = (iter(values),) * width
    return zip(*row, strict=True)


def _packed(value: float | None) -> float:
    return _UNKNOWN if value is None else value
