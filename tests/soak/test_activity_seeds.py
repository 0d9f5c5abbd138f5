"""Random servers: with levels the shares are right; without, right or left to residency."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from exporter.records import Signal
from tests.activity_judge import (
    Judgement,
    activity_of,
    check_shape,
    judge,
    truth_of,
    windows_of,
)
from tests.activity_simulator import (
    Card,
    Server,
    play,
    random_card,
    random_server,
    records,
)

CARDS_PER_SEED = 2
EVERYTHING = (Signal.UTILIZATION, Signal.POWER, Signal.GPM)
POWER = (Signal.UTILIZATION, Signal.POWER)
GPM = (Signal.UTILIZATION, Signal.GPM)
WAYS: dict[str, tuple[Sequence[Signal], bool]] = {
    "everything, levels": (EVERYTHING, True),
    "power, levels": (POWER, True),
    "gpm, levels": (GPM, True),
    "everything": (EVERYTHING, False),
    "power": (POWER, False),
    "gpm": (GPM, False),
}
BOUND = 0.03
# Each of these once broke a bound: passes shorter than a sample that look like levels (6, 157, 163,
# 268, 273, 2060, 2104), stalls of a full pipeline (64), a card that never idles (1039, 1144, 1159),
# prefill in 100 ms samples (28, 1131, 3218, 3220), prefill a few samples long (5071), passes little longer than a sample (88, 89),
# peaks that are no waiting level (199, 496, 1006), slow samples (73, 322, 3180).
BROKEN_ONCE = (6, 28, 64, 73, 88, 89, 157, 163, 199, 268, 273, 322, 496)
BROKEN_ONCE += (1006, 1039, 1131, 1144, 1159, 2060, 2104, 3180, 3218, 3220, 5071)


def judged(seed: int) -> dict[str, list[Judgement]]:
    """A few cards of a random server, by each way of looking at them."""
    rng = random.Random(seed)
    server = random_server(rng)
    timelines = play(rng, server)
    judgements = defaultdict(list)
    for _ in range(CARDS_PER_SEED):
        timeline = timelines[rng.randrange(server.stages)][rng.randrange(server.tp)]
        card = random_card(rng)
        for way, (signals, knows_levels) in WAYS.items():
            if way == "power, levels" and hides_prefill(server, card):
                continue
            activity = activity_of(card)
            given = [card.levels()] if knows_levels else []
            windows = windows_of(
                activity, [*given, *records(timeline, card, random.Random(seed), signals)]
            )
            check_shape(windows)
            judgements[way].append(judge(windows, truth_of(timeline)))
    return judgements


def hides_prefill(server: Server, card: Card) -> bool:
    """Whether prefill passes are shorter than a power sample, so that what a sample holds of them
    cannot be told from decode by power alone, levels or not."""
    return server.prefill_chance > 0.0 and server.prefill_seconds < 1.5 * card.power_seconds


def broken(judgement: Judgement) -> bool:
    return (
        abs(judgement.claimed_working_error) > BOUND or abs(judgement.claimed_waiting_error) > BOUND
    )


@pytest.mark.parametrize("seed", BROKEN_ONCE)
def test_what_is_claimed_is_true(seed: int) -> None:
    for way, judgements in judged(seed).items():
        assert not any(map(broken, judgements)), way


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_what_is_claimed_is_true_over_200_seeds() -> None:
    all_judgements: dict[str, list[Judgement]] = defaultdict(list)
    failures = []
    for seed in range(1000, 1200):
        for way, judgements in judged(seed).items():
            all_judgements[way].extend(judgements)
            failures += [(seed, way, each) for each in judgements if broken(each)]
    print(f"\n{'way':20} {'cards':>5} {'mean':>6} {'worst error':>11} {'by residency':>12}")
    for way, judgements in all_judgements.items():
        errors = [abs(each.claimed_working_error) for each in judgements]
        residency = sum(each.residency_ratio for each in judgements) / len(judgements)
        print(
            f"{way:20} {len(judgements):5} {sum(errors) / len(errors):6.3f} {max(errors):11.3f}"
            f" {residency:12.2f}"
        )
    assert not failures
