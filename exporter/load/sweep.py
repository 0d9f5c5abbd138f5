"""Several loads one after the other, at different concurrencies: what more requests bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exporter.load.driver import Load
from exporter.load.plan import LoadPlan, PlanError
from exporter.load.result import EndReason, LoadResult, OnProgress
from exporter.load.target import Target
from exporter.records import Record

MOST_POINTS = 32


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The points of a sweep in the order they were driven; the last may be cut short."""

    points: tuple[LoadResult, ...]

    @property
    def single_stream_tokens_per_second(self) -> float | None:
        """Throughput at concurrency 1; `None`: it was not measured whole."""
        for point in self.points:
            if point.plan.concurrency == 1 and point.is_whole:
                return point.output_tokens_per_second
        return None


class Sweep:
    """Drives the same load at one concurrency after the other.

    Each point has its own warm-up, and none begins before the requests of the one before have ended
    or were cut off: a request keeps its micro-batch slot for life.
    """

    def __init__(
        self,
        target: Target,
        plan: LoadPlan,
        concurrencies: Sequence[int],
        *,
        emit: Callable[[Record], None] | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Names the points in the order they are driven; the rest is as for `Load`.

        Raises:
            PlanError: There are none, too many, or one is out of bounds.
        """
        if not 1 <= len(concurrencies) <= MOST_POINTS:
            raise PlanError(f"cannot sweep {len(concurrencies)} points; give 1 to {MOST_POINTS}")
        self._target = target
        self._plans = [plan.at_concurrency(count) for count in concurrencies]
        self._emit = emit
        self._on_progress = on_progress
        self._loads: list[Load] = []
        self._stopped = False

    async def run(self) -> SweepResult:
        """Drives all points; ends at one that was stopped or failed."""
        for plan in self._plans:
            if self._stopped:
                break
            load = Load(self._target, plan, emit=self._emit, on_progress=self._on_progress)
            self._loads.append(load)
            result = await load.run()
            if result.ended_by is EndReason.ALL_FAILED:
                break
        return self.result()

    def stop(self) -> None:
        """Ends the point that is driven, and the sweep."""
        self._stopped = True
        if self._loads:
            self._loads[-1].stop()

    def result(self) -> SweepResult:
        """What there is so far."""
        return SweepResult(tuple(load.result() for load in self._loads))
