"""A scenario as a recording of format v1, made as fast as it can be worked out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from exporter.gpu_driver import DriverError
from exporter.recordings.writer import RecordingWriter
from exporter.records import (
    ActivityLevel,
    FactValue,
    GpmWindow,
    GpuGauges,
    GpuLevels,
    LoadEvent,
    LoadPhase,
    LogLine,
    Record,
    RingSamples,
    ServerFacts,
    Signal,
    StageGpu,
    StageMap,
)
from exporter.simulator.activity import POWER_SECONDS, UTILIZATION_SECONDS
from exporter.simulator.card import SimulatedBuffer, SimulatedDriver
from exporter.simulator.log_text import VERSION
from exporter.simulator.processes import SCHEDULERS
from exporter.simulator.scenarios import SCENARIOS, STAGES, ClosedLoop, Scenario
from exporter.simulator.simulation import Simulation, Truth

SERVER = "sglang"
_STEP_SECONDS = 1.0
_QUIET_SECONDS = 3.0
_NOMINAL_SECONDS = {Signal.UTILIZATION: UTILIZATION_SECONDS, Signal.POWER: POWER_SECONDS}


def write_recording(
    scenario: str | Scenario,
    seconds: float,
    path: Path,
    *,
    seed: int = 0,
    started_at: float = 1_796_032_800.0,
    levels: bool = False,
) -> Truth:
    """Writes the first `seconds` of a scenario to a file and returns what really happened in them.

    Args:
        scenario: Its name, or one made up.
        levels: Whether the cards' levels stand in it, as a recorder would have learned them.

    Raises:
        KeyError: There is no such scenario.
        OSError: The file cannot be written.
    """
    simulation = Simulation(
        SCENARIOS[scenario] if isinstance(scenario, str) else scenario,
        started_at=started_at,
        seed=seed,
        forged=False,
        quiet_seconds=_QUIET_SECONDS,
        history_seconds=seconds + 10.0,
    )
    sampler = _Sampler(simulation.driver)
    concurrency = concurrency_of(simulation.scenario)
    simulation.advance(started_at + 0.001)  # what a start prints is no part of the recording
    note = simulation.scenario.name
    with RecordingWriter(path, note=note, host="demo", clock=lambda: simulation.now) as writer:
        for record in _introduction(simulation):
            writer.write(record)
        for record in _levels(simulation) if levels else ():
            writer.write(record)
        writer.write(LoadEvent(started_at, LoadPhase.START, concurrency))
        while (left := started_at + seconds - simulation.now) > 0:
            for entry in simulation.advance(simulation.now + min(_STEP_SECONDS, left)):
                process = entry.process
                if process in SCHEDULERS:
                    line = LogLine(SERVER, entry.at, entry.message, process.pid, process.title)
                    writer.write_log(line, entry.message)
            for record in sampler.sample(simulation.now):
                writer.write(record)
        truth = simulation.truth(started_at, simulation.now)
        tokens = round(truth.generated_tokens_per_second * seconds)
        end = LoadEvent(simulation.now, LoadPhase.END, concurrency, tokens, seconds, errors=0)
        writer.write(end)
    return truth


class _Sampler:
    """Drains the rings and reads GPM as the exporter does; a card that is lost says nothing."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        self._newest_us = {(gpu, signal): 0 for gpu in range(STAGES) for signal in _NOMINAL_SECONDS}
        self._earlier: dict[int, SimulatedBuffer] = {}

    def sample(self, now: float) -> Iterator[Record]:
        for gpu in range(STAGES):
            with contextlib.suppress(DriverError):
                yield _gauges(self._driver, gpu, now)
            for signal in _NOMINAL_SECONDS:
                try:
                    yield from self._ring(gpu, signal)
                except DriverError:
                    continue
            try:
                yield from self._gpm(gpu)
            except DriverError:
                self._earlier.pop(gpu, None)

    def _ring(self, gpu: int, signal: Signal) -> Iterator[Record]:
        samples = self._driver.ring(gpu, signal, self._newest_us[gpu, signal]).samples
        if samples:
            self._newest_us[gpu, signal] = samples[-1][0]
            taken = tuple((at_us / 1_000_000, value) for at_us, value in samples)
            yield RingSamples(gpu, signal, _NOMINAL_SECONDS[signal], taken)

    def _gpm(self, gpu: int) -> Iterator[Record]:
        later = SimulatedBuffer()
        self._driver.gpm_sample(gpu, later)
        earlier, self._earlier[gpu] = self._earlier.get(gpu), later
        if earlier is None or earlier.taken_at is None or later.taken_at is None:
            return
        metrics = self._driver.gpm_metrics(gpu, earlier, later)
        if metrics.sm_ratio is not None:
            yield GpmWindow(
                gpu,
                earlier.taken_at,
                later.taken_at,
                metrics.sm_ratio,
                metrics.occupancy_ratio,
                metrics.dram_ratio,
                metrics.tensor_ratio,
            )


def _gauges(driver: SimulatedDriver, gpu: int, now: float) -> GpuGauges:
    return GpuGauges(
        gpu,
        now,
        temperature_celsius=driver.temperature_celsius(gpu),
        sm_clock_hertz=driver.sm_clock_hertz(gpu),
        throttle_reasons=driver.throttle_reasons(gpu),
    )


def _introduction(simulation: Simulation) -> Iterator[Record]:
    """What stands at the head of a recording: the server, its stages, its cards."""
    at, scenario, driver = simulation.started_at, simulation.scenario, simulation.driver
    facts: dict[str, FactValue] = {
        "pp_size": STAGES,
        "tp_size": 1,
        "dp_size": 1,
        "pp_async_batch_depth": scenario.pp_async_batch_depth,
        "decode_log_interval": scenario.decode_log_interval,
        "max_running_requests": scenario.max_running_requests,
        "disable_cuda_graph": not scenario.graph,
        "version": VERSION,
    }
    yield ServerFacts(SERVER, at, facts, origin="recording")
    identities = [driver.identity(gpu) for gpu in range(STAGES)]
    stages = tuple(
        StageGpu(0, each.gpu, 0, each.gpu, each.uuid, SCHEDULERS[each.gpu].pid)
        for each in identities
    )
    yield StageMap(SERVER, at, stages, origin="recording")
    yield from identities


def _levels(simulation: Simulation) -> Iterator[Record]:
    for gpu, card in enumerate(simulation._cards):
        seen = card.levels
        yield GpuLevels(
            gpu,
            ActivityLevel(seen.idle_watts, 0.0, 0.0),
            ActivityLevel(seen.waiting_watts, seen.waiting_sm, 0.0),
            ActivityLevel(seen.decode_watts, seen.decode_sm, seen.decode_dram),
        )


def concurrency_of(scenario: Scenario) -> int:
    return sum(
        load.concurrency if isinstance(load, ClosedLoop) else sum(load.groups)
        for load in scenario.loads
    )
