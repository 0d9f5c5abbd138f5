"""The arithmetic of working and waiting: one slice, or one GPM window, against levels.

    watts = idle (1 - r) + waiting (r - w) + working w          r: resident share, from the ring
    sm    = waiting_sm (r - w) + working_sm w                   w: working share
    dram  = working_dram w

Shares in, seconds out; nothing is kept between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from exporter.activity_slices import Piece, Slice
from exporter.records import ActivityLevel, GpmWindow

STEADY_RATIO = 0.15
"""Two samples this close, against their height over the waiting level, show one state."""
OVERDRAW_SHARE = 0.1
"""Working share over one from which a sample shows other work than the known working level."""
_USUAL_STEP = 0.05
_TOP_DECAY = 0.01
_CUT_STEP = 0.1
OVERDRAW_RATIO = 0.25
"""How much more the samples may show working than the ring shows resident."""

COMPUTE_BOUND_SM = 0.94
COMPUTE_BOUND_DRAM = 0.36
"""Prefill on an H200: SM activity, and DRAM activity against decode's."""

NCCL_BLOCKS = 32
"""A collective or a receive has at most so many blocks (NCCL_MAX_NCHANNELS), one on an SM."""
_USUAL_MULTIPROCESSORS = 132
SILENT_DRAM = 0.02
SILENT_TENSOR = 0.01
_LEAST_SM_STEP = 0.05


class LinearSplit:
    """Splits slices when idle, waiting and working level are known, however short the passes are.

    Power lags by part of a sample and samples straddle slices, so what a slice cannot hold is
    carried to the next, up to one sample's length: bounding each slice alone would lose it.
    """

    def __init__(self) -> None:
        self._carried_seconds = 0.0
        self._usual_watts: float | None = None
        self._usual_share = 0.0
        self._top_watts = 0.0
        self._cut_short = 0.0

    def working_seconds(
        self, slice_: Slice, idle_watts: float, waiting_watts: float, working_watts: float
    ) -> list[float] | None:
        """Working seconds of each piece; `None` where other work came shorter than a sample."""
        step = working_watts - waiting_watts
        resident = slice_.resident_seconds
        resting = slice_.seconds - resident
        total = self._carried_seconds + resting * (waiting_watts - idle_watts) / step
        shape: list[float] = []
        for piece in slice_.pieces:
            start, end, watts, _, _ = piece
            share = self._share(watts, waiting_watts, step)
            if watts > waiting_watts + (1.0 + OVERDRAW_SHARE) * step:
                self._cut_short += _CUT_STEP * (_is_alone(piece) - self._cut_short)
            total += share * (end - start)
            shape.append((end - start) * min(max(share, 0.0), 1.0))
        bounded = min(max(total, 0.0), resident)
        if self._cut_short > 0.5 and bounded > 0.0:
            return None
        longest = max(end - start for start, end, *_ in slice_.pieces)
        self._carried_seconds = min(max(total - bounded, -longest), longest)
        return scaled(shape, slice_.pieces, bounded)

    def _share(self, watts: float, waiting_watts: float, step: float) -> float:
        """Working share as if all the sample were resident; below 0 where it was idle."""
        share = (watts - waiting_watts) / step
        if share <= 1.0 + OVERDRAW_SHARE or self._usual_watts is None:
            if self._usual_watts is None:
                self._usual_watts, self._usual_share = watts, min(share, 1.0)
            self._usual_watts += _USUAL_STEP * (watts - self._usual_watts)
            self._usual_share += _USUAL_STEP * (min(share, 1.0) - self._usual_share)
            return share
        # Other work, which draws more (prefill between decodes): what of the sample it filled, by
        # the most it draws; the rest of the sample was as usual.
        self._top_watts = max(watts, self._top_watts - _TOP_DECAY * (self._top_watts - watts))
        filled = (watts - self._usual_watts) / (self._top_watts - self._usual_watts)
        return filled + (1.0 - filled) * self._usual_share


def _is_alone(piece: Piece) -> bool:
    """Whether neither neighbor comes near a sample from below or overtops it."""
    reach = (1.0 - STEADY_RATIO) * piece.watts
    return all(n is None or n < reach for n in (piece.before, piece.after))


def plateau_share(
    piece: Piece,
    idle_watts: float | None,
    waiting_watts: float,
    band: float,
    tops: Sequence[float],
) -> float:
    """Working share of one sample where passes are longer than samples.

    A sample as high as both its neighbors lies inside a pass, whatever that pass draws. One that
    is not may be cut by the pass's border and is measured by what the pass draws: a level seen
    often of late, or the higher neighbor.

    Args:
        band: Watts over the waiting level that are still waiting.
        tops: What passes drew of late, lowest first.
    """
    _, _, watts, before, after = piece
    excess = watts - waiting_watts
    if excess <= band:
        return 0.0
    highest, agreeing = watts, 0
    for neighbor in (before, after):
        if neighbor is not None and neighbor - waiting_watts > band:
            highest = max(highest, neighbor)
            agreeing += abs(neighbor - watts) <= STEADY_RATIO * excess
    if agreeing == 2:
        return 1.0
    top = next((top for top in tops if top > highest - band), highest)
    if agreeing and excess >= (1.0 - STEADY_RATIO) * (top - waiting_watts):
        return 1.0
    if agreeing and highest - waiting_watts < 0.5 * (top - waiting_watts):
        return 1.0
    base = waiting_watts
    if idle_watts is not None:
        lowest = min(watts if before is None else before, watts if after is None else after)
        if lowest < (idle_watts + waiting_watts) / 2:
            base = idle_watts  # a pass that idleness cut, not waiting
    return min((watts - base) / (max(top, highest) - base), 1.0)


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


class Bracket(NamedTuple):
    """Working share of a GPM window: between two bounds, most likely `likely`."""

    low: float
    likely: float
    high: float


def gpm_bracket(
    window: GpmWindow,
    resident_ratio: float,
    waiting: ActivityLevel | None,
    working: ActivityLevel | None,
) -> Bracket | None:
    """Working share of a GPM window against known levels; `None` where they do not tell.

    One working level is not all: prefill fills the SMs and asks little of DRAM. SM activity then
    says too much and DRAM activity too little. The truth lies between, and most likely by how far
    a compute-bound kernel stands from the known level in each.
    """
    if working is None:
        return None
    fill = 1.0
    shares: list[float] = []
    waiting_sm = None if waiting is None else waiting.sm_ratio
    if None not in (window.sm_ratio, working.sm_ratio, waiting_sm):
        step = working.sm_ratio - waiting_sm
        if step >= _LEAST_SM_STEP:
            shares.append((window.sm_ratio - waiting_sm * resident_ratio) / step)
            fill = (COMPUTE_BOUND_SM - waiting_sm) / step
    if None not in (window.dram_ratio, working.dram_ratio):
        if working.dram_ratio > SILENT_DRAM:
            shares.append(window.dram_ratio / working.dram_ratio)
    if not shares:
        return None
    by_sm, by_dram = shares[0], shares[-1]
    weight = 0.5
    if by_sm > by_dram:
        weight = (1 - COMPUTE_BOUND_DRAM) / (max(fill, 1.0) - COMPUTE_BOUND_DRAM)
    likely = by_dram + weight * (by_sm - by_dram)
    low, likely, high = (
        min(max(share, 0.0), resident_ratio)
        for share in (min(by_sm, by_dram), likely, max(by_sm, by_dram))
    )
    return Bracket(low, likely, high)


def nccl_sm_ratio(multiprocessors: int | None) -> float:
    """The most SM activity a waiting kernel can show."""
    return NCCL_BLOCKS / (multiprocessors or _USUAL_MULTIPROCESSORS)


def is_waiting_only(
    window: GpmWindow, resident_ratio: float, multiprocessors: int | None
) -> bool:
    """Whether GPM alone shows that no resident kernel worked: few SMs, no DRAM, no tensor cores."""
    if window.sm_ratio is None or window.dram_ratio is None or resident_ratio <= 0.0:
        return False
    return (
        window.dram_ratio <= SILENT_DRAM * resident_ratio
        and (window.tensor_ratio or 0.0) <= SILENT_TENSOR * resident_ratio
        and window.sm_ratio <= nccl_sm_ratio(multiprocessors) * resident_ratio
    )


def least_working_ratio(
    window: GpmWindow, resident_ratio: float, multiprocessors: int | None
) -> float:
    """What must have been work, whatever its levels: no activity exceeds one, waiting shows few SMs."""
    most = nccl_sm_ratio(multiprocessors)
    by_sm = ((window.sm_ratio or 0.0) - most * resident_ratio) / (1.0 - most)
    return min(max(by_sm, window.dram_ratio or 0.0, window.tensor_ratio or 0.0), resident_ratio)
