"""The power ring of a card that lags in a known way."""

import pytest

from exporter.activity.power_lag import LAG_RATIOS, PowerLag
from exporter.records import RingSamples, Signal

H200 = LAG_RATIOS["NVIDIA H200"]
AT = 1_796_032_800.0


def lag_of(ratio: float) -> PowerLag:
    lag = PowerLag()
    lag.ratio = ratio
    return lag


def ring(values: list[float], first: int = 0) -> RingSamples:
    samples = tuple((AT + 0.02 * (first + n), watts) for n, watts in enumerate(values))
    return RingSamples(0, Signal.POWER, 0.02, samples)


def watts_of(record: RingSamples) -> list[float]:
    return [watts for _, watts in record.samples]


def smoothed(values: list[float]) -> list[float]:
    shown = values[:1]
    for watts in values[1:]:
        shown.append(H200 * shown[-1] + (1.0 - H200) * watts)
    return shown


def test_a_wait_of_two_samples_shows_its_level_again() -> None:
    true = [124.0, 124.0, 438.0, 438.0, 158.0, 158.0, 300.0, 438.0, 158.0, 158.0]
    shown = smoothed(true)
    assert min(shown[2:]) > 165.0
    assert watts_of(lag_of(H200).undone(ring(shown))) == pytest.approx(true)


def test_records_are_one_ring_however_they_are_cut() -> None:
    shown = smoothed([124.0, 438.0, 158.0, 158.0, 438.0])
    lag = lag_of(H200)
    first, rest = lag.undone(ring(shown[:2])), lag.undone(ring(shown[1:], 1))
    whole = lag_of(H200).undone(ring(shown))
    assert first.samples + rest.samples == whole.samples


def test_a_sample_after_a_gap_stays_as_it_is() -> None:
    lag = lag_of(H200)
    lag.undone(ring([438.0]))
    assert watts_of(lag.undone(ring([158.0, 158.0], 2))) == pytest.approx([158.0, 158.0])


def test_a_fall_below_nothing_is_nothing() -> None:
    assert watts_of(lag_of(H200).undone(ring([438.0, 0.0])))[1] == 0.0


def test_a_card_of_which_no_lag_is_known_is_left_as_it_is() -> None:
    record = ring([124.0, 438.0, 158.0])
    assert PowerLag().undone(record) is record
