"""The simulated pipeline and its cards: what they show is what happened."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from exporter.gpu_driver import DriverError
from exporter.records import Signal
from exporter.simulator.scenarios import SCENARIOS, STAGES
from exporter.simulator.server_log import LogEntry
from exporter.simulator.simulation import Simulation, Truth

STARTED_AT = 1_796_032_800.0
SECONDS = 60
US = 1_000_000
VERDICTS = {
    "healthy",
    "thundering_herd",
    "uneven_split",
    "over_split",
    "stage_imbalance",
    "global_stall",
    "host_bound",
    "prefill_interference",
    "client_limited",
    "kv_limited",
    "graph_off",
    "transfer_bound",
    "gpu_fault",
    "cannot_tell",
}


class Run(NamedTuple):
    """A minute of one scenario, and the truth of its last 40 seconds."""

    simulation: Simulation
    entries: list[LogEntry]
    truth: Truth


def play(simulation: Simulation, seconds: float, step: float = 0.08) -> list[LogEntry]:
    end = simulation.started_at + seconds
    entries: list[LogEntry] = []
    while simulation.now < end:
        entries += simulation.advance(min(simulation.now + step, end))
    return entries


@cache
def minute_of(scenario: str) -> Run:
    simulation = Simulation(SCENARIOS[scenario], started_at=STARTED_AT)
    entries = play(simulation, SECONDS)
    return Run(simulation, entries, simulation.truth(STARTED_AT + 20, STARTED_AT + SECONDS))


def messages(run: Run, words: str, pp_rank: int = 0) -> list[str]:
    return [entry.message for entry in run.entries if f" PP{pp_rank}] {words}" in entry.message]


def running_reqs(run: Run, pp_rank: int = 0) -> list[int]:
    return [
        int(message.split("#running-req: ")[1].split(",")[0])
        for message in messages(run, "Decode batch", pp_rank)
    ]


def effective_microbatches(truth: Truth) -> float:
    sizes = truth.slot_sizes
    return sum(sizes) ** 2 / sum(size**2 for size in sizes)


def working(run: Run) -> list[float]:
    return [stage.working for stage in run.truth.stages]


def waiting(run: Run) -> list[float]:
    return [stage.waiting for stage in run.truth.stages]


# --- scenarios ---------------------------------------------------------------------------------


def test_there_is_a_scenario_for_each_verdict_and_three_more() -> None:
    assert set(SCENARIOS) == VERDICTS | {"idle", "aliased", "gpu_lost"}
    assert all(scenario.description.endswith(".") for scenario in SCENARIOS.values())


def _healthy(run: Run) -> bool:
    return min(working(run)) > 0.9 and 800 < run.truth.generated_tokens_per_second < 950


def _herd(run: Run) -> bool:
    return (
        all(abs(share - 0.125) < 0.02 for share in working(run))
        and effective_microbatches(run.truth) < 1.5
        and 55 < run.truth.generated_tokens_per_second < 75
    )


def _uneven(run: Run) -> bool:
    return 2 < effective_microbatches(run.truth) < 6 and run.truth.occupancy < 0.6


def _over_split(run: Run) -> bool:
    return min(working(run)) > 0.95 and run.truth.slot_sizes == (2,) * 16


def _imbalance(run: Run) -> bool:
    *others, last = working(run)
    return last > 0.98 and all(0.6 < share < 0.7 for share in others)


def _stall(run: Run) -> bool:
    return all(stage.idle > 0.4 and stage.waiting < 0.05 for stage in run.truth.stages)


def _prefill_interference(run: Run) -> bool:
    full_chunks = [line for line in messages(run, "Prefill batch") if "#new-token: 8192" in line]
    return run.truth.occupancy < 0.6 and len(full_chunks) > 10


def _client_limited(run: Run) -> bool:
    return (
        sorted(run.truth.slot_sizes, reverse=True)[:4] == [1, 1, 1, 1]
        and sum(run.truth.slot_sizes) == 4
    )


def _kv_limited(run: Run) -> bool:
    queued = [line for line in messages(run, "Decode batch") if "#queue-req: 0" not in line]
    return len(messages(run, "KV cache pool is full")) > 5 and len(queued) > 20


def _graph_off(run: Run) -> bool:
    lines = messages(run, "Decode batch")
    printed = [float(line.split("fwd occupancy: ")[1].split("%")[0]) for line in lines[1:]]
    return (
        all("cuda graph: False" in line for line in lines)
        and run.truth.occupancy < 0.25
        and min(printed) > 80
    )


def _transfer_bound(run: Run) -> bool:
    return min(waiting(run)) > 0.3 and max(working(run)) < 0.5


def _gpu_fault(run: Run) -> bool:
    driver = run.simulation.driver
    return (
        max(range(STAGES), key=lambda stage: working(run)[stage]) == 5
        and driver.throttle_reasons(5) == ("sw_thermal_slowdown",)
        and driver.throttle_reasons(4) == ()
        and driver.sm_clock_hertz(5) < 0.7 * driver.sm_clock_hertz(4)
        and driver.temperature_celsius(5) > 85
    )


def _cannot_tell(run: Run) -> bool:
    return (
        not messages(run, "Decode batch")
        and not run.simulation.driver.gpm_supported(0)
        and min(working(run)) > 0.9
    )


def _idle(run: Run) -> bool:
    return run.truth.occupancy == 0 and all(entry.at <= STARTED_AT for entry in run.entries)


def _aliased(run: Run) -> bool:
    return len(set(running_reqs(run)[1:])) == 1 and len(set(run.truth.slot_sizes)) > 3


def _gpu_lost(run: Run) -> bool:
    return run.simulation.driver.wait_for_xid(0.0) == (3, 79)


SIGNS: dict[str, Callable[[Run], bool]] = {
    "healthy": _healthy,
    "thundering_herd": _herd,
    "uneven_split": _uneven,
    "over_split": _over_split,
    "stage_imbalance": _imbalance,
    "global_stall": _stall,
    "host_bound": _stall,
    "prefill_interference": _prefill_interference,
    "client_limited": _client_limited,
    "kv_limited": _kv_limited,
    "graph_off": _graph_off,
    "transfer_bound": _transfer_bound,
    "gpu_fault": _gpu_fault,
    "cannot_tell": _cannot_tell,
    "idle": _idle,
    "aliased": _aliased,
    "gpu_lost": _gpu_lost,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_shows_its_sign(scenario: str) -> None:
    run = minute_of(scenario)
    assert SIGNS[scenario](run), run.truth


def test_in_the_aliased_scenario_the_first_stage_and_the_last_print_the_same_slot() -> None:
    run = minute_of("aliased")
    assert running_reqs(run, 0) == running_reqs(run, STAGES - 1)


def test_an_interval_coprime_to_the_slots_shows_them_all() -> None:
    run = minute_of("uneven_split")
    assert set(running_reqs(run)) == set(run.truth.slot_sizes)


# --- time --------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_world_whatever_the_steps() -> None:
    coarse = Simulation(SCENARIOS["healthy"], started_at=STARTED_AT, seed=7)
    fine = Simulation(SCENARIOS["healthy"], started_at=STARTED_AT, seed=7)
    lines = [
        [(entry.at, entry.process, entry.message) for entry in play(world, 5.0, step)]
        for world, step in ((coarse, 0.5), (fine, 0.05))
    ]
    assert lines[0] == lines[1]
    rings = [world.driver.ring(2, Signal.UTILIZATION, 0) for world in (coarse, fine)]
    assert rings[0] == rings[1]


def test_another_seed_gives_another_world() -> None:
    one, other = (
        Simulation(SCENARIOS["healthy"], started_at=STARTED_AT, seed=seed) for seed in (1, 2)
    )
    assert play(one, 3.0) != play(other, 3.0)


def test_nothing_is_shown_before_its_time() -> None:
    simulation = Simulation(SCENARIOS["prefill_interference"], started_at=STARTED_AT)
    for _ in range(100):
        entries = simulation.advance(simulation.now + 0.1)
        assert all(entry.at < simulation.now for entry in entries)
        for signal in (Signal.POWER, Signal.UTILIZATION):
            samples = simulation.driver.ring(STAGES - 1, signal, 0).samples
            assert all(at_us <= simulation.now * US for at_us, _ in samples)


def test_a_sleeping_machine_is_a_standstill_without_samples() -> None:
    simulation = Simulation(SCENARIOS["healthy"], started_at=STARTED_AT)
    play(simulation, 2.0)
    simulation.advance(STARTED_AT + 3602.0)
    play(simulation, 3612.0)
    truth = simulation.truth(STARTED_AT + 3604.0, STARTED_AT + 3611.0)
    assert truth.occupancy > 0.9
    assert simulation.truth(STARTED_AT + 3.0, STARTED_AT + 3600.0).occupancy < 0.01
    for signal in (Signal.POWER, Signal.UTILIZATION):
        samples = simulation.driver.ring(5, signal, 0).samples
        slept = range(int((STARTED_AT + 2.5) * US), int((STARTED_AT + 3602.0) * US))
        assert not any(at_us in slept for at_us, _ in samples)


def test_a_clock_set_back_stops_the_world() -> None:
    simulation = Simulation(SCENARIOS["healthy"], started_at=STARTED_AT)
    play(simulation, 2.0)
    assert simulation.advance(STARTED_AT + 1.0) == []
    assert simulation.now == STARTED_AT + 2.0


# --- cards -------------------------------------------------------------------------------------


def test_the_rings_hold_as_many_samples_as_the_real_ones() -> None:
    driver = minute_of("healthy").simulation.driver
    assert len(driver.ring(0, Signal.UTILIZATION, 0).samples) == 71
    assert len(driver.ring(0, Signal.POWER, 0).samples) == 119


@pytest.mark.parametrize("scenario", ["healthy", "thundering_herd", "host_bound"])
def test_the_utilization_ring_integrates_to_the_true_resident_time(scenario: str) -> None:
    simulation = minute_of(scenario).simulation
    for gpu in range(STAGES):
        samples = simulation.driver.ring(gpu, Signal.UTILIZATION, 0).samples
        start, end = samples[0][0] / US, samples[-1][0] / US
        truth = simulation.truth(start, end).stages[gpu]
        measured = sum(share for _, share in samples[1:]) * 0.2 / (end - start)
        assert measured == pytest.approx(truth.working + truth.waiting, abs=0.01)


def test_the_power_ring_integrates_to_the_energy_counter() -> None:
    simulation = Simulation(SCENARIOS["healthy"], started_at=STARTED_AT)
    play(simulation, 5.0)
    before = simulation.driver.energy_joules(4)
    newest_us = simulation.driver.ring(4, Signal.POWER, 0).samples[-1][0]
    play(simulation, 7.0)
    joules = 0.0
    for at_us, watts in simulation.driver.ring(4, Signal.POWER, newest_us).samples:
        joules += watts * (at_us - newest_us) / US
        newest_us = at_us
    # The counter moves every 0.1 s.
    assert simulation.driver.energy_joules(4) - before == pytest.approx(joules, rel=0.05)


def test_a_ring_gives_only_what_is_newer_than_asked_for() -> None:
    driver = minute_of("healthy").simulation.driver
    samples = driver.ring(1, Signal.POWER, 0).samples
    assert driver.ring(1, Signal.POWER, samples[-4][0]).samples == samples[-3:]


def test_each_card_samples_at_its_own_phase() -> None:
    driver = minute_of("healthy").simulation.driver
    newest = {driver.ring(gpu, Signal.UTILIZATION, 0).samples[-1][0] for gpu in range(STAGES)}
    assert len(newest) == STAGES


def test_a_waiting_stage_is_resident_at_little_power() -> None:
    driver = minute_of("stage_imbalance").simulation.driver
    waiting_stage = [share for _, share in driver.ring(0, Signal.UTILIZATION, 0).samples]
    assert min(waiting_stage) > 0.95
    assert driver.power_watts(0) < 0.9 * driver.power_watts(STAGES - 1)


def test_gpm_between_two_samples_is_the_true_activity() -> None:
    simulation = Simulation(SCENARIOS["thundering_herd"], started_at=STARTED_AT)
    play(simulation, 2.0)
    driver = simulation.driver
    earlier, later = driver.gpm_buffer(), driver.gpm_buffer()
    driver.gpm_sample(6, earlier)
    play(simulation, 12.0)
    driver.gpm_sample(6, later)
    metrics = driver.gpm_metrics(6, earlier, later)
    truth = simulation.truth(STARTED_AT + 1.9, STARTED_AT + 11.9).stages[6]
    assert metrics.dram_ratio == pytest.approx(0.57 * truth.working, rel=0.02)


def test_gpm_knows_nothing_between_two_reads_of_the_same_grid_point() -> None:
    driver = minute_of("healthy").simulation.driver
    earlier, later = driver.gpm_buffer(), driver.gpm_buffer()
    driver.gpm_sample(0, earlier)
    driver.gpm_sample(0, later)
    assert driver.gpm_metrics(0, earlier, later).sm_ratio is None


def test_a_lost_card_is_lost_alone_and_comes_back() -> None:
    simulation = Simulation(SCENARIOS["gpu_lost"], started_at=STARTED_AT)
    driver = simulation.driver
    play(simulation, 19.0)
    assert driver.identity(3).gpu == 3
    assert driver.wait_for_xid(0.0) is None
    play(simulation, 25.0)
    for ask in (driver.identity, driver.power_watts, driver.memory_bytes, driver.processes):
        with pytest.raises(DriverError) as refused:
            ask(3)
        assert refused.value.code == "GPU_IS_LOST"
        ask(2)
    assert driver.wait_for_xid(0.0) == (3, 79)
    assert driver.wait_for_xid(0.0) is None
    play(simulation, 41.0)
    assert driver.identity(3).gpu == 3
    lost = range(int((STARTED_AT + 20.0) * US), int((STARTED_AT + 40.0) * US))
    samples = driver.ring(3, Signal.UTILIZATION, 0).samples
    assert samples
    assert not any(at_us in lost for at_us, _ in samples)


def test_pcie_counters_move_with_the_traffic_between_neighbors() -> None:
    simulation = Simulation(SCENARIOS["healthy"], started_at=STARTED_AT)
    play(simulation, 1.0)
    before = [simulation.driver.pcie_bytes(gpu) for gpu in range(STAGES)]
    play(simulation, 2.0)
    after = [simulation.driver.pcie_bytes(gpu) for gpu in range(STAGES)]
    moved = [
        (later[0] - earlier[0], later[1] - earlier[1])  # type: ignore[operator]  # they are known
        for earlier, later in zip(before, after, strict=True)
    ]
    assert moved[0][1] == 0
    assert moved[-1][0] == 0
    assert all(sent > 1_000_000 for sent, _ in moved[:-1])
