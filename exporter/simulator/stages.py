"""The stages of the simulated pipeline: when a pass is where, and what that does to the cards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from exporter.simulator.activity import CardActivity
from exporter.simulator.scenarios import STAGES, Cost, Scenario, Window

_JITTERS = 4093  # a prime, so that no stage sees the same ones again soon
BYTES_PER_TOKEN = 2 * 7168
"""Hidden states handed from stage to stage: 16 bits of each of 7168 channels."""


@dataclass(frozen=True, slots=True)
class Journey:
    """One pass of a micro-batch through all stages, seen from its end."""

    last_stage_started_at: float
    ended_at: float
    forward_seconds: tuple[float, ...]
    """Per stage, time between first launch and last kernel of all passes up to this one."""


class StageChain:
    """First come, first served at every stage; a pass is worked out to its end at once."""

    def __init__(
        self,
        scenario: Scenario,
        cards: Sequence[CardActivity],
        rng: random.Random,
        started_at: float,
    ) -> None:
        self.handed_over_bytes = 0
        """From each stage to the next."""
        self._forward_seconds = [0.0] * STAGES
        self._cost: Cost = scenario.cost
        self._stall: Window | None = scenario.stall
        self._cards = cards
        self._started_at = started_at
        self._free_at = [started_at] * STAGES
        self._link_free_at = [started_at] * STAGES
        spread = self._cost.jitter_ratio
        self._jitters = [rng.uniform(1.0 - spread, 1.0 + spread) for _ in range(_JITTERS)]
        self._jitter = 0

    def run(
        self, posted_at: float, arrived_at: float, seconds: float, tokens: int, *, prefill: bool
    ) -> Journey:
        """Sends one micro-batch through all stages.

        `posted_at` and `arrived_at` are the first stage's wait for the result of the micro-batch's
        pass before; equal where it did not wait.
        """
        cost = self._cost
        share = 1.0 if prefill else cost.working_share
        hop = cost.hop_seconds + tokens * BYTES_PER_TOKEN / cost.hop_bytes_per_second
        self.handed_over_bytes += tokens * BYTES_PER_TOKEN
        free_at, link_free_at, forward = self._free_at, self._link_free_at, self._forward_seconds
        jitters, jitter = self._jitters, self._jitter
        start = end = arrived_at
        for stage, card in enumerate(self._cards):
            start = max(arrived_at, free_at[stage]) + cost.host_seconds
            if self._stall is not None:
                start = self._after_stall(start, self._stall)
            duration = seconds * cost.stage_factors[stage] * jitters[jitter]
            jitter = jitter + 1 if jitter + 1 < _JITTERS else 0
            end = start + duration
            card.run(posted_at, arrived_at, start, end, share, prefill)
            free_at[stage] = end
            forward[stage] += duration
            # The next stage's receive kernel stays resident from this launch to the hand-over.
            posted_at, arrived_at = start, max(end, link_free_at[stage]) + hop
            link_free_at[stage] = arrived_at
        self._jitter = jitter
        return Journey(start, end, tuple(forward))

    def _after_stall(self, at: float, stall: Window) -> float:
        stall_end = stall.end_if_inside(at - self._started_at)
        return at if stall_end is None else self._started_at + stall_end
