"""The measured part of a load: what had been there at its begin and at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from exporter.load.measurements import Measurements
from exporter.load.plan import LoadPlan
from exporter.load.result import EndReason, LoadResult
from exporter.records import LoadEvent, LoadPhase


@dataclass(slots=True)
class Window:
    """Counts at the begin of the measured window and, once it is closed, at its end."""

    started_at: float
    completed_before: int
    tokens_before: int
    ended_at: float | None = None
    tokens_after: int | None = None

    @classmethod
    def opened(cls, at: float, measured: Measurements) -> Window:
        """A window that begins now."""
        return cls(at, len(measured.requests), measured.output_tokens)

    def close(self, at: float, plan: LoadPlan, measured: Measurements) -> LoadEvent:
        """Ends it now; what the records say of its end."""
        self.ended_at, self.tokens_after = at, measured.output_tokens
        return LoadEvent(
            at,
            LoadPhase.END,
            _concurrency(plan),
            output_tokens=self.tokens_after - self.tokens_before,
            seconds=at - self.started_at,
            errors=measured.errors_between(self.started_at, at).total(),
        )

    def start_event(self, plan: LoadPlan) -> LoadEvent:
        """What the records say of its begin."""
        return LoadEvent(self.started_at, LoadPhase.START, _concurrency(plan))


def _concurrency(plan: LoadPlan) -> int | None:
    """Requests kept in flight; at a rate their number is not known beforehand."""
    return plan.concurrency if plan.rate_per_second is None else None


def result_of(
    plan: LoadPlan,
    measured: Measurements,
    window: Window | None,
    *,
    now: float,
    ended_by: EndReason | None,
    delayed_arrivals: int,
) -> LoadResult:
    """What a load has shown so far."""
    if window is None:
        since, ended_at, output_tokens, done = now, None, None, []
    else:
        since, done = window.started_at, measured.requests[window.completed_before :]
        ended_at = now if window.ended_at is None else window.ended_at
        after = measured.output_tokens if window.tokens_after is None else window.tokens_after
        output_tokens = after - window.tokens_before
    return LoadResult(
        plan=plan,
        ended_by=ended_by,
        started_at=None if window is None else since,
        ended_at=ended_at,
        output_tokens=output_tokens,
        completed=len(done),
        short=sum(request.output_tokens < plan.output_tokens for request in done),
        errors=Counter(kind for at, kind in measured.failures if at >= since),
        warmup_errors=Counter(kind for at, kind in measured.failures if at < since),
        delayed_arrivals=delayed_arrivals,
        measurements=measured,
    )
