"""What a load has shown, while it runs and at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from exporter.load.failures import FailureKind
from exporter.load.measurements import Latencies, Measurements
from exporter.load.plan import LoadPlan


class LoadStage(StrEnum):
    """How far a load is."""

    WARM_UP = "warm_up"
    MEASURING = "measuring"
    DRAINING = "draining"


class EndReason(StrEnum):
    """Why a load ended."""

    DURATION = "duration"
    REQUESTS = "requests"
    STOPPED = "stopped"
    ALL_FAILED = "all_failed"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A running load at one instant.

    Attributes:
        seconds: In this stage so far.
        planned_seconds: How long the stage lasts at most; `None`: not known.
        running: Requests under way: sent, not yet answered to their end; queued ones among them.
        completed: Requests answered to their end since the start of the measurement (of the warm-up
            while it lasts).
        planned_requests: How many answers end the measurement; `None`: not known.
        tokens_per_second: Output of the last few seconds; `None` right after the start.
        errors: Since the start, warm-up included.
    """

    stage: LoadStage
    seconds: float
    planned_seconds: float | None
    concurrency: int
    running: int
    completed: int
    planned_requests: int | None
    output_tokens: int
    tokens_per_second: float | None
    errors: Mapping[FailureKind, int]


OnProgress = Callable[[LoadProgress], None]
"""Takes the state of a load about twice a second, on the event loop; must return quickly."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one load has shown so far; whole once `ended_by` is known.

    The measured window begins when the warm-up is over and ends when the first of the concurrent
    requests is not followed by another: all of it saw the full load.

    Attributes:
        started_at: Begin of the window, epoch seconds; `None`: it was not reached.
        ended_at: End of the window so far.
        output_tokens: Tokens that came in the window; `None`: it was not reached.
        completed: Requests answered to their end since the window's begin, its drain included.
        short: Of those, requests with fewer tokens than asked for.
        errors: Failures since the window's begin, by kind.
        warmup_errors: Failures before it, by kind.
        delayed_arrivals: Open loop: requests that waited because `concurrency` were under way.
        measurements: For other windows; the measured one is [started_at, ended_at].
    """

    plan: LoadPlan
    ended_by: EndReason | None
    started_at: float | None
    ended_at: float | None
    output_tokens: int | None
    completed: int
    short: int
    errors: Mapping[FailureKind, int]
    warmup_errors: Mapping[FailureKind, int]
    delayed_arrivals: int
    measurements: Measurements = field(repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether it ended as planned; otherwise it is what there was until then."""
        return self.ended_by in {EndReason.DURATION, EndReason.REQUESTS}

    @property
    def seconds(self) -> float | None:
        """Length of the window; `None`: it was not reached."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at

    @property
    def latencies(self) -> Latencies:
        """Of the window and its drain; sorted anew at each look."""
        since = math.inf if self.started_at is None else self.started_at
        return self.measurements.latencies(since, math.inf)

    @property
    def output_tokens_per_second(self) -> float | None:
        """Throughput over the window; `None`: it was not reached."""
        seconds = self.seconds
        if self.output_tokens is None or not seconds:
            return None
        return self.output_tokens / seconds
