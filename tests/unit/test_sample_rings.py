"""Integration of ring samples over covered time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sample_rings import SignalIntegral

NOMINAL = 0.2


def feed(integral: SignalIntegral, *samples: tuple[float, float]) -> SignalIntegral:
    for taken_at, value in samples:
        integral.add_sample(taken_at, NOMINAL, value)
    return integral


def test_the_first_sample_covers_its_own_span() -> None:
    integral = feed(SignalIntegral(), (100.0, 0.5))
    assert integral.observed_seconds == pytest.approx(0.2)
    assert integral.value_seconds == pytest.approx(0.1)
    assert integral.missed_seconds == 0


def test_a_sample_covers_the_time_since_the_one_before() -> None:
    """Real spacing is 18 to 22 ms for a nominal 20: nothing may overlap or fall between."""
    integral = feed(SignalIntegral(), (100.0, 0.0), (100.22, 1.0), (100.40, 1.0))
    assert integral.observed_seconds == pytest.approx(0.2 + 0.22 + 0.18)
    assert integral.value_seconds == pytest.approx(0.40)
    assert integral.missed_seconds == 0


def test_a_gap_is_missed_and_counts_as_neither_busy_nor_idle() -> None:
    integral = feed(SignalIntegral(), (100.0, 1.0), (105.0, 1.0))
    assert integral.observed_seconds == pytest.approx(0.4)
    assert integral.value_seconds == pytest.approx(0.4)
    assert integral.missed_seconds == pytest.approx(4.8)


def test_a_gap_shorter_than_twice_the_nominal_span_is_covered() -> None:
    integral = feed(SignalIntegral(), (100.0, 1.0), (100.399, 1.0))
    assert integral.missed_seconds == 0
    assert integral.observed_seconds == pytest.approx(0.599)


def test_a_sample_seen_twice_counts_once() -> None:
    once = feed(SignalIntegral(), (100.0, 0.5), (100.2, 0.7))
    twice = feed(SignalIntegral(), (100.0, 0.5), (100.2, 0.7), (100.2, 0.7), (100.0, 0.5))
    assert twice.observed_seconds == once.observed_seconds
    assert twice.value_seconds == once.value_seconds
    assert twice.missed_seconds == once.missed_seconds


def test_windows_that_overlap_are_clipped() -> None:
    integral = SignalIntegral()
    integral.add_window(10.0, 11.0, 1.0)
    integral.add_window(10.5, 12.0, 0.0)
    assert integral.observed_seconds == pytest.approx(2.0)
    assert integral.value_seconds == pytest.approx(1.0)
    assert integral.missed_seconds == 0


def test_the_mean_of_a_second_splits_samples_at_its_borders() -> None:
    integral = SignalIntegral()
    for step in range(1, 20):
        at = 100.1 + step * NOMINAL
        integral.add_sample(at, NOMINAL, 1.0 if at <= 101.5 + 1e-9 else 0.0)
    assert integral.second_mean(101) == pytest.approx(0.5)
    assert integral.second_mean(102) == 0.0


def test_a_second_with_a_hole_has_no_mean() -> None:
    integral = feed(SignalIntegral(), (100.2, 1.0), (100.4, 1.0), (101.0, 1.0), (101.2, 1.0))
    assert integral.second_mean(100) is None


def test_no_second_is_complete_before_a_sample_beyond_it() -> None:
    integral = feed(SignalIntegral(), *((100 + i * NOMINAL, 1.0) for i in range(1, 5)))
    assert integral.last_complete_second() == 99
    assert integral.second_mean(99) is None
    integral.add_sample(101.0, NOMINAL, 1.0)
    assert integral.last_complete_second() == 100
    assert integral.second_mean(100) == pytest.approx(1.0)


def test_old_seconds_are_dropped_and_a_year_long_gap_costs_nothing() -> None:
    integral = SignalIntegral()
    for at in range(1000):
        integral.add_window(at, at + 1, 0.5)
    integral.add_window(4e7, 4e7 + 1, 0.5)
    for at in range(int(4e7) + 1, int(4e7) + 40):
        integral.add_window(at, at + 1, 0.5)
    assert len(integral._seconds) <= 33


spans = st.lists(
    st.tuples(
        st.floats(0.001, 3.0, allow_nan=False),  # distance to the sample before
        st.floats(0.0, 1.0, allow_nan=False),
    ),
    max_size=60,
)


@given(spans)
def test_observed_and_missed_time_sum_to_the_elapsed_time(steps: list[tuple[float, float]]) -> None:
    integral, at = SignalIntegral(), 1000.0
    for distance, value in steps:
        at += distance
        integral.add_sample(at, NOMINAL, value)
    if steps:
        begin = 1000.0 + steps[0][0] - NOMINAL
        assert math.isclose(
            integral.observed_seconds + integral.missed_seconds, at - begin, abs_tol=1e-6
        )
    assert 0 <= integral.value_seconds <= integral.observed_seconds + 1e-9


@given(spans, st.integers(0, 60))
def test_feeding_in_two_parts_changes_nothing(steps: list[tuple[float, float]], cut: int) -> None:
    whole, parts, at = SignalIntegral(), SignalIntegral(), 1000.0
    samples = []
    for distance, value in steps:
        at += distance
        samples.append((at, value))
    feed(whole, *samples)
    feed(parts, *samples[:cut])
    feed(parts, *samples[cut:])
    assert (parts.observed_seconds, parts.value_seconds) == (
        whole.observed_seconds,
        whole.value_seconds,
    )
