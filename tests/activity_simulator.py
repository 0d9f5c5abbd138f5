"""GPUs of a random pipelined server, with the truth: what each did, and what its driver would say.

Stands apart from `exporter.simulator`: it draws everything at random from one seed, so that the
estimator meets servers nobody thought of. A card here is a list of stretches of one state each.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from exporter.records import (
    ActivityLevel,
    GpmWindow,
    GpuLevels,
    RingSamples,
    Signal,
)

BEGAN_AT = 1_800_000_000.0
UTILIZATION_SECONDS = 0.2


class State(IntEnum):
    """What a card does; the values index `Card.watts`, `sm` and `dram`."""

    IDLE = 0
    WAITING = 1
    DECODE = 2
    PREFILL = 3
    LIGHT = 4
    """Work that fills a few SMs and stays in their caches."""


@dataclass(frozen=True)
class Card:
    """One card: what it draws and shows in each state, and how its power ring sees it."""

    watts: tuple[float, ...]
    sm: tuple[float, ...]
    dram: tuple[float, ...]
    tensor: tuple[float, ...] | None = None
    power_limit_watts: float = 600.0
    multiprocessors: int = 132
    noise_watts: float = 3.0
    power_seconds: float = 0.02
    smoothing_seconds: float = 0.0
    """Time constant with which the sensor follows; measured on an H200: about 0.015."""
    warmth_ratio: float = 0.0
    """How much more it draws when it is warm, after the first minutes."""

    def levels(self, gpu: int = 0) -> GpuLevels:
        """What a recorder would have learned of it."""
        idle, waiting, working = (
            ActivityLevel(self.watts[s], self.sm[s], self.dram[s])
            for s in (State.IDLE, State.WAITING, State.DECODE)
        )
        return GpuLevels(gpu, idle, waiting, working)


@dataclass
class Timeline:
    """What a card did: stretches in time order, and the seconds of each state before each."""

    ends: list[float] = field(default_factory=lambda: [0.0])
    states: list[State] = field(default_factory=lambda: [State.IDLE])
    sums: list[tuple[float, ...]] = field(default_factory=lambda: [(0.0,) * len(State)])

    def extend(self, to: float, state: State) -> None:
        """Adds a stretch up to `to`; nothing if that has passed."""
        seconds = to - self.ends[-1]
        if seconds <= 0.0:
            return
        sums = list(self.sums[-1])
        sums[state] += seconds
        self.ends.append(to)
        self.states.append(state)
        self.sums.append(tuple(sums))

    def seconds(self, start: float, end: float) -> list[float]:
        """Seconds of each state between two instants."""
        return [b - a for a, b in zip(self._before(start), self._before(end), strict=True)]

    def _before(self, at: float) -> list[float]:
        index = min(bisect_right(self.ends, at), len(self.ends) - 1)
        sums = list(self.sums[index])
        sums[self.states[index]] -= max(self.ends[index] - at, 0.0)
        return sums


@dataclass(frozen=True)
class Server:
    """A pipelined server, all drawn from a seed."""

    stages: int
    tp: int
    slots: int
    decode_seconds: float
    factors: tuple[float, ...]
    jitter_ratio: float
    hop_seconds: float
    posting: str
    """When a receive kernel is posted: always, late (one pass ahead), never (waiting is idle)."""
    prefill_chance: float
    prefill_seconds: float
    stalls_per_second: float
    gaps_per_second: float
    seconds: float = 40.0


def random_server(rng: random.Random) -> Server:
    """One server; half of them keep the pipeline full, the others starve it."""
    stages = rng.choice((2, 3, 4, 6, 8, 8, 12, 16))
    depth = rng.choice((0, 0, 0, 2, stages))
    slots = rng.choice((1, 2, max(1, stages // 2), stages, stages + depth))
    slow = rng.randrange(stages)
    factor = rng.choice((1.0, 1.0, rng.uniform(1.1, 1.8)))
    return Server(
        stages=stages,
        tp=rng.choice((1, 1, 2, 4, 8)),
        slots=slots,
        decode_seconds=math.exp(rng.uniform(math.log(0.002), math.log(0.04))),
        factors=tuple(factor if stage == slow else 1.0 for stage in range(stages)),
        jitter_ratio=rng.choice((0.0, 0.02, 0.05, 0.2)),
        hop_seconds=rng.uniform(0.00002, 0.001),
        posting=rng.choice(("always", "always", "late", "never")),
        prefill_chance=rng.choice((0.0, 0.0, 0.01, 0.05)),
        prefill_seconds=rng.uniform(0.03, 0.3),
        stalls_per_second=rng.choice((0.0, 0.0, 0.0, 0.05, 0.5)),
        gaps_per_second=rng.choice((0.0, 0.0, 0.05, 0.2)),
    )


def random_card(rng: random.Random) -> Card:
    """One card; some are capped, so that prefill draws no more than the cap."""
    limit = rng.choice((300.0, 350.0, 600.0, 700.0))
    idle = rng.uniform(0.1, 0.2) * limit
    reach = limit - idle
    cap = rng.choice((limit, limit, idle + 0.6 * reach))
    decode = idle + rng.uniform(0.32, 0.75) * reach
    waiting_sm = rng.uniform(0.03, 0.24)
    decode_sm = rng.uniform(0.5, 0.94)
    decode_dram = rng.uniform(0.4, 0.8)
    prefill_watts = idle + rng.uniform(0.75, 1.0) * reach
    watts = (
        idle,
        idle + rng.uniform(0.03, 0.14) * reach,
        min(decode, cap),
        min(prefill_watts, cap),
    )
    return Card(
        watts=watts,
        sm=(0.0, waiting_sm, decode_sm, rng.uniform(0.9, 0.97)),
        dram=(0.0, 0.0, decode_dram, rng.uniform(0.25, 0.5) * decode_dram),
        power_limit_watts=limit,
        noise_watts=rng.uniform(0.5, 4.0),
        power_seconds=rng.choice((0.02, 0.02, 0.02, 0.1)),
        smoothing_seconds=rng.choice((0.0, 0.0, 0.015)),
    )


def _pauses(rng: random.Random, server: Server) -> list[tuple[float, float, bool]]:
    """When nothing starts: (start, end, whether requests are still there)."""
    pauses = []
    for rate, longest, loaded in (
        (server.stalls_per_second, 1.0, True),
        (server.gaps_per_second, 4.0, False),
    ):
        at = rng.expovariate(rate) if rate else math.inf
        while at < server.seconds:
            seconds = rng.uniform(0.1, longest)
            pauses.append((at, at + seconds, loaded))
            at += seconds + rng.expovariate(rate)
    return sorted(pauses)


def play(rng: random.Random, server: Server) -> list[list[Timeline]]:
    """Runs the server; a timeline for each stage and TP rank."""
    pauses = _pauses(rng, server)
    free = [0.0] * server.stages
    timelines = [[Timeline() for _ in range(server.tp)] for _ in range(server.stages)]
    shares = [[1.0] + [rng.uniform(0.9, 1.0) for _ in range(server.tp - 1)] for _ in free]
    for ranks in shares:
        rng.shuffle(ranks)
    arrivals = [(slot * server.decode_seconds, slot, 0, False) for slot in range(server.slots)]
    heapq.heapify(arrivals)
    while arrivals and arrivals[0][0] < server.seconds:
        arrived_at, slot, stage, prefill = heapq.heappop(arrivals)
        if stage == 0:
            prefill = rng.random() < server.prefill_chance
        start, loaded = _resumed(pauses, max(arrived_at, free[stage]))
        seconds = server.prefill_seconds if prefill else server.decode_seconds
        seconds *= server.factors[stage] * max(0.3, rng.gauss(1.0, server.jitter_ratio))
        free[stage] = start + seconds
        for timeline, share in zip(timelines[stage], shares[stage], strict=True):
            _wait(timeline, server, start, loaded)
            timeline.extend(start + share * seconds, State.PREFILL if prefill else State.DECODE)
            timeline.extend(start + seconds, State.WAITING)
        following = (
            start + seconds + server.hop_seconds,
            slot,
            (stage + 1) % server.stages,
            prefill,
        )
        heapq.heappush(arrivals, following)
    for timeline in (each for ranks in timelines for each in ranks):
        timeline.extend(server.seconds, State.IDLE)
    return timelines


def _resumed(pauses: list[tuple[float, float, bool]], at: float) -> tuple[float, bool]:
    """When a pass that could start at `at` does, and whether the pause before it held requests."""
    loaded = True
    for start, end, is_loaded in pauses:
        if start <= at < end:
            at, loaded = end, is_loaded
    return at, loaded


def _wait(timeline: Timeline, server: Server, until: float, loaded: bool) -> None:
    """The time before a pass: a receive kernel waits, or nothing does."""
    posted_at = timeline.ends[-1]
    if server.posting == "late" or not loaded:
        posted_at = max(posted_at, until - server.decode_seconds)
    if server.posting != "never":
        timeline.extend(posted_at, State.IDLE)
        timeline.extend(until, State.WAITING)
    timeline.extend(until, State.IDLE)


# --- what the driver says ----------------------------------------------------------------------


def records(
    timeline: Timeline,
    card: Card,
    rng: random.Random,
    signals: Sequence[Signal] = tuple(Signal),
    seconds: float | None = None,
) -> Iterator[RingSamples | GpmWindow]:
    """The card's rings, drained once a second, and its GPM windows, in the order of a live run."""
    until = timeline.ends[-1] if seconds is None else seconds
    power = _power(timeline, card, rng, until) if Signal.POWER in signals else iter(())
    utilization = _utilization(timeline, rng, until) if Signal.UTILIZATION in signals else iter(())
    waiting_power, waiting_utilization = next(power, None), next(utilization, None)
    for second in range(1, math.ceil(until) + 1):
        drained: list[tuple[float, float]] = []
        while waiting_power is not None and waiting_power[0] <= second:
            drained.append(waiting_power)
            waiting_power = next(power, None)
        if drained:
            yield _ring(Signal.POWER, card.power_seconds, drained)
        drained = []
        while waiting_utilization is not None and waiting_utilization[0] <= second:
            drained.append(waiting_utilization)
            waiting_utilization = next(utilization, None)
        if drained:
            yield _ring(Signal.UTILIZATION, UTILIZATION_SECONDS, drained)
        if Signal.GPM in signals and second >= 2:
            yield _gpm(timeline, card, second - 1.11, second - 0.11)


def _ring(signal: Signal, nominal: float, samples: list[tuple[float, float]]) -> RingSamples:
    return RingSamples(0, signal, nominal, tuple((BEGAN_AT + at, value) for at, value in samples))


def _power(
    timeline: Timeline, card: Card, rng: random.Random, until: float
) -> Iterator[tuple[float, float]]:
    start = rng.random() * card.power_seconds
    shown: float | None = None
    while (end := start + card.power_seconds * rng.uniform(0.95, 1.05)) <= until:
        warm = 1.0 + card.warmth_ratio * start / (start + 60.0)
        spent = timeline.seconds(start, end)
        true = sum(
            seconds * watts * (warm if state >= State.DECODE else 1.0)
            for state, (seconds, watts) in enumerate(zip(spent, card.watts, strict=False))
        ) / (end - start)
        if shown is None or card.smoothing_seconds == 0.0:
            shown = true
        shown += (true - shown) * (
            1.0
            if not card.smoothing_seconds
            else -math.expm1((start - end) / card.smoothing_seconds)
        )
        yield end, round(max(shown + rng.gauss(0.0, card.noise_watts), 0.0), 3)
        start = end


def _utilization(
    timeline: Timeline, rng: random.Random, until: float
) -> Iterator[tuple[float, float]]:
    start = rng.random() * UTILIZATION_SECONDS
    while (end := start + UTILIZATION_SECONDS) <= until:
        spent = timeline.seconds(start, end)
        yield end, round(1.0 - spent[State.IDLE] / UTILIZATION_SECONDS, 2)
        start = end


def _gpm(timeline: Timeline, card: Card, start: float, end: float) -> GpmWindow:
    spent = [each / (end - start) for each in timeline.seconds(start, end)]

    def mean(by_state: tuple[float, ...]) -> float:
        return round(sum(s * v for s, v in zip(spent, by_state, strict=False)), 4)

    return GpmWindow(
        gpu=0,
        started_at=BEGAN_AT + start,
        ended_at=BEGAN_AT + end,
        sm_ratio=mean(card.sm),
        dram_ratio=mean(card.dram),
        tensor_ratio=None if card.tensor is None else mean(card.tensor),
    )


def rhythm(
    rng: random.Random,
    seconds: float,
    period_seconds: float,
    shares: tuple[float, float],
    working: State = State.DECODE,
    into: Timeline | None = None,
) -> Timeline:
    """Waits, works, idles in turn, by (waiting, working) shares of a period that varies by 20 %."""
    timeline = into or Timeline()
    until = timeline.ends[-1] + seconds
    while timeline.ends[-1] < until:
        period = period_seconds * rng.uniform(0.8, 1.2)
        start = timeline.ends[-1]
        timeline.extend(start + shares[0] * period, State.WAITING)
        timeline.extend(start + (shares[0] + shares[1]) * period, working)
        timeline.extend(start + period, State.IDLE)
    return timeline


def warming(card: Card) -> Card:
    """The same card, not yet warm."""
    return replace(card, warmth_ratio=0.02)
