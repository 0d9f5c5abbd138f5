"""Draining a ring: nothing twice, nothing from before the start, the span learned from the ring."""

from __future__ import annotations

from exporter.gpu_driver import RingReading
from exporter.records import RingSamples, Signal
from exporter.sources.gpus.ring_cursor import RingCursor


def reading(*times_us: int) -> RingReading:
    return RingReading(tuple((at, 0.5) for at in times_us))


def test_a_first_sample_alone_stays_in_the_ring_until_its_span_is_known() -> None:
    cursor = RingCursor(3, Signal.POWER, since=0.0)
    assert cursor.take(reading(1_000_000)) is None
    assert cursor.newest_us == 0
    assert cursor.take(reading(1_000_000, 1_020_000)) == RingSamples(
        3, Signal.POWER, 0.02, ((1.0, 0.5), (1.02, 0.5))
    )
    assert cursor.newest_us == 1_020_000


def test_what_was_taken_before_the_start_teaches_the_span_and_counts_nothing() -> None:
    cursor = RingCursor(0, Signal.UTILIZATION, since=1.5)
    assert cursor.take(reading(1_000_000, 1_200_000, 1_400_000)) is None
    samples = cursor.take(reading(1_600_000))
    assert samples == RingSamples(0, Signal.UTILIZATION, 0.2, ((1.6, 0.5),))


def test_a_gap_does_not_move_the_span() -> None:
    cursor = RingCursor(0, Signal.POWER, since=0.0)
    cursor.take(reading(*range(20_000, 1_020_000, 20_000)))
    samples = cursor.take(reading(9_000_000, 9_021_000, 9_040_000))
    assert samples is not None
    assert samples.nominal_seconds == 0.02


def test_nothing_new_is_nothing() -> None:
    cursor = RingCursor(0, Signal.POWER, since=0.0)
    assert cursor.take(RingReading(())) is None
    assert cursor.newest_us == 0
