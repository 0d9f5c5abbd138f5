"""A slice whose split is known → the windows that are handed out."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.activity.slices import Slice
from exporter.activity.splits import Split, waiting_seconds
from exporter.records import ActivityWindow, Method


def pieces_of(
    gpu: int, slice_: Slice, split: Split, method: Method, rest_watts: float | None
) -> Iterator[ActivityWindow]:
    """A window for each power sample; what is not proven is an upper bound, by residency.

    Args:
        gpu: Index of the GPU.
        slice_: What was split.
        split: Of the slice.
        method: What proved it.
        rest_watts: The draw that divides idling from waiting; `None` if not known.
    """
    waiting = waiting_seconds(split.working, slice_.pieces, slice_.resident_seconds, rest_watts)
    for piece, works, waits, proven in zip(
        slice_.pieces, split.working, waiting, split.proven, strict=True
    ):
        start, end, seconds = piece.started_at, piece.ended_at, piece.seconds
        if not proven:
            share = min((works + waits) / seconds, 1.0)
            yield ActivityWindow(gpu, start, end, share, None, Method.RESIDENCY)
            continue
        share = min(works / seconds, 1.0)
        waiting_share = min(waits / seconds, 1.0 - share)
        yield ActivityWindow(gpu, start, end, share, waiting_share, method)


def whole(gpu: int, slice_: Slice, working_ratio: float, method: Method) -> ActivityWindow:
    """One window for a slice that nothing divides; by residency without a waiting share."""
    waiting: float | None = None
    if method is not Method.RESIDENCY:
        waiting = max(slice_.resident_ratio - working_ratio, 0.0)
    start, end = slice_.started_at, slice_.ended_at
    return ActivityWindow(gpu, start, end, working_ratio, waiting, method)
