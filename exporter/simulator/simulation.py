"""One simulated server and its cards, in time that somebody else drives."""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from exporter.simulator.activity import CardActivity, CardLevels
from exporter.simulator.card import SimulatedDriver, World
from exporter.simulator.noise import Noise
from exporter.simulator.pipeline import Pipeline
from exporter.simulator.scenarios import STAGES, Scenario
from exporter.simulator.server_log import LogEntry, ServerLog

_LONGEST_JUMP_SECONDS = 5.0
_HISTORY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class StageTruth:
    """How one stage really spent a span: shares that sum to 1."""

    working: float
    waiting: float
    idle: float


@dataclass(frozen=True, slots=True)
class Truth:
    """What really happened in a span, for tests: nothing of it is printed anywhere."""

    stages: tuple[StageTruth, ...]
    slot_sizes: tuple[int, ...]
    """Requests in each slot now, not in the span."""
    generated_tokens_per_second: float

    @property
    def occupancy(self) -> float:
        """Mean working share of the stages."""
        return sum(stage.working for stage in self.stages) / len(self.stages)


class Simulation:
    """A scenario under way; the same seed and the same calls give the same world.

    `advance` belongs to one thread, the driver may be asked from others meanwhile. Clients come
    `quiet_seconds` after the start: cards that idle first show what they draw then.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        started_at: float,
        seed: int = 0,
        forged: bool = True,
        quiet_seconds: float = 0.0,
        history_seconds: float = _HISTORY_SECONDS,
    ) -> None:
        self.scenario = scenario
        self.started_at = started_at
        self._now = started_at
        self._lock = threading.Lock()
        # One generator a part, so that noise in the log does not change the cards.
        rngs = [random.Random(f"{seed} {part}") for part in ("cards", "pipeline", "log", "noise")]  # noqa: S311 - no secret
        levels = CardLevels()
        cards = [
            CardActivity(started_at, rngs[0], levels.varied(rngs[0]), history_seconds)
            for _ in range(STAGES)
        ]
        self._cards = cards
        loaded_at = started_at + quiet_seconds
        self._pipeline = Pipeline(scenario, cards, rngs[1], started_at, loaded_at)
        noise = Noise(rngs[3], started_at, forged=forged) if scenario.loads else None
        self._log = ServerLog(scenario, rngs[2], noise, started_at)
        world = World(
            cards,
            lambda: self._now,
            lambda: self._pipeline.chain.handed_over_bytes,
            self._lock,
            started_at,
        )
        self.driver = SimulatedDriver(scenario, world)
        self._xid_reported_for: float | None = None
        self._generated: deque[tuple[float, int]] = deque(maxlen=int(history_seconds * 20))

    @property
    def now(self) -> float:
        """The present of this world, in epoch seconds."""
        return self._now

    def advance(self, to: float) -> list[LogEntry]:
        """Plays the time up to `to` and returns what was printed in it, in time order.

        A jump of more than 5 s (the machine slept) is a standstill without samples. A clock set back stops the
        world until it has caught up.
        """
        if to <= self._now:
            return []
        with self._lock:
            if to - self._now > _LONGEST_JUMP_SECONDS:
                self._pipeline.stand_still(to)
            happenings = self._pipeline.advance(to)
            self._now = to
        self._generated.append((to, self._pipeline.generated_tokens))
        self._report_xid()
        return self._log.take(happenings, to)

    def truth(self, start: float, end: float) -> Truth:
        """What happened in a span of the kept past: the last two minutes, if not told otherwise."""
        with self._lock:
            spans = [(card.totals(start), card.totals(end)) for card in self._cards]
        return Truth(
            tuple(
                _stage_truth(b.working - a.working, b.waiting - a.waiting, end - start)
                for a, b in spans
            ),
            self._pipeline.slot_sizes,
            (self._generated_at(end) - self._generated_at(start)) / (end - start),
        )

    def _generated_at(self, at: float) -> int:
        index = bisect_right(self._generated, at, key=lambda point: point[0])
        return self._generated[index - 1][1] if index else 0

    def _report_xid(self) -> None:
        """Once for each loss, at its start."""
        fault = self.scenario.fault
        if fault is None or fault.lost is None or fault.xid is None:
            return
        ends_at = fault.lost.end_if_inside(self._now - self.started_at)
        if ends_at is not None and ends_at != self._xid_reported_for:
            self._xid_reported_for = ends_at
            self.driver.report_xid(fault.gpu, fault.xid)


def _stage_truth(working_seconds: float, waiting_seconds: float, seconds: float) -> StageTruth:
    working, waiting = working_seconds / seconds, waiting_seconds / seconds
    return StageTruth(working, waiting, max(0.0, 1.0 - working - waiting))
