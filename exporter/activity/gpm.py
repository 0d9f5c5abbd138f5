"""What a GPM window says of one GPU: against known levels, and without any.

sm   = waiting_sm (r - w) + working_sm w        r: resident share, w: working share
dram = working_dram w
"""

from __future__ import annotations

from typing import NamedTuple

from exporter.records import ActivityLevel, GpmWindow

COMPUTE_BOUND_SM = 0.94
COMPUTE_BOUND_DRAM = 0.36
"""Prefill of an 8B model on an H200: its SM activity, and its DRAM activity against decode's."""
NCCL_BLOCKS = 32
"""A collective or a receive has at most so many blocks (NCCL_MAX_NCHANNELS), one on an SM. Between two
H200s over NVLink a receive of 512 KiB waited on 16 SMs (.121), one of 64 bytes on 1 (.008)."""
LEAST_SM_STEP = 0.05
"""SM activity of work over that of waiting, below which it tells nothing."""
SILENT_DRAM = 0.02
"""Of a kernel that only spins, measured 0.0, of NCCL receives too; idle DRAM shows 0.0004."""

_USUAL_MULTIPROCESSORS = 132


class Bracket(NamedTuple):
    """Working share of a window: between two bounds, most likely `likely`."""

    low: float
    likely: float
    high: float


def working_bracket(
    window: GpmWindow,
    resident_ratio: float,
    waiting: ActivityLevel | None,
    working: ActivityLevel | None,
) -> Bracket | None:
    """Working share of a window against known levels; `None` where they do not tell.

    One working level is not all: prefill fills the SMs and asks little of DRAM. SM activity then
    says too much and DRAM activity too little. The truth lies between, and most likely by how far
    a compute-bound kernel stands from the known level in each.
    """
    by_sm = _by_sm(window, resident_ratio, waiting, working)
    by_dram = _by_dram(window, working)
    if by_sm is None:
        return None if by_dram is None else _bounded(by_dram, by_dram, 0.5, resident_ratio)
    sm, filled = by_sm
    if by_dram is None:
        return _bounded(sm, sm, 0.5, resident_ratio)
    weight = 0.5
    if sm > by_dram:
        weight = (1 - COMPUTE_BOUND_DRAM) / (max(filled, 1.0) - COMPUTE_BOUND_DRAM)
    return _bounded(by_dram, sm, weight, resident_ratio)


def _bounded(by_dram: float, by_sm: float, weight: float, resident_ratio: float) -> Bracket:
    likely = by_dram + weight * (by_sm - by_dram)
    shares = (min(by_dram, by_sm), likely, max(by_dram, by_sm))
    return Bracket(*(min(max(share, 0.0), resident_ratio) for share in shares))


def _by_sm(
    window: GpmWindow,
    resident_ratio: float,
    waiting: ActivityLevel | None,
    working: ActivityLevel | None,
) -> tuple[float, float] | None:
    """Working share by SM activity, and what a compute-bound kernel would show for one."""
    active = window.sm_ratio
    low = None if waiting is None else waiting.sm_ratio
    high = None if working is None else working.sm_ratio
    if active is None or low is None or high is None or high - low < LEAST_SM_STEP:
        return None
    step = high - low
    return (active - low * resident_ratio) / step, (COMPUTE_BOUND_SM - low) / step


def _by_dram(window: GpmWindow, working: ActivityLevel | None) -> float | None:
    high = None if working is None else working.dram_ratio
    if window.dram_ratio is None or high is None or high <= SILENT_DRAM:
        return None
    return window.dram_ratio / high


def least_working_ratio(
    window: GpmWindow, resident_ratio: float, multiprocessors: int | None
) -> float:
    """What must have been work, whatever its levels.

    No activity exceeds one, and what waits shows few SMs and neither DRAM nor tensor activity.
    """
    most = _most_waiting_sm(multiprocessors)
    by_sm = ((window.sm_ratio or 0.0) - most * resident_ratio) / (1.0 - most)
    return min(max(by_sm, window.dram_ratio or 0.0, window.tensor_ratio or 0.0), resident_ratio)


def _most_waiting_sm(multiprocessors: int | None) -> float:
    return min(NCCL_BLOCKS / (multiprocessors or _USUAL_MULTIPROCESSORS), 0.9)
