"""What the learner takes for a level, and what it refuses to."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from exporter.activity.levels import LevelLearner
from exporter.activity.slices import Piece, Slice

IDLE, WAITING, WORKING = 90.0, 130.0, 400.0
LIMIT = 600.0
SAMPLE_SECONDS = 0.02


def slice_of(start: float, resident: float, watts: Sequence[float], seconds: float) -> Slice:
    pieces = tuple(
        Piece(
            started_at=start + index * seconds,
            ended_at=start + (index + 1) * seconds,
            watts=each,
            before=watts[index - 1] if index else None,
            after=watts[index + 1] if index + 1 < len(watts) else None,
            sample_seconds=seconds,
        )
        for index, each in enumerate(watts)
    )
    return Slice(start, start + len(watts) * seconds, resident, pieces)


def learn(
    cycle: Sequence[float],
    resting_below: float = (IDLE + WAITING) / 2,
    *,
    cycles: int = 40,
    noise: float = 2.0,
    limit: float | None = LIMIT,
    seconds: float = SAMPLE_SECONDS,
) -> LevelLearner:
    """Feeds a cycle of samples again and again, in slices of ten."""
    rng = random.Random(11)
    learner = LevelLearner(limit)
    samples = list(cycle) * cycles
    for start in range(0, len(samples) - 9, 10):
        levels = samples[start : start + 10]
        resident = sum(each > resting_below for each in levels) / len(levels)
        watts = [rng.gauss(each, noise) for each in levels]
        slice_ = slice_of(start * seconds, resident, watts, seconds)
        learner.observe_idle(slice_)
        learner.observe(slice_)
    return learner


def test_a_wait_between_idleness_and_work_is_learned() -> None:
    learner = learn([IDLE] * 12 + [WAITING] * 3 + [WORKING] * 4)
    assert learner.waiting_watts == pytest.approx(WAITING, abs=2.0)
    assert learner.idle_watts == pytest.approx(IDLE, abs=2.0)
    assert learner.passes_resolved


def test_idleness_is_learned_from_slices_without_a_kernel_only() -> None:
    learner = LevelLearner(LIMIT)
    learner.observe_idle(slice_of(0.0, 0.3, [300.0] * 10, SAMPLE_SECONDS))
    assert learner.idle_watts is None
    learner.observe_idle(slice_of(0.2, 0.0, [IDLE] * 10, SAMPLE_SECONDS))
    assert learner.idle_watts == pytest.approx(IDLE)


def test_a_steady_draw_proves_nothing() -> None:
    """Passes shorter than a sample, with waits between them, look like one level."""
    learner = learn([0.6 * WORKING + 0.4 * WAITING] * 10)
    assert learner.waiting_watts is None
    assert not learner.passes_resolved


def test_decode_between_idleness_and_prefill_is_no_wait() -> None:
    learner = learn([IDLE] * 10 + [0.5 * LIMIT] * 10 + [0.9 * LIMIT] * 10)
    assert learner.waiting_watts is None


def test_launch_gaps_are_no_wait() -> None:
    """A kernel is resident for a fifth of each sample: the ring contradicts the peak."""
    learner = LevelLearner(LIMIT)
    rng = random.Random(3)
    for turn in range(60):
        working = turn % 6 == 5
        watts = [rng.gauss(WORKING if working else WAITING, 2.0) for _ in range(10)]
        learner.observe(slice_of(turn * 0.2, 1.0 if working else 0.2, watts, SAMPLE_SECONDS))
    assert learner.waiting_watts is None


def test_a_wait_seen_once_is_no_level() -> None:
    learner = learn([WAITING] * 20 + [WORKING] * 380, cycles=1)
    assert learner.waiting_watts is None


def test_waits_without_work_are_no_level() -> None:
    """With nothing above it, the peak may be light work."""
    learner = learn([IDLE] * 10 + [WAITING] * 10)
    assert learner.waiting_watts is None


def test_passes_shorter_than_a_sample_are_not_resolved() -> None:
    """A pass of a third of a sample now and then: its samples form a peak, yet none is pure."""
    third = WAITING + (WORKING - WAITING) / 3
    learner = learn([IDLE] * 20 + [WAITING] * 4 + [third] + [WAITING] * 4 + [third])
    assert learner.waiting_watts == pytest.approx(WAITING, abs=2.0)
    assert not learner.passes_resolved


def test_a_peak_that_overtops_its_neighbors_is_no_wait() -> None:
    pulse = IDLE + 60.0
    cycle = [IDLE] * 8 + [pulse] + [IDLE] * 8 + [WORKING] * 8
    assert learn(cycle, resting_below=IDLE + 20).waiting_watts is None


def test_slow_samples_teach_nothing() -> None:
    learner = learn([IDLE] * 12 + [WAITING] * 3 + [WORKING] * 4, seconds=0.1)
    assert learner.waiting_watts is None


def test_the_waiting_level_follows_a_drift() -> None:
    learner = learn([IDLE] * 12 + [WAITING] * 3 + [WORKING] * 4)
    rng = random.Random(5)
    for turn in range(900):
        level = WAITING + 12.0 * min(turn / 600, 1.0)
        levels = [IDLE] * 3 + [level] * 3 + [WORKING] * 4
        watts = [rng.gauss(each, 2.0) for each in levels]
        learner.observe(slice_of(1000 + turn * 0.2, 0.7, watts, SAMPLE_SECONDS))
    assert learner.waiting_watts == pytest.approx(WAITING + 12.0, abs=4.0)


def test_what_was_denied_is_not_believed_again() -> None:
    learner = learn([IDLE] * 12 + [WAITING] * 3 + [WORKING] * 4)
    learner.deny()
    assert learner.waiting_watts is None
    assert not learner.passes_resolved
    rng = random.Random(5)
    for turn in range(100):
        watts = [rng.gauss(w, 2.0) for w in [IDLE] * 3 + [WAITING] * 3 + [WORKING] * 4]
        learner.observe(slice_of(1000 + turn * 0.2, 0.7, watts, SAMPLE_SECONDS))
    assert learner.waiting_watts is None


def test_without_a_power_limit_the_most_drawn_is_the_range() -> None:
    learner = learn([IDLE] * 12 + [WAITING] * 3 + [WORKING] * 4, limit=None)
    assert learner.waiting_watts == pytest.approx(WAITING, abs=2.0)
