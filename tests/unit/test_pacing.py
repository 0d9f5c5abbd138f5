"""When to do something again."""

from __future__ import annotations

from exporter.sources.gpus.pacing import BackOff, Due


def test_due_is_once_a_period_and_the_first_time_at_once() -> None:
    due = Due()
    times = [second / 1.0 for second in range(12) if due.is_due(float(second), 5.0)]
    assert times == [0.0, 5.0, 10.0]


def test_a_round_a_little_early_is_on_time() -> None:
    due = Due()
    assert due.is_due(0.1, 5.0)
    assert due.is_due(5.0, 5.0)


def test_missed_rounds_are_not_made_up_for() -> None:
    due = Due()
    due.is_due(0.0, 5.0)
    assert due.is_due(100.0, 5.0)
    assert not due.is_due(101.0, 5.0)


def test_each_failure_doubles_the_wait_up_to_the_longest() -> None:
    back_off = BackOff(1.0, 4.0)
    assert back_off.may_try(0.0)
    waits = []
    now = 0.0
    for _ in range(5):
        back_off.fail(now)
        start = now
        while not back_off.may_try(now):
            now += 0.5
        waits.append(now - start)
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]
    back_off.reset()
    back_off.fail(now)
    assert not back_off.may_try(now + 0.5)
    assert back_off.may_try(now + 1.0)
