"""The newest batch of each stage at any recent instant: lines come first, their second settles later.

Pure: no clock.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from exporter.records import Batch, Mode

FRESH_SECONDS = 30.0
"""A line older than this says nothing of the batch in hand."""
_MOST_WAITING = 5_000
_DECODE = Mode.DECODE  # as in `stage_state`


class _Line(NamedTuple):
    at: float
    pp_rank: int
    requests: int


class NewestBatches:
    """Lines that wait for their second to settle, and the newest of each stage before them."""

    def __init__(self) -> None:
        self._waiting: deque[_Line] = deque(maxlen=_MOST_WAITING)
        self._newest: dict[int, _Line] = {}

    def fold(self, batch: Batch) -> None:
        """Takes a line that speaks for its stage."""
        requests = batch.running_reqs if batch.mode is _DECODE else batch.new_seqs
        if requests is not None:
            self._waiting.append(_Line(batch.logged_at, batch.pp_rank, requests))

    def by(self, at: float) -> dict[int, int]:
        """Requests of each stage's newest batch at an instant; instants never go back."""
        later: list[_Line] = []
        while (
            self._waiting and self._waiting[0].at < at + 1.0
        ):  # lines may be a moment out of order
            line = self._waiting.popleft()
            if line.at >= at:
                later.append(line)
            elif line.at >= self._newest.get(line.pp_rank, _NONE).at:
                self._newest[line.pp_rank] = line
        self._waiting.extendleft(reversed(later))
        return {
            line.pp_rank: line.requests
            for line in self._newest.values()
            if line.at >= at - FRESH_SECONDS
        }


_NONE = _Line(-math.inf, 0, 0)
