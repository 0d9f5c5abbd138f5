"""The arithmetic of working and waiting: one slice, or one GPM window, against levels.

    watts = idle (1 - r) + waiting (r - w) + working w          r: resident share, from the ring
    sm    = waiting_sm (r - w) + working_sm w                   w: working share
    dram  = working_dram w

Shares in, seconds out; nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporter.activity_slices import Piece, Slice
from exporter.records import ActivityLevel, GpmWindow

STEADY_RATIO = 0.15
"""Two samples this close, against their height over the waiting level, show one state."""
OVERDRAW_RATIO = 0.25
"""How much more the samples may show working than the ring shows resident."""

COMPUTE_BOUND_SM = 0.94
COMPUTE_BOUND_DRAM = 0.36
"""Prefill on an H200: SM activity, and DRAM activity against decode's."""

NCCL_BLOCKS = 32
"""A collective or a receive has at most so many blocks (NCCL_MAX_NCHANNELS), one on an SM."""
_USUAL_MULTIPROCESSORS = 132
_SILENT_DRAM = 0.02
_SILENT_TENSOR = 0.01
_LEAST_SM_STEP = 0.05


def linear_seconds(
    slice_: Slice, idle_watts: float, waiting_watts: float, working_watts: float
) -> list[float]:
    """Working seconds of each piece, when the working level is known.

    The mean over the slice is exact however short the passes are; the pieces share it out.
    """
    step = working_watts - waiting_watts
    highest = working_watts + 0.05 * step  # what draws more is other work, and full of it
    resident = slice_.resident_seconds
    excess = -(waiting_watts - idle_watts) * resident
    shape: list[float] = []
    for start, end, watts, _, _ in slice_.pieces:
        seconds = end - start
        excess += (min(watts, highest) - idle_watts) * seconds
        shape.append(seconds * min(max((watts - waiting_watts) / step, 0.0), 1.0))
    return scaled(shape, slice_.pieces, min(max(excess / step, 0.0), resident))


def plateau_share(piece: Piece, waiting_watts: float, band: float, reference_watts: float) -> float:
    """Working share of one sample where passes are longer than samples.

    A sample as high as its neighbor lies inside a pass, whatever that pass draws; one that is not
    was cut by the pass's border and is measured by the higher neighbor.

    Args:
        band: Watts over the waiting level that are still waiting.
        reference_watts: What passes drew of late, for one shorter than a sample.
    """
    _, _, watts, before, after = piece
    excess = watts - waiting_watts
    if excess <= band:
        return 0.0
    top = watts
    for neighbor in (before, after):
        if neighbor is None or neighbor - waiting_watts <= band:
            continue
        if abs(neighbor - watts) <= STEADY_RATIO * excess:
            return 1.0
        top = max(top, neighbor)
    if top == watts:
        top = max(top, reference_watts)
    return excess / (top - waiting_watts)


def scaled(shape: Sequence[float], pieces: Sequence[Piece], total: float) -> list[float]:
    """The shape with another sum, no piece over its length: first up in proportion, then level."""
    have = sum(shape)
    if total <= have:
        return [0.0] * len(shape) if have <= 0.0 else [value * total / have for value in shape]
    lengths = [piece.ended_at - piece.started_at for piece in pieces]
    room = sum(lengths) - have
    if room <= 0.0:
        return lengths
    share = min((total - have) / room, 1.0)
    return [v + (n - v) * share for v, n in zip(shape, lengths, strict=True)]


def waiting_seconds(
    working: Sequence[float], pieces: Sequence[Piece], resident_seconds: float
) -> list[float]:
    """Shares the rest of the residency out: the pieces that drew most were resident first."""
    left = max(resident_seconds - sum(working), 0.0)
    waiting = [0.0] * len(pieces)
    for index in sorted(range(len(pieces)), key=lambda i: -pieces[i].watts):
        if left <= 0.0:
            break
        piece = pieces[index]
        room = piece.ended_at - piece.started_at - working[index]
        waiting[index] = taken = min(room, left)
        left -= taken
    return waiting


def gpm_working_ratio(
    window: GpmWindow,
    resident_ratio: float,
    waiting: ActivityLevel | None,
    working: ActivityLevel | None,
) -> float | None:
    """Working share of a GPM window against known levels; `None` where they do not tell.

    One working level is not all: prefill fills the SMs and asks little of DRAM. SM activity then
    says too much and DRAM activity too little, and the truth lies between by how far a
    compute-bound kernel stands from the known level in each.
    """
    if working is None:
        return None
    by_sm = by_dram = None
    idle_sm = None if waiting is None else waiting.sm_ratio
    if window.sm_ratio is not None and working.sm_ratio is not None and idle_sm is not None:
        step = working.sm_ratio - idle_sm
        if step >= _LEAST_SM_STEP:
            by_sm = (window.sm_ratio - idle_sm * resident_ratio) / step
    if window.dram_ratio is not None and working.dram_ratio is not None:
        if working.dram_ratio > _SILENT_DRAM:
            by_dram = window.dram_ratio / working.dram_ratio
    if by_sm is not None and by_dram is not None and by_sm > by_dram:
        step = working.sm_ratio - idle_sm  # type: ignore[operator]  # by_sm was computed from them
        fill = (COMPUTE_BOUND_SM - idle_sm) / step  # type: ignore[operator]  # the same
        weight = 1.0 if fill <= 1.0 else (1 - COMPUTE_BOUND_DRAM) / (fill - COMPUTE_BOUND_DRAM)
        ratio = by_dram + weight * (by_sm - by_dram)
    else:
        known = [value for value in (by_sm, by_dram) if value is not None]
        if not known:
            return None
        ratio = sum(known) / len(known)
    return min(max(ratio, 0.0), resident_ratio)


def is_waiting_only(
    window: GpmWindow, resident_ratio: float, multiprocessors: int | None
) -> bool:
    """Whether GPM alone shows that no resident kernel worked: few SMs, no DRAM, no tensor cores."""
    if window.sm_ratio is None or window.dram_ratio is None or resident_ratio <= 0.0:
        return False
    blocks_ratio = NCCL_BLOCKS / (multiprocessors or _USUAL_MULTIPROCESSORS)
    return (
        window.dram_ratio <= _SILENT_DRAM * resident_ratio
        and (window.tensor_ratio or 0.0) <= _SILENT_TENSOR * resident_ratio
        and window.sm_ratio <= blocks_ratio * resident_ratio
    )
