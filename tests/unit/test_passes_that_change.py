"""A load whose passes turn short, and whose work then shows other levels than those learned."""

import random
from dataclasses import replace

import pytest

from tests.activity_judge import Judgement, activity_of, between, judge, truth_of, windows_of
from tests.activity_simulator import (
    BEGAN_AT,
    Card,
    State,
    Timeline,
    random_card,
    records,
    rhythm,
)

Factors = tuple[float, float, float]
"""SM activity over waiting, DRAM activity and draw over waiting of the later work, over the first."""


def same(_: random.Random) -> Factors:
    return 1.0, 1.0, 1.0


def scaled(rng: random.Random) -> Factors:
    """All signals change alike: nothing tells it from more or less work."""
    factor = rng.uniform(0.5, 1.6)
    return factor, factor, factor


def bound_by_latency(rng: random.Random) -> Factors:
    dram = rng.uniform(0.5, 1.0)
    return rng.uniform(dram, 1.0), dram, rng.uniform(dram, 1.0)


CHANGES = {"same": same, "scaled": scaled, "bound by latency": bound_by_latency}


def changed(card: Card, factors: Factors) -> Card:
    """The card, showing the later work in the state of light work."""
    idle, waiting, decode, prefill = card.watts[:4]
    sm = card.sm[1] + (card.sm[2] - card.sm[1]) * factors[0]
    return replace(
        card,
        power_seconds=0.02,
        watts=(idle, waiting, decode, prefill, waiting + (decode - waiting) * factors[2]),
        sm=(*card.sm[:4], min(sm, 0.99)),
        dram=(*card.dram[:4], min(card.dram[2] * factors[1], 0.95)),
    )


def judged(seed: int, change: str) -> tuple[Judgement, Judgement]:
    """What is said of the long passes, and of the short ones from two seconds on."""
    rng = random.Random(seed)
    card = changed(random_card(rng), CHANGES[change](rng))
    timeline = Timeline()
    timeline.extend(4.0, State.IDLE)
    works = rng.uniform(0.15, 0.5)
    waits = rng.uniform(0.2, 0.95 - works)
    rhythm(rng, 40.0, rng.uniform(0.15, 0.6), (waits, works), State.DECODE, timeline)
    works = rng.uniform(0.1, 0.95)
    resident = rng.choice((1.0, 1.0, rng.uniform(works, 1.0)))
    period = rng.uniform(0.004, 0.03)
    rhythm(rng, 40.0, period, (resident - works, works), State.LIGHT, timeline)
    windows = windows_of(activity_of(card), records(timeline, card, random.Random(seed)))
    truth = truth_of(timeline)
    spans = ((4.0, 44.0), (46.0, 84.0))
    first, second = (
        judge(between(windows, BEGAN_AT + start, BEGAN_AT + end), truth) for start, end in spans
    )
    return first, second


# Rests between passes of about a sample's length were once believed (7, 21, 55, 57), and levels
# of the long passes used for the short ones (5, 23, 30).
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", [5, 7, 21, 23, 30, 55, 57])
def test_what_is_claimed_of_short_passes_is_true(seed: int, change: str) -> None:
    for said in judged(seed, change):
        assert abs(said.claimed_working_error) <= 0.03
        assert abs(said.claimed_waiting_error) <= 0.03
