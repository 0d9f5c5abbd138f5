"""Levels of work, learned from windows whose working share is proven."""

import random
from collections.abc import Iterator

import pytest

from exporter.activity.gpm import Bracket
from exporter.activity.work import Seen, WorkLearner

SM_WAITING, EXCESS_WATTS = 0.12, 300.0


class Work:
    """A kind of work: what it shows while it works."""

    def __init__(self, sm: float, dram: float, tensor: float = 0.0, watts: float = EXCESS_WATTS):
        self.sm, self.dram, self.tensor, self.watts = sm, dram, tensor, watts

    def seen(self, resident: float, working: float) -> Seen:
        sm = SM_WAITING * (resident - working) + self.sm * working
        return Seen(resident, sm, self.dram * working, self.tensor * working, self.watts * working)


DECODE = Work(sm=0.7, dram=0.6, tensor=0.05)
PREFILL = Work(sm=0.94, dram=0.2, tensor=0.6, watts=550.0)
FEW_SMS = Work(sm=0.3, dram=0.0, tensor=0.016, watts=60.0)


def mixes(count: int) -> Iterator[tuple[float, float]]:
    """(resident, working) shares that vary as windows of a second do."""
    rng = random.Random(3)
    for _ in range(count):
        resident = rng.uniform(0.7, 1.0)
        yield resident, resident * rng.uniform(0.3, 0.7)


def taught(work: Work, count: int = 30, learner: WorkLearner | None = None) -> WorkLearner:
    learner = learner or WorkLearner()
    for resident, working in mixes(count):
        learner.observe(work.seen(resident, working), working)
    return learner


@pytest.mark.parametrize("work", [DECODE, PREFILL, FEW_SMS], ids=["decode", "prefill", "few SMs"])
def test_a_window_of_work_that_was_learned_is_told(work: Work) -> None:
    found = taught(work).bracket(work.seen(0.9, 0.55))
    assert found is not None
    assert found.likely == pytest.approx(0.55, abs=1e-6)


def test_nothing_is_told_before_enough_was_seen() -> None:
    assert taught(DECODE, count=5).bracket(DECODE.seen(0.9, 0.5)) is None


def test_other_work_is_not_told() -> None:
    assert taught(DECODE).bracket(PREFILL.seen(0.9, 0.55)) is None


def test_a_window_is_told_only_if_two_signals_were_measured() -> None:
    learner = taught(DECODE)
    seen = DECODE.seen(0.9, 0.5)
    assert learner.bracket(seen._replace(dram=None, tensor=None)) is None
    assert learner.bracket(seen._replace(sm=None, excess_watts=None)) is None


def test_where_the_sm_levels_cannot_be_told_apart_the_draw_is_the_second_witness() -> None:
    """Every window the same mix: any pair of SM levels fits."""
    learner = WorkLearner()
    for _ in range(20):
        learner.observe(DECODE.seen(1.0, 0.125), 0.125)
    seen = DECODE.seen(1.0, 0.6)
    assert learner.bracket(seen) == pytest.approx(Bracket(0.6, 0.6, 0.6))
    assert learner.bracket(seen._replace(excess_watts=None)) is None


def test_new_work_is_learned_though_the_old_is_still_remembered() -> None:
    learner = taught(FEW_SMS, 10, taught(DECODE))
    found = learner.bracket(FEW_SMS.seen(0.9, 0.5))
    assert found is not None
    assert found.likely == pytest.approx(0.5, abs=0.01)


def test_windows_that_share_no_level_teach_nothing() -> None:
    rng = random.Random(5)
    learner = WorkLearner()
    for resident, working in mixes(60):
        work = Work(sm=rng.uniform(0.3, 0.9), dram=rng.uniform(0.1, 0.8))
        learner.observe(work.seen(resident, working), working)
    assert learner.bracket(DECODE.seen(0.9, 0.5)) is None


def test_a_share_never_leaves_the_residency() -> None:
    learner = taught(DECODE)
    found = learner.bracket(DECODE.seen(0.5, 0.5)._replace(resident=0.48))
    assert found is not None
    assert found.high <= 0.48
