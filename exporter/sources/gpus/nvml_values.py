"""NVML's raw values → what records say: shares, names of clock reasons, multiprocessors.

Pure. Bits and numbers are those of `nvml.h` (NVML 13), part of the library's binary interface.
"""

from __future__ import annotations

import math

PERCENT = 100.0

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
