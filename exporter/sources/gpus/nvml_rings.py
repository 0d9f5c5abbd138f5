"""One of the driver's sample rings → (microseconds, value in base units), through a kept buffer.

pynvml's wrapper asks twice and makes an object an entry; here the library fills a buffer that is
sized once, and the entries are unpacked in one go. Numbers are those of `nvml.h` (NVML 13), part
of the library's binary interface.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exporter.gpu_driver import DriverError, RingReading
from exporter.records import Signal

CALL = "nvmlDeviceGetSamples"
PERCENT = 100.0
MILLIWATTS_PER_WATT = 1000.0

_SUCCESS, _NOT_FOUND, _INSUFFICIENT_SIZE, _NO_DATA = 0, 6, 7, 21

ENTRY_BYTES = 16
"""`nvmlSample_t`: a timestamp in microseconds and a union of 8 bytes."""
_SPARE_ENTRIES = 8
_MOST_ENTRIES = 65_536
_TRIES = 4

# By nvmlValueType_t: which member of the union is set. A short member leaves the rest undefined.
_ENTRY_FORMATS = {0: "=Qd", 1: "=QI4x", 2: "=QQ", 3: "=QQ", 4: "=Qq", 5: "=Qi4x", 6: "=QH6x"}


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the driver keeps one signal: its sampling type, divisor to base units, highest value."""

    sampling_type: int
    divisor: float
    highest: int


_KINDS = {
    Signal.UTILIZATION: _Kind(1, PERCENT, 100),
    # No board draws 100 kW: above is an invalid entry (NVML's "not available" is all ones).
    Signal.POWER: _Kind(0, MILLIWATTS_PER_WATT, 100_000_000),
}


class RingBuffer:
    """Room for the whole ring of one signal of one GPU."""

    def __init__(self, signal: Signal) -> None:
        self._kind = _KINDS[signal]
        self._buffer: ctypes.Array[ctypes.c_char] | None = None

    def read(
        self, get_samples: Callable[..., int], handle: Any, newer_than_us: int
    ) -> RingReading | int:
        """Asks the library for the entries newer than a timestamp, oldest first.

        A short buffer would be filled with the oldest entries (measured on an H200), so one that
        was filled to the brim is enlarged and filled again.

        Returns:
            The entries, or NVML's return code if it is neither success nor "nothing new".
        """
        count, value_type = ctypes.c_uint(), ctypes.c_uint()
        for _ in range(_TRIES):
            buffer = self._buffer
            room = 0 if buffer is None else len(buffer) // ENTRY_BYTES
            count.value = room
            code = get_samples(
                handle,
                ctypes.c_uint(self._kind.sampling_type),
                ctypes.c_ulonglong(newer_than_us),
                ctypes.byref(value_type),
                ctypes.byref(count),
                buffer,
            )
            if code in {_NOT_FOUND, _NO_DATA}:
                return RingReading(())
            if code not in {_SUCCESS, _INSUFFICIENT_SIZE}:
                return code
            if buffer is not None and code == _SUCCESS and count.value < room:
                filled = memoryview(buffer)[: count.value * ENTRY_BYTES]
                return _take_entries(filled, value_type.value, self._kind, newer_than_us)
            entries = min(max(count.value, 2 * room) + _SPARE_ENTRIES, _MOST_ENTRIES)
            self._buffer = ctypes.create_string_buffer(entries * ENTRY_BYTES)
        return _INSUFFICIENT_SIZE


def _take_entries(
    filled: memoryview, value_type: int, kind: _Kind, newer_than_us: int
) -> RingReading:
    """Takes the valid entries, each instant once.

    Timestamp 0 and utilization over 100 occur on real cards: dropped and counted.
    """
    entry_format = _ENTRY_FORMATS.get(value_type)
    if entry_format is None:
        raise DriverError(CALL, "UNKNOWN_VALUE_TYPE")
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
