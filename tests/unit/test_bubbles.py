"""Stage time and active stages: sums are exact, whatever the windows' phases, order and gaps."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import pytest

from exporter.pipeline.bubbles import active_stages
from exporter.pipeline.clock import FIRST_WINDOW_SECONDS, OVERDUE_SECONDS
from exporter.pipeline.figures import PipelineFigures, StageState
from exporter.pipeline.grid import CELLS_PER_SECOND, ActivityGrid
from exporter.pipeline.means import second_figures
from exporter.pipeline.server import ServerPipelines
from exporter.records import (
    ActivityWindow,
    LoadEvent,
    LoadPhase,
    Method,
    ServerFacts,
    StageGpu,
    StageMap,
)

T0 = 1_796_032_800.0
SERVER = "kimi"


def window(
    gpu: int,
    start: float,
    end: float,
    working: float,
    waiting: float | None = 0.0,
    method: Method = Method.POWER,
) -> ActivityWindow:
    return ActivityWindow(gpu, T0 + start, T0 + end, working, waiting, method)


def row(
    gpu: int, shares: Iterable[float], length: float = 0.02, phase: float = 0.0
) -> list[ActivityWindow]:
    """Windows of one GPU back to back."""
    return [
        window(gpu, phase + i * length, phase + (i + 1) * length, share)
        for i, share in enumerate(shares)
    ]


def stage_map(ranks: Sequence[tuple[int, int, int]], at: float = 0.0) -> StageMap:
    """From (pp_rank, tp_rank, gpu)."""
    return StageMap(SERVER, T0 + at, tuple(StageGpu(0, *rank) for rank in ranks), "recording")


def server(stages: int, ranks: int = 1, at: float = 0.0) -> ServerPipelines:
    """One pipeline; rank r of stage s runs on GPU s x ranks + r."""
    pipelines = ServerPipelines()
    pipelines.fold_facts(ServerFacts(SERVER, T0, {"pp_size": stages}, "recording"))
    pipelines.fold_map(
        stage_map([(s, r, s * ranks + r) for s, r in product(range(stages), range(ranks))], at)
    )
    return pipelines


def fold(pipelines: ServerPipelines, windows: Iterable[ActivityWindow]) -> None:
    for record in sorted(windows, key=lambda w: w.ended_at):
        pipelines.fold_window(record)


def closed(pipelines: ServerPipelines, at: float) -> PipelineFigures:
    pipelines.close(T0 + at)
    (figures,) = pipelines.figures(T0 + at)
    return figures


def state_seconds(figures: PipelineFigures, pp_rank: int, state: StageState) -> float:
    return sum(
        seconds for (which, _), seconds in figures.stages[pp_rank].seconds.items() if which is state
    )


def working(figures: PipelineFigures, pp_rank: int) -> float:
    return state_seconds(figures, pp_rank, StageState.WORKING)


def random_windows(rng: random.Random, gpu: int, seconds: float) -> list[ActivityWindow]:
    """Windows of one length and phase, with holes, waiting and changing methods."""
    length = rng.choice((0.02, 0.1, 0.2, 1.0))
    at = rng.random() * length
    windows = []
    while at + length < seconds:
        span = length * rng.uniform(0.9, 1.1)
        share = rng.choice((0.0, 1.0, rng.random()))
        method = rng.choice((Method.GPM, Method.POWER, Method.POWER, Method.RESIDENCY))
        wait = None if method is Method.RESIDENCY else rng.random() * (1.0 - share)
        if rng.random() > 0.05:
            windows.append(window(gpu, at, at + span, share, wait, method))
        at += span
    return windows


# --- the distribution --------------------------------------------------------------------------


def test_active_stages_is_the_distribution_over_all_outcomes():
    shares = (0.2, 0.0, 1.0, 0.7)
    expected = [0.0] * 5
    for outcome in product((0, 1), repeat=4):
        chance = 1.0
        for works, share in zip(outcome, shares, strict=True):
            chance *= share if works else 1.0 - share
        expected[sum(outcome)] += chance
    assert active_stages(shares) == pytest.approx(expected)


def test_no_stage_at_all_is_certain_for_no_stages():
    assert active_stages(()) == [1.0]


# --- properties over random windows ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_shares_sum_to_observed_time_and_the_distribution_to_the_working_shares(seed):
    rng = random.Random(seed)
    stages, ranks = rng.choice(((2, 1), (4, 2), (8, 1), (3, 4)))
    pipelines = server(stages, ranks)
    windows = [w for gpu in range(stages * ranks) for w in random_windows(rng, gpu, 20.0)]
    fold(pipelines, windows)
    figures = closed(pipelines, 20.0)
    for stage in figures.stages:
        assert sum(stage.seconds.values()) <= 20.0
        if ranks == 1:
            covered = sum(w.ended_at - w.started_at for w in windows if w.gpu == stage.pp_rank)
            assert sum(stage.seconds.values()) == pytest.approx(covered, abs=1e-4)
        assert min(stage.seconds.values()) >= 0.0
    assert sum(figures.active_stages_seconds) == pytest.approx(figures.observed_seconds)
    assert len(figures.active_stages_seconds) == stages + 1


@pytest.mark.parametrize("seed", range(6))
def test_the_mean_number_of_active_stages_is_the_sum_of_working_shares(seed):
    rng = random.Random(seed)
    pipelines = server(8)
    shares = [[rng.random() for _ in range(500)] for _ in range(8)]
    fold(pipelines, [w for gpu in range(8) for w in row(gpu, shares[gpu])])
    figures = closed(pipelines, 10.0)
    mean = sum(k * s for k, s in enumerate(figures.active_stages_seconds))
    assert figures.observed_seconds == pytest.approx(10.0, abs=1e-3)
    assert mean == pytest.approx(sum(working(figures, s) for s in range(8)), abs=1e-3)
    assert mean == pytest.approx(sum(map(sum, shares)) * 0.02, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_permuting_gpus_changes_nothing(seed):
    rng = random.Random(seed)
    rows = [random_windows(rng, stage, 15.0) for stage in range(4)]
    places = list(range(4))
    rng.shuffle(places)
    plain, permuted = server(4), ServerPipelines()
    permuted.fold_facts(ServerFacts(SERVER, T0, {"pp_size": 4}, "recording"))
    permuted.fold_map(stage_map([(s, 0, 10 + places[s]) for s in range(4)]))
    fold(plain, [w for found in rows for w in found])
    moved = [
        ActivityWindow(
            10 + places[w.gpu], w.started_at, w.ended_at, w.working_ratio, w.waiting_ratio, w.method
        )
        for found in rows
        for w in found
    ]
    fold(permuted, moved)
    assert closed(permuted, 15.0) == closed(plain, 15.0)


@pytest.mark.parametrize("cut", [3.3, 7.0, 11.99])
def test_looking_in_between_changes_nothing(cut):
    rng = random.Random(5)
    windows = [w for gpu in range(4) for w in random_windows(rng, gpu, 15.0)]
    once, twice = server(4), server(4)
    fold(once, windows)
    fold(twice, [w for w in windows if w.ended_at <= T0 + cut])
    twice.advance(T0 + cut)
    twice.figures(T0 + cut)
    fold(twice, [w for w in windows if w.ended_at > T0 + cut])
    assert closed(twice, 15.0) == closed(once, 15.0)


@pytest.mark.parametrize("seed", range(4))
def test_counters_never_fall_while_windows_come(seed):
    rng = random.Random(seed)
    pipelines = server(4, 2)
    windows = sorted(
        (w for gpu in range(8) for w in random_windows(rng, gpu, 12.0)), key=lambda w: w.ended_at
    )
    before: dict[object, float] = {}
    for index, record in enumerate(windows):
        pipelines.fold_window(record)
        if index % 50 == 0:
            (figures,) = pipelines.figures(record.ended_at)
            now = {(s.pp_rank, k): v for s in figures.stages for k, v in s.seconds.items()}
            now |= {("k", k): v for k, v in enumerate(figures.active_stages_seconds)}
            assert all(now[key] >= value for key, value in before.items())
            before = now


# --- gaps, late and missing windows ------------------------------------------------------------


def test_time_in_a_gap_counts_nowhere():
    pipelines = server(1)
    fold(pipelines, [window(0, 0.0, 1.0, 1.0), window(0, 1.5, 3.0, 0.0)])
    figures = closed(pipelines, 3.0)
    assert working(figures, 0) == pytest.approx(1.0)
    assert state_seconds(figures, 0, StageState.IDLE) == pytest.approx(1.5)
    assert figures.observed_seconds == pytest.approx(2.5)


def test_a_stage_with_one_rank_missing_is_unobserved_there():
    pipelines = server(1, ranks=2)
    fold(pipelines, [window(0, i, i + 1.0, 1.0) for i in range(6)] + [window(1, 0.0, 2.0, 0.5)])
    figures = closed(pipelines, 6.0)
    assert sum(figures.stages[0].seconds.values()) == pytest.approx(2.0)


def test_a_lost_gpu_holds_the_others_up_only_for_a_while():
    pipelines = server(2)
    fold(pipelines, row(0, [1.0] * 500) + row(1, [0.5] * 50))
    (figures,) = pipelines.figures(T0 + 10.0)
    assert working(figures, 0) >= 10.0 - OVERDUE_SECONDS - 1.0 - 1e-3
    assert working(figures, 1) == pytest.approx(0.5)
    assert figures.observed_seconds == pytest.approx(1.0)


def test_windows_two_seconds_late_still_count():
    pipelines = server(2)
    late = row(1, [0.5] * 500)
    for index, record in enumerate(row(0, [1.0] * 500)):
        pipelines.fold_window(record)
        if index >= 100:
            pipelines.fold_window(late[index - 100])
    for record in late[400:]:
        pipelines.fold_window(record)
    figures = closed(pipelines, 10.0)
    assert working(figures, 1) == pytest.approx(5.0)
    assert figures.late_seconds == 0.0


def test_the_first_windows_of_a_gpu_may_come_half_a_minute_late():
    """Its levels were not known before."""
    pipelines = server(2)
    held = row(1, [0.5] * 1500)
    for record in row(0, [1.0] * 1500):
        pipelines.fold_window(record)
    for record in held:
        pipelines.fold_window(record)
    figures = closed(pipelines, FIRST_WINDOW_SECONDS)
    assert working(figures, 1) == pytest.approx(15.0)


def test_memory_is_bounded_while_a_gpu_is_awaited():
    grid = ActivityGrid()
    for second in range(10_000):
        grid.add(window(0, second, second + 1.0, 1.0))
    assert len(grid._seconds) <= 64


def test_a_window_longer_than_any_driver_gives_is_ignored():
    pipelines = server(1)
    fold(pipelines, [window(0, 0.0, 1.0, 1.0), window(0, 1.0, 4000.0, 1.0)])
    assert closed(pipelines, 4000.0).observed_seconds == pytest.approx(1.0)


# --- ranks, methods, resolutions ---------------------------------------------------------------


def test_the_hardest_working_rank_speaks_for_a_stage_and_the_longest_resident_for_its_waiting():
    pipelines = server(1, ranks=2)
    fold(
        pipelines,
        [window(0, i, i + 1.0, 0.3, 0.6) for i in range(12)]
        + [window(1, i, i + 1.0, 0.5, 0.1) for i in range(12)],
    )
    figures = closed(pipelines, 12.0)
    assert working(figures, 0) == pytest.approx(6.0)
    assert state_seconds(figures, 0, StageState.WAITING) == pytest.approx(12 * 0.4)
    assert figures.stages[0].rank_spread_ratio == pytest.approx(0.2)


def test_ranks_in_step_seen_through_shifted_windows_work_no_longer_than_one():
    """Work of 4 ms every 29 ms: shifted copies of one rhythm, not more work."""
    rng = random.Random(1)

    def share(start: float) -> float:
        steps = [start + i * 0.0005 for i in range(40)]
        return sum((at + 1.0) % 0.029 < 0.004 for at in steps) / 40

    pipelines = server(1, ranks=8)
    windows = []
    for gpu in range(8):
        phase = rng.random() * 0.02
        starts = [phase + i * 0.02 for i in range(998)]
        noisy = [min(max(share(at) + rng.gauss(0.0, 0.03), 0.0), 1.0) for at in starts]
        windows += row(gpu, noisy, phase=phase)
    fold(pipelines, windows)
    figures = closed(pipelines, 20.0)
    assert working(figures, 0) / figures.observed_seconds == pytest.approx(4 / 29, abs=0.02)


def test_time_goes_to_the_worst_method_of_the_ranks_at_that_instant():
    pipelines = server(1, ranks=2)
    fold(
        pipelines,
        [window(0, i, i + 1.0, 0.2, 0.5, Method.GPM) for i in range(4)]
        + [window(1, i, i + 1.0, 0.3, 0.3, Method.POWER) for i in range(2)]
        + [window(1, i, i + 1.0, 0.6, None, Method.RESIDENCY) for i in range(2, 4)],
    )
    (stage,) = closed(pipelines, 4.0).stages
    assert stage.seconds == {
        (StageState.WORKING, Method.POWER): pytest.approx(0.6),
        (StageState.WAITING, Method.POWER): pytest.approx(0.8),
        (StageState.IDLE, Method.POWER): pytest.approx(0.6),
        (StageState.WORKING, Method.RESIDENCY): pytest.approx(1.4),
        (StageState.IDLE, Method.RESIDENCY): pytest.approx(0.6),
    }


@pytest.mark.parametrize("length", [0.02, 0.1, 0.2, 1.0])
def test_the_resolution_is_the_length_of_the_longest_windows(length):
    pipelines = server(2)
    count = round(12 / length)
    fold(pipelines, row(0, [0.5] * 600) + row(1, [0.25] * count, length))
    figures = closed(pipelines, 12.0)
    assert figures.active_stages_window_seconds == pytest.approx(length, abs=0.0011)
    assert working(figures, 1) == pytest.approx(3.0)


def test_power_windows_of_100_ms_keep_the_sums_exact():
    rng = random.Random(2)
    shares = [rng.random() for _ in range(100)]
    pipelines = server(2)
    fold(pipelines, row(0, shares, 0.1, 0.033) + row(1, shares, 0.1, 0.071))
    figures = closed(pipelines, 11.0)
    for stage in (0, 1):
        assert working(figures, stage) == pytest.approx(sum(shares) * 0.1, abs=1e-3)


# --- launches ----------------------------------------------------------------------------------


def test_a_new_launch_never_mixes_old_and_new_ranks():
    """The stages swap their GPUs: each keeps what it did on its own."""
    pipelines = server(2)
    fold(pipelines, row(0, [1.0] * 225) + row(1, [0.0] * 225))
    pipelines.fold_facts(
        ServerFacts(SERVER, T0 + 4.5, {"pp_size": 2}, "server_args", new_launch=True)
    )
    fold(pipelines, row(0, [1.0] * 100, phase=4.5) + row(1, [1.0] * 100, phase=4.5))
    pipelines.fold_map(stage_map([(0, 0, 1), (1, 0, 0)], at=7.0))
    fold(pipelines, row(0, [1.0] * 250, phase=7.0) + row(1, [0.0] * 250, phase=7.0))
    figures = closed(pipelines, 12.0)
    assert working(figures, 0) == pytest.approx(4.5, abs=0.03)
    assert working(figures, 1) == pytest.approx(5.0, abs=0.03)
    assert sum(figures.stages[0].seconds.values()) == pytest.approx(9.5, abs=0.05)


def test_a_map_that_names_only_some_stages_leaves_the_whole_unobserved():
    pipelines = server(4)
    pipelines.fold_map(stage_map([(0, 0, 0), (1, 0, 1)], at=0.0))
    fold(pipelines, row(0, [1.0] * 200) + row(1, [1.0] * 200))
    figures = closed(pipelines, 4.0)
    assert figures.observed_seconds == 0.0
    assert working(figures, 0) == pytest.approx(4.0)


def test_a_node_with_some_of_the_stages_judges_its_own_share():
    pipelines = ServerPipelines()
    facts = {"pp_size": 8, "nnodes": 2, "node_rank": 1}
    pipelines.fold_facts(ServerFacts(SERVER, T0, facts, "recording"))
    pipelines.fold_map(stage_map([(4 + s, 0, s) for s in range(4)]))
    fold(pipelines, [w for gpu in range(4) for w in row(gpu, [0.25 * gpu] * 600)])
    figures = closed(pipelines, 12.0)
    assert figures.expected_stages == 4
    assert [stage.pp_rank for stage in figures.stages] == [4, 5, 6, 7]
    assert figures.occupancy_ratio == pytest.approx(0.375)
    assert figures.observed_seconds == pytest.approx(12.0)
    assert len(figures.active_stages_seconds) == 5


# --- means -------------------------------------------------------------------------------------


def loaded(stages: int) -> ServerPipelines:
    """A pipeline that a load keeps in flight."""
    pipelines = server(stages)
    pipelines.fold_load(LoadEvent(T0, LoadPhase.START, 32))
    return pipelines


def test_a_slow_stage_shows_as_skew_and_as_persistent_variance():
    pipelines = loaded(4)
    shares = (0.6, 0.6, 0.6, 1.0)
    fold(pipelines, [w for gpu in range(4) for w in row(gpu, [shares[gpu]] * 1500)])
    figures = closed(pipelines, 30.0)
    assert figures.skew_ratio == pytest.approx(0.4)
    assert figures.balance_ratio == pytest.approx(0.7)
    assert figures.occupancy_ratio == pytest.approx(0.7)
    assert figures.bubble_ratio == pytest.approx(0.3)
    assert figures.variance is not None
    assert figures.variance.persistent_share == pytest.approx(1.0)
    assert figures.stages[0].bubble_seconds == pytest.approx(12.0)


def test_stages_that_take_turns_vary_over_time_only_and_less_than_independent_ones():
    pipelines = loaded(4)
    turns = [[float(i % 4 == gpu) for i in range(1500)] for gpu in range(4)]
    fold(pipelines, [w for gpu in range(4) for w in row(gpu, turns[gpu])])
    figures = closed(pipelines, 30.0)
    assert figures.variance is not None
    assert figures.variance.persistent_share == pytest.approx(0.0, abs=1e-3)
    assert figures.variance.active_ratio == pytest.approx(0.0, abs=0.01)
    assert figures.active_stages_mean == pytest.approx(1.0)
    assert figures.active_stages_seconds[1] == pytest.approx(30.0, abs=0.05)


def test_stages_that_stop_together_vary_more_than_independent_ones():
    pipelines = loaded(4)
    stops = [float(i // 25 % 2) for i in range(1500)]
    fold(pipelines, [w for gpu in range(4) for w in row(gpu, stops)])
    figures = closed(pipelines, 30.0)
    assert figures.variance is not None
    assert figures.variance.active_ratio == pytest.approx(4.0, abs=0.1)
    assert figures.variance.active_ratio_at_least == pytest.approx(4.0, abs=0.1)


def test_windows_too_long_for_the_rhythm_leave_the_variance_of_active_stages_open():
    pipelines = loaded(4)
    fold(pipelines, [w for gpu in range(4) for w in row(gpu, [0.25] * 30, 1.0)])
    figures = closed(pipelines, 30.0)
    assert figures.variance is not None
    assert figures.variance.active_ratio is None
    assert figures.variance.active_ratio_at_least == pytest.approx(0.0, abs=1e-6)


def test_stages_known_by_different_means_are_not_compared():
    """One stage's share is measured, another's an upper bound: their difference is no skew."""
    pipelines = loaded(4)
    rows = [w for gpu in range(4) for w in row(gpu, [0.5 + 0.1 * (gpu == 3)] * 1500)]
    bound = [
        replace(w, waiting_ratio=None, method=Method.RESIDENCY) if w.gpu == 3 else w for w in rows
    ]
    fold(pipelines, bound)
    figures = closed(pipelines, 30.0)
    assert figures.skew_ratio is None
    assert figures.balance_ratio is None


def test_skew_of_stages_that_hardly_work_is_not_shown():
    pipelines = loaded(4)
    fold(pipelines, [w for gpu in range(4) for w in row(gpu, [0.01 * gpu] * 1500)])
    figures = closed(pipelines, 30.0)
    assert figures.skew_ratio is None
    assert figures.balance_ratio is None


def test_gauges_go_when_the_windows_stop():
    pipelines = loaded(2)
    fold(pipelines, [w for gpu in range(2) for w in row(gpu, [0.5] * 1000)])
    pipelines.advance(T0 + 21.0)
    (fresh,) = pipelines.figures(T0 + 21.0)
    assert fresh.occupancy_ratio == pytest.approx(0.5)
    pipelines.advance(T0 + 60.0)
    (stale,) = pipelines.figures(T0 + 60.0)
    assert stale.occupancy_ratio is None
    assert stale.bubble_ratio is None
    assert stale.skew_ratio is None
    assert working(stale, 0) == pytest.approx(10.0)


def test_the_timeline_has_each_second_once():
    pipelines = loaded(2)
    fold(pipelines, [w for gpu in range(2) for w in row(gpu, [0.5] * 250)])
    pipelines.close(T0 + 5.0)
    seconds = [second_figures(s) for s in pipelines.seconds(0) if s.second >= T0 + 2.0]
    assert [s.second - T0 for s in seconds] == [2.0, 3.0, 4.0]
    assert seconds[0].working == {0: pytest.approx(0.5), 1: pytest.approx(0.5)}
    assert seconds[0].in_flight_ratio == pytest.approx(1.0)


def test_a_cell_is_the_shortest_window_of_any_driver():
    assert 1 / CELLS_PER_SECOND == 0.02
