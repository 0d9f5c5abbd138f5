"""The arithmetic of the duty-cycle measurement: shares of windows, and which window was covered."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.duty_cycle_truth import Pattern, Truth, covered_window, read_truths

TRUTH = Truth(Pattern(1.0, 0.5, "matmul"), 10.0, 13.0, ((10.0, 10.5), (11.0, 11.5), (12.0, 12.5)))
RNG = random.Random(7)
JITTERING = [100.0 + 0.2 * turn + RNG.uniform(0.0, 0.002) for turn in range(100)]
EVEN = [100.0 + 0.2 * turn for turn in range(100)]


@pytest.mark.parametrize(
    ("start", "end", "share"),
    [(10.0, 13.0, 0.5), (10.25, 10.75, 0.5), (10.6, 10.9, 0.0), (11.1, 11.3, 1.0)],
    ids=["whole", "across_an_edge", "idle", "busy"],
)
def test_the_share_of_a_window_is_that_of_its_busy_parts(
    start: float, end: float, share: float
) -> None:
    assert TRUTH.busy_share(start, end) == pytest.approx(share)


def test_a_truth_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / "truth").write_text(f"{TRUTH.to_json()}\n{TRUTH.to_json()}\n")
    assert read_truths(tmp_path / "truth") == [TRUTH, TRUTH]


@pytest.mark.parametrize("lag", [0.0, 0.019, 0.15, 0.199])
def test_the_covered_window_is_found_in_a_jittering_ring(lag: float) -> None:
    """The newest sample of any signal is up to a ring spacing younger than the ring's own."""
    start, end = JITTERING[10], JITTERING[80]
    assert covered_window(JITTERING, start + lag, end + lag, end - start) == (start, end, True)


@pytest.mark.parametrize("lag", [0.0, 0.019, 0.15])
def test_of_windows_that_fit_an_even_ring_the_newest_drained_is_taken(lag: float) -> None:
    start, end = EVEN[10], EVEN[80]
    assert covered_window(EVEN, start + lag, end + lag, end - start) == (start, end, True)


def test_a_window_that_no_samples_fit_is_centered_in_what_is_possible() -> None:
    start, end, exact = covered_window(JITTERING, 105.0, 115.0, 10.05)
    assert (start, end) == pytest.approx((104.9, 114.95))
    assert not exact
