"""What the pipeline of `nccl_pipeline` plays: slots, pass times, and the verdicts that would be right.

The verdicts were written down before any result was seen. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SHORT_PASS, LONG_PASS = 0.005, 0.040
"""Seconds of a pass at the scenario's largest batch: below and above a 20 ms power sample."""
INTERVAL = 41
"""Decode results between two Decode lines; coprime to every number of slots here."""
PREFILL_TOKENS = 512
"""Of each request."""
_FIXED = 0.7
"""Share of a pass that does not grow with its batch (reading the weights), at the largest batch."""
_PREFILL_PASSES = 4.0
"""A prefill takes so many decode passes of the largest batch."""
_SLOW = 1.6


class Order(NamedTuple):
    """What stage 0 tells the others before each turn: the batch of the slot whose turn it is."""

    slot: int
    batch: int
    """Requests; 0 for an empty slot."""
    prefill: bool
    over: bool
    """The phase ends before this turn."""
    seconds: float
    """How long a stage works on it."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way to run the pipeline.

    Attributes:
        pattern: How requests are spread over the slots; see `sizes`.
        pass_seconds: Of the largest batch on a stage that is not slow.
        extra_slots: Whether there are as many slots again as stages (pp_async_batch_depth).
        slow_last: Whether the last stage takes 1.6 times as long.
        stall_seconds: How long the host of stage 0 stops, every `stall_every` seconds.
        old_idle: Nothing to do, and requests are asked for by an NCCL receive (0.4.9 to 0.5.6).
        expected: The right verdicts.
        reason: Why these.
    """

    name: str
    pattern: str
    pass_seconds: float
    expected: tuple[str, ...]
    reason: str
    extra_slots: bool = False
    slow_last: bool = False
    stall_seconds: float = 0.0
    stall_every: float = 3.0
    old_idle: bool = False
    least_stages: int = 2

    def sizes(self, stages: int) -> tuple[int, ...]:
        """Requests in each slot."""
        empty = (0,) * (stages - 1)
        return {
            "even": (16,) * stages,
            "herd": (16 * stages, *empty),
            "uneven": (20, 6, *(2,) * (stages - 2)),
            "over_split": (2,) * (2 * stages),
            "single": (1, *empty),
            "none": (0, *empty),
        }[self.pattern]

    def depth(self, stages: int) -> int:
        """Slots beyond the number of stages."""
        return stages if self.extra_slots else 0

    def seconds_of(self, batch: int, stages: int, stage: int, *, prefill: bool = False) -> float:
        """How long a stage works on a batch: a fixed part and one by request."""
        largest = max(*self.sizes(stages), 1)
        share = _PREFILL_PASSES if prefill else _FIXED + (1.0 - _FIXED) * batch / largest
        slow = _SLOW if self.slow_last and stage == stages - 1 else 1.0
        return self.pass_seconds * share * slow


_EVEN = ("healthy", "every slot holds the same, all stages work")
_HERD = (
    "thundering_herd",
    "one slot holds all: 1 effective micro-batch, the bound for 2 stages is 1.5",
)
_SLOW_LAST = ("stage_imbalance", "the last stage takes 1.6 times as long: skew 0.37")

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("even_long", "even", LONG_PASS, _EVEN[:1], _EVEN[1], least_stages=1),
    Scenario("herd_long", "herd", LONG_PASS, _HERD[:1], _HERD[1]),
    Scenario("slow_last_long", "even", LONG_PASS, _SLOW_LAST[:1], _SLOW_LAST[1], slow_last=True),
    Scenario(
        "even_short",
        "even",
        SHORT_PASS,
        ("healthy", "host_bound"),
        f"{_EVEN[1]}; at 5 ms a pass the host's own gaps may pass the bound of host_bound",
        least_stages=1,
    ),
    Scenario("herd_short", "herd", SHORT_PASS, _HERD[:1], _HERD[1]),
    Scenario("slow_last_short", "even", SHORT_PASS, _SLOW_LAST[:1], _SLOW_LAST[1], slow_last=True),
    Scenario(
        "uneven_long",
        "uneven",
        LONG_PASS,
        ("uneven_split", "thundering_herd"),
        "two slots of 20 and 6 are 1.55 effective micro-batches, next to the herd's bound of 1.5: "
        "with two stages hardly any split lies between herd and even",
    ),
    Scenario(
        "over_split",
        "over_split",
        SHORT_PASS,
        ("over_split",),
        "twice as many slots as stages, 2 requests each, 70 % of a pass fixed",
        extra_slots=True,
    ),
    Scenario(
        "host_stall",
        "even",
        SHORT_PASS,
        ("global_stall",),
        "nothing runs on any stage for 0.9 s of every 3 s",
        stall_seconds=0.9,
        least_stages=1,
    ),
    Scenario(
        "host_stall_long",
        "even",
        LONG_PASS,
        ("global_stall",),
        "nothing runs on any stage for 0.9 s of every 3 s",
        stall_seconds=0.9,
    ),
    Scenario(
        "client_limited_long",
        "single",
        LONG_PASS,
        ("client_limited",),
        "one request, two stages and more",
    ),
    Scenario("client_limited_short", "single", SHORT_PASS, ("client_limited",), "the same"),
    Scenario(
        "idle_old_style",
        "none",
        SHORT_PASS,
        ("cannot_tell",),
        "nothing is in flight, though stages above 0 show a resident kernel all the time",
        old_idle=True,
    ),
)
"""In the order in which they are run: if time runs out, the last are missing."""


CALIBRATION = Scenario(
    "levels",
    "herd",
    0.070,
    (),
    "not judged: every work and every wait holds whole power samples, with the links awake",
)
"""What the levels are read from that are given to the judge; no other scenario has its pass time."""


def named(name: str) -> Scenario:
    """The scenario of that name."""
    return next(each for each in (CALIBRATION, *SCENARIOS) if each.name == name)


def orders(scenario: Scenario, stages: int, sizes: tuple[int, ...]) -> Iterator[Order]:
    """Stage 0's orders, turn by turn, without end: each slot's prefill first, then decode.

    Args:
        scenario: Gives the times.
        stages: Of the pipeline.
        sizes: Requests by slot, those of the scenario or of a single stream.
    """
    prefilled = [not size for size in sizes]
    while True:
        for slot, size in enumerate(sizes):
            prefill, prefilled[slot] = not prefilled[slot], True
            seconds = scenario.seconds_of(size, stages, 0, prefill=prefill) if size else 0.0
            yield Order(slot, size, prefill, False, seconds)


def single_stream(stages: int, slots: int) -> tuple[int, ...]:
    """One request in the first of the slots."""
    return (1, *(0,) * (max(slots, stages) - 1))


def effective(sizes: tuple[int, ...]) -> float | None:
    """Effective micro-batches; `None` where nothing is in flight."""
    square = sum(size * size for size in sizes)
    return sum(sizes) ** 2 / square if square else None
