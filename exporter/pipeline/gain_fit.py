"""How a stage's pass time grows with its batch, and what an even split would give.

While A slots hold N requests in all and every request gets a token each time round the ring, the
ring takes N / throughput seconds, of which stage s works

    u_s N / X  =  A alpha_s + beta_s N        (t_s(b) = alpha_s + beta_s b, summed over the slots)

so that two loads of different A : N give alpha and beta of each stage by least squares. With M
equal micro-batches the ring then takes max(max_s M t_s(N/M), Σ_s t_s(N/M)): the asymptotic bounds
of operational analysis (Denning and Buzen 1978), applied to a ring. Pure: no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_KEPT = 64
_LEAST_SPREAD = 0.05
"""How much of the points must stand across their common direction: below, A : N was the same."""


class PassTime(NamedTuple):
    """Fitted time of one pass of one stage: `base_seconds + request_seconds * batch size`."""

    base_seconds: float
    request_seconds: float

    def of(self, size: float) -> float:
        """Seconds for a batch of that size."""
        return self.base_seconds + self.request_seconds * size


@dataclass(frozen=True, slots=True)
class Operation:
    """A stretch of steady decode: what every slot held, and how busy each stage was with it."""

    active_slots: int
    running_requests: float
    tokens_per_second: float
    working_ratios: tuple[float, ...]


class GainFit:
    """Collects stretches of steady decode and predicts from them; bounded memory."""

    def __init__(self) -> None:
        self._operations: deque[Operation] = deque(maxlen=_KEPT)

    def observe(self, operation: Operation) -> None:
        """Adds a stretch; stretches of another number of stages before it are forgotten."""
        if self._operations and len(self._operations[0].working_ratios) != len(
            operation.working_ratios
        ):
            self._operations.clear()
        self._operations.append(operation)

    def pass_times(self) -> tuple[PassTime, ...] | None:
        """The fit of every stage; `None` while all loads seen had the same A : N."""
        seen = self._operations
        aa = sum(o.active_slots**2 for o in seen)
        nn = sum(o.running_requests**2 for o in seen)
        an = sum(o.active_slots * o.running_requests for o in seen)
        spread = aa * nn - an * an
        if len(seen) < 2 or spread < _LEAST_SPREAD * aa * nn:
            return None
        fitted = []
        for stage in range(len(seen[0].working_ratios)):
            busy = [_busy_seconds(operation, stage) for operation in seen]
            ay = sum(o.active_slots * y for o, y in zip(seen, busy, strict=True))
            ny = sum(o.running_requests * y for o, y in zip(seen, busy, strict=True))
            base, each = (ay * nn - ny * an) / spread, (ny * aa - ay * an) / spread
            if base < 0.0:
                base, each = 0.0, ny / nn
            elif each < 0.0:
                base, each = ay / aa, 0.0
            fitted.append(PassTime(base, each))
        return tuple(fitted)

    def gain_ratio(self, sizes: Sequence[int], slots: int) -> float | None:
        """Throughput of the best even split of these requests over that of `sizes`, at least 1.

        `None` where the fit is not possible, or nothing runs.
        """
        fitted = self.pass_times()
        requests = sum(sizes)
        if fitted is None or requests == 0:
            return None
        present = ring_seconds(fitted, sizes)
        best = min(
            ring_seconds(fitted, [requests / count] * count)
            for count in range(1, min(slots, requests) + 1)
        )
        return max(1.0, present / best) if best > 0.0 else None


def _busy_seconds(operation: Operation, stage: int) -> float:
    """Time the stage works while the ring goes round once."""
    round_seconds = operation.running_requests / operation.tokens_per_second
    return operation.working_ratios[stage] * round_seconds


def ring_seconds(pass_times: Sequence[PassTime], sizes: Sequence[float]) -> float:
    """Shortest time for every micro-batch to pass every stage once, in seconds."""
    busiest_stage = max(sum(stage.of(size) for size in sizes) for stage in pass_times)
    longest_trip = max(sum(stage.of(size) for stage in pass_times) for size in sizes)
    return max(busiest_stage, longest_trip)
