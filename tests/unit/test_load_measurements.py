"""Tokens over time and percentiles, in any window and in bounded memory."""

from __future__ import annotations

import pytest

from exporter.load import measurements
from exporter.load.failures import FailureKind, retry_after_seconds
from exporter.load.measurements import Measurements
from exporter.load.streaming import NewTokens, RequestTiming

T = 1_796_000_000.0


def test_nothing_measured_is_not_zero() -> None:
    latencies = Measurements().latencies(T, T + 60)
    assert latencies.time_to_first_token is None
    assert latencies.inter_token is None
    assert latencies.end_to_end is None


def test_a_gap_before_several_tokens_is_shared_by_them() -> None:
    measured = Measurements()
    measured.add_tokens(NewTokens(T + 1, 1, 0.7, first=True))
    measured.add_tokens(NewTokens(T + 2, 4, 1.0, first=False))
    measured.add_tokens(NewTokens(T + 5, 1, 3.0, first=False))
    latencies = measured.latencies(T, T + 10)
    assert latencies.time_to_first_token is not None
    assert latencies.time_to_first_token.p50_seconds == 0.7
    gaps = latencies.inter_token
    assert gaps is not None
    assert (gaps.count, gaps.mean_seconds, gaps.p50_seconds) == (5, 0.8, 0.25)
    assert (gaps.p90_seconds, gaps.most_seconds) == (3.0, 3.0)


def test_only_what_ended_in_the_window_counts() -> None:
    measured = Measurements()
    for second in range(1, 101):
        measured.requests.append(RequestTiming(T, T + 0.5, T + second, 8))
        measured.add_failure(T + second, FailureKind.REJECTED)
    whole = measured.latencies(T, T + 50).end_to_end
    assert whole is not None
    assert (whole.count, whole.p50_seconds, whole.p90_seconds) == (50, 25.0, 45.0)
    assert measured.errors_between(T + 91, T + 200) == {FailureKind.REJECTED: 10}


def test_with_too_many_gaps_every_other_is_kept_and_percentiles_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measurements, "MOST_GAPS", 1000)
    measured = Measurements()
    for number in range(50_000):
        measured.add_tokens(NewTokens(T + number / 1000, 1, (number % 101) / 100, first=False))
    gaps = measured.latencies(T, T + 60).inter_token
    assert gaps is not None
    assert gaps.count < 1000
    assert gaps.p50_seconds == pytest.approx(0.5, abs=0.05)
    assert gaps.p90_seconds == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("12", 12.0),
        (" 3 ", 3.0),
        ("999999999999", 60.0),
        ("Mon, 30 Nov 2026 12:53:30 GMT", 10.0),
        ("Mon, 30 Nov 2026 12:00:00 GMT", 0.0),
        ("Mon, 30 Nov 2099 12:00:00 GMT", 60.0),
        ("Mon, 30 Nov 2026 12:53:30", None),
        ("-1", None),
        ("nan", None),
        ("\u0667", None),
        ("9" * 5000, None),
    ],
)
def test_the_pause_a_server_asks_for_is_read_in_either_form(
    header: str | None, seconds: float | None
) -> None:
    assert retry_after_seconds(header, 1_796_043_200.0) == seconds
