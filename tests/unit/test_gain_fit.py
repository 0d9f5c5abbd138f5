"""The fit of pass time to batch size, and the gain of an even split."""

import random

import pytest

from exporter.pipeline.gain_fit import GainFit, Operation, PassTime, ring_seconds

STAGES = (PassTime(0.003, 0.0002), PassTime(0.003, 0.0002), PassTime(0.004, 0.0003))


def operation(sizes: list[int], stages: tuple[PassTime, ...] = STAGES) -> Operation:
    """What a ring of these stages shows while its slots hold `sizes`."""
    round_seconds = ring_seconds(stages, sizes)
    working = tuple(sum(stage.of(b) for b in sizes) / round_seconds for stage in stages)
    return Operation(len(sizes), sum(sizes), sum(sizes) / round_seconds, working)


def fit(*loads: list[int], stages: tuple[PassTime, ...] = STAGES) -> GainFit:
    gain_fit = GainFit()
    for sizes in loads:
        gain_fit.observe(operation(sizes, stages))
    return gain_fit


def test_two_different_loads_give_the_pass_times_of_every_stage() -> None:
    fitted = fit([1], [16, 16]).pass_times()
    assert fitted is not None
    for found, true in zip(fitted, STAGES, strict=True):
        assert found.base_seconds == pytest.approx(true.base_seconds)
        assert found.request_seconds == pytest.approx(true.request_seconds)


def test_one_load_or_the_same_mean_size_twice_allows_no_fit() -> None:
    assert fit([4, 4, 4]).pass_times() is None
    assert fit([4, 4, 4], [4]).pass_times() is None
    assert fit([4, 4, 4]).gain_ratio([12], 3) is None


def test_the_gain_of_splitting_a_herd_is_what_the_formula_says() -> None:
    """definitions: G = P (alpha + beta N) / (P alpha + beta N) for equal stages."""
    stages = (PassTime(0.003, 0.0002),) * 4
    gain = fit([1], [8, 8], stages=stages).gain_ratio([32], 4)
    assert gain == pytest.approx(4 * (0.003 + 0.0064) / (4 * 0.003 + 0.0064))


def test_where_reading_the_weights_is_all_splitting_gains_nothing() -> None:
    stages = (PassTime(0.003, 0.0),) * 4
    assert fit([1], [8, 8], stages=stages).gain_ratio([32], 4) == pytest.approx(1.0)


def test_an_even_pipeline_has_nothing_to_gain_and_an_over_split_one_has() -> None:
    stages = (PassTime(0.003, 0.00006),) * 8
    gain_fit = fit([1], [16, 16], stages=stages)
    assert gain_fit.gain_ratio([4] * 8, 8) == pytest.approx(1.0)
    over_split = gain_fit.gain_ratio([2] * 16, 16)
    assert over_split is not None
    assert over_split > 1.5


def test_noise_of_two_percent_moves_the_gain_by_little() -> None:
    generator = random.Random(7)
    gain_fit = GainFit()
    for sizes in ([1], [2, 2], [8, 8, 8], [32], [16, 8, 4]):
        true = operation(sizes)
        noisy = tuple(u * generator.uniform(0.98, 1.02) for u in true.working_ratios)
        gain_fit.observe(
            Operation(true.active_slots, true.running_requests, true.tokens_per_second, noisy)
        )
    exact = fit([1], [32]).gain_ratio([32], 3)
    found = gain_fit.gain_ratio([32], 3)
    assert found is not None
    assert found == pytest.approx(exact, rel=0.05)


def test_pass_times_are_never_negative() -> None:
    gain_fit = GainFit()
    gain_fit.observe(Operation(1, 1, 100.0, (0.5,)))
    gain_fit.observe(Operation(1, 32, 10_000.0, (0.1,)))
    for fitted in gain_fit.pass_times() or ():
        assert min(fitted) >= 0.0
