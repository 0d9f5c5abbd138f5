"""NVML's raw values → base units: ring entries, percentages, clock reasons, core counts.

Pure: bytes and numbers go in, records' units come out. Numbers are those of `nvml.h` (NVML 13),
which are part of the library's binary interface.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from exporter.gpu_driver import DriverError, RingReading
from exporter.records import Signal

PERCENT = 100.0
MILLIWATTS_PER_WATT = 1000.0

ENTRY_BYTES = 16
"""One ring entry, `nvmlSample_t`: a timestamp in µs and a union of 8 bytes."""

# By nvmlValueType_t: which member of the union is set. A short member leaves the rest undefined.
_ENTRY_FORMATS = {0: "=Qd", 1: "=QI4x", 2: "=QQ", 3: "=QQ", 4: "=Qq", 5: "=Qi4x", 6: "=QH6x"}

# nvmlClocksEventReason…; bit 0, idle, is no reason to name.
_CLOCK_REASONS = {
    0x02: "applications_clocks_setting",
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}

# CUDA cores per multiprocessor by compute capability (CUDA C++ programming guide, "Arithmetic
# instructions").
_CORES_PER_MULTIPROCESSOR = {
    **dict.fromkeys(((7, 0), (7, 2), (7, 5), (8, 0)), 64),
    **dict.fromkeys(((8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)), 128),
}


@dataclass(frozen=True, slots=True)
class RingKind:
    """How the driver keeps one signal: its sampling type, divisor to base units, highest value."""

    sampling_type: int
    divisor: float
    highest: int


RING_KINDS = {
    Signal.UTILIZATION: RingKind(1, PERCENT, 100),
    # No board draws 100 kW: above is an invalid entry (NVML's "not available" is all ones).
    Signal.POWER: RingKind(0, MILLIWATTS_PER_WATT, 100_000_000),
}


def read_ring(
    filled: memoryview, value_type: int, kind: RingKind, newer_than_us: int
) -> RingReading:
    """Takes the valid entries out of a filled buffer, oldest first, each instant once.

    Timestamp 0 and utilization over 100 occur on real cards: dropped and counted.

    Raises:
        DriverError: The library names a value type `nvml.h` does not know.
    """
    entry_format = _ENTRY_FORMATS.get(value_type)
    if entry_format is None:
        raise DriverError("nvmlDeviceGetSamples", "UNKNOWN_VALUE_TYPE")
    samples = []
    dropped = 0
    last = newer_than_us
    for taken_us, value in sorted(struct.iter_unpack(entry_format, filled)):
        if taken_us == 0 or not 0 <= value <= kind.highest:
            dropped += 1
        elif taken_us > last:
            samples.append((taken_us, value / kind.divisor))
            last = taken_us
    return RingReading(tuple(samples), dropped)


def activity_ratio(code: int, percent: float) -> float | None:
    """A GPM percentage as a share; `None` where the card did not answer or answered no number."""
    if code or not math.isfinite(percent):
        return None
    return min(1.0, max(0.0, percent / PERCENT))


def clock_reasons(bits: int) -> tuple[str, ...]:
    """Names of the reasons set, without idle; bits newer than this list are left out."""
    return tuple(name for bit, name in _CLOCK_REASONS.items() if bits & bit)


def multiprocessor_count(cores: int, capability: tuple[int, int]) -> int | None:
    """Multiprocessors of a card with that many cores; `None` for an architecture not listed."""
    each = _CORES_PER_MULTIPROCESSOR.get(capability)
    return None if each is None else cores // each
