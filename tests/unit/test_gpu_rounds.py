"""What one GPU's trouble does to the others: nothing. Over the real pynvml and the fake driver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.records import (
    FatalSourceError,
    GpuIdentity,
    GpuProcess,
    Signal,
    SourceUnavailableError,
)
from tests.fake_nvml import CODES, functions
from tests.fake_nvml.rig import START, Rig, machine

OTHERS = (0, 1, 2, 4, 5, 6, 7)
MISMATCH = "LIB_RM_VERSION_MISMATCH"
OF_ONE_GPU = tuple(
    name
    for name in functions()
    if name.startswith(("nvmlDevice", "nvmlGpm"))
    and name
    not in {
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetPcieThroughput",
        "nvmlGpmSampleAlloc",
        "nvmlGpmSampleFree",
    }
)
AT_START = {
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceRegisterEvents",
}
"""Asked only at the start; a fault that begins later is not noticed."""
ONLY_WITHOUT_RING = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with machine(tmp_path) as rig:
        yield rig


def suffer(rig: Rig, function: str, code: str, *, from_start: bool) -> None:
    """Starts, lets GPU 3 answer that call with that code, and goes four rounds."""
    if function in ONLY_WITHOUT_RING:
        rig.fake.control.gpu[3].rings_supported = 0
    if from_start:
        rig.fake.fault(function, code, gpu=3)
    rig.start()
    rig.round()
    rig.rounds.tally.call(rig.driver.watch_xids, range(8))
    rig.fake.fault(function, code, gpu=3)
    rig.round(4)


@pytest.mark.parametrize(
    ("function", "from_start"),
    [(function, True) for function in OF_ONE_GPU]
    + [(function, False) for function in OF_ONE_GPU if function not in AT_START],
)
def test_any_error_of_a_call_on_one_gpu_leaves_the_other_seven_exact(
    function: str, from_start: bool, tmp_path: Path
) -> None:
    for code in CODES.keys() - {MISMATCH}:
        folder = tmp_path / code
        folder.mkdir()
        with machine(folder) as rig:
            suffer(rig, function, code, from_start=from_start)
            assert rig.fake.calls(function, gpu=3) > 0
            for gpu in OTHERS:
                rig.assert_exact(gpu)
                assert rig.states(gpu) == [(True, None)]
                assert len(rig.gauges(gpu)) == 3
                assert len(rig.windows(gpu)) == 4


@pytest.mark.parametrize("function", OF_ONE_GPU)
def test_a_replaced_driver_ends_the_process_with_a_remedy(function: str, rig: Rig) -> None:
    with pytest.raises(FatalSourceError, match="restart the exporter"):
        suffer(rig, function, MISMATCH, from_start=True)


@pytest.mark.parametrize("code", ["GPU_IS_LOST", "RESET_REQUIRED", "UNINITIALIZED", "UNKNOWN"])
def test_a_lost_gpu_goes_down_once_with_the_drivers_word_and_comes_back(
    code: str, rig: Rig
) -> None:
    rig.start()
    rig.round(3)
    rig.fake.lose(3, code)
    rig.round(4)
    assert rig.states(3) == [(True, None), (False, code)]
    rig.fake.lose(3, None)
    rig.round(6)
    assert rig.states(3) == [(True, None), (False, code), (True, None)]
    identities = [r for r in rig.records if isinstance(r, GpuIdentity) and r.gpu == 3]
    assert len(identities) == 2
    assert identities[0] == identities[1]
    for gpu in OTHERS:
        rig.assert_exact(gpu)


def test_a_loss_shorter_than_the_utilization_ring_loses_no_utilization_sample(rig: Rig) -> None:
    rig.start()
    rig.round(3)
    rig.fake.lose(3)
    rig.round(3)
    rig.fake.lose(3, None)
    rig.round(5)
    expected = rig.fake.ring(3, "utilization", round(START * 1e6), round(rig.now * 1e6))
    got = [round(at * 1e6) for at, _ in rig.samples(3, Signal.UTILIZATION)]
    assert got == [at for at, _ in expected]


def test_a_gpu_that_fails_one_call_for_good_does_not_flap(rig: Rig) -> None:
    rig.start()
    rig.round()
    rig.fake.fault("nvmlDeviceGetSamples", "UNKNOWN", gpu=3)
    rig.round(40)
    assert rig.states(3) == [(True, None), (False, "UNKNOWN")]


def test_a_gpu_whose_every_answer_is_an_unexpected_error_goes_down(rig: Rig) -> None:
    rig.start()
    rig.round()
    rig.fake.lose(3, "TIMEOUT")
    rig.round(4)
    assert rig.states(3) == [(True, None), (False, "TIMEOUT")]


def test_what_is_not_supported_is_asked_once(rig: Rig) -> None:
    card = rig.fake.control.gpu[0]
    card.rings_supported = card.gpm_supported = 0
    rig.fake.fault("nvmlDeviceGetTemperature", "NOT_SUPPORTED", gpu=0)
    rig.start()
    rig.round(20)
    assert rig.fake.calls("nvmlDeviceGetSamples", gpu=0) == 2
    assert rig.fake.calls("nvmlDeviceGetTemperature", gpu=0) == 1
    assert rig.fake.calls("nvmlGpmQueryDeviceSupport", gpu=0) == 1
    assert rig.fake.calls("nvmlGpmSampleGet", gpu=0) == 0
    errors = rig.rounds.tally.copy().errors
    assert errors["nvmlDeviceGetSamples", "NOT_SUPPORTED"] == 2
    assert errors["nvmlDeviceGetTemperature", "NOT_SUPPORTED"] == 1
    assert rig.gauges(0)[-1].temperature_celsius is None


def test_the_polled_gauges_are_read_only_where_there_is_no_ring(rig: Rig) -> None:
    rig.fake.control.gpu[0].rings_supported = 0
    rig.start()
    rig.round(2)
    assert rig.gauges(0)[-1].polled_utilization_ratio is not None
    assert rig.gauges(0)[-1].power_watts is not None
    assert rig.gauges(1)[-1].polled_utilization_ratio is None
    assert rig.fake.calls("nvmlDeviceGetUtilizationRates", gpu=1) == 0
    assert rig.fake.calls("nvmlDeviceGetPowerUsage", gpu=1) == 0


def test_costly_calls_are_rare_and_the_blocking_one_is_never_made(rig: Rig) -> None:
    rig.start()
    rig.round(120)
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption", gpu=0) == 2
    assert rig.fake.calls("nvmlDeviceGetFieldValues", gpu=0) == 12
    assert rig.fake.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 24 * 8
    assert rig.fake.calls("nvmlDeviceGetPcieThroughput") == 0
    # One call a round for power, one every second round for utilization, and once the size of each.
    assert rig.fake.calls("nvmlDeviceGetSamples", gpu=0) == 120 + 60 + 1 + 2


def test_energy_is_read_more_often_where_no_power_ring_carries_it_on(rig: Rig) -> None:
    rig.fake.control.gpu[0].rings_supported = 0
    rig.start()
    rig.round(120)
    assert rig.fake.calls("nvmlDeviceGetTotalEnergyConsumption", gpu=0) == 12


def test_gpus_take_turns_so_that_no_round_is_dearer_than_another(rig: Rig) -> None:
    rig.start()
    rig.round()
    called = [rig.fake.calls("nvmlDeviceGetSamples")]
    for _ in range(6):
        rig.round()
        called.append(rig.fake.calls("nvmlDeviceGetSamples"))
    assert {later - earlier for earlier, later in itertools.pairwise(called)} == {8 + 4}


def test_a_gpu_that_came_back_is_asked_for_all_at_once(rig: Rig) -> None:
    rig.start()
    rig.round(3)
    rig.fake.lose(3)
    rig.round(2)
    rig.fake.lose(3, None)
    while not rig.states(3)[-1][0]:
        rig.round()
    taken = [at for at, _ in rig.samples(3, Signal.UTILIZATION)]
    assert rig.now - taken[-1] < 0.2
    assert rig.gauges(3)[-1].read_at == rig.now


def test_graphics_activity_is_never_asked_for(rig: Rig) -> None:
    rig.start()
    rig.round(3)
    assert all(window.graphics_ratio is None for window in rig.windows(0))


def test_samples_from_before_the_start_do_not_count_but_teach_the_spacing(rig: Rig) -> None:
    rig.start()
    rig.round()
    for gpu in range(8):
        rig.assert_exact(gpu)
    spans = {r.signal: r.nominal_seconds for r in rig.records if hasattr(r, "nominal_seconds")}
    assert spans == {Signal.UTILIZATION: 0.2, Signal.POWER: 0.02}


def test_an_overrun_ring_gives_what_it_still_holds(rig: Rig) -> None:
    rig.start()
    rig.round(2)
    rig.pass_time(9.0)
    rig.round(2)
    power = [at for at, _ in rig.samples(0, Signal.POWER)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(power)]
    assert max(gaps) == pytest.approx(10.0 - 118 * 0.02, abs=1e-5)
    utilization = [at for at, _ in rig.samples(0, Signal.UTILIZATION)]
    assert len(utilization) == 13 * 5


def test_invalid_samples_are_dropped_and_counted(rig: Rig) -> None:
    rig.fake.control.gpu[0].corrupt_every = 10
    rig.start()
    rig.round(6)
    values = [value for _, value in rig.samples(0, Signal.UTILIZATION)]
    assert len(values) == 27
    assert max(values) <= 1.0
    assert max(value for _, value in rig.samples(0, Signal.POWER)) <= 600.0
    assert rig.rounds.tally.copy().errors["nvmlDeviceGetSamples", "INVALID_SAMPLE"] > 0


def test_gpm_windows_show_the_activity_once_the_lag_is_taken_off(rig: Rig) -> None:
    rig.start()
    rig.round(11)
    windows = rig.windows(0)
    assert len(windows) == 10
    for window in windows:
        busy = rig.fake.busy_seconds(0, window.started_at, window.ended_at)
        assert window.sm_ratio == pytest.approx(0.9 * busy, abs=0.05)
        assert window.dram_ratio == pytest.approx(0.6 * busy, abs=0.05)
        assert window.ended_at - window.started_at == pytest.approx(1.0)


def test_gpm_held_by_another_client_degrades_and_returns(rig: Rig) -> None:
    rig.start()
    rig.round(3)
    rig.fake.control.gpu[3].gpm_in_use = 1
    rig.round(60)
    asked = rig.fake.calls("nvmlGpmSampleGet", gpu=3)
    assert asked < 3 + 8  # with growing pauses
    assert rig.rounds.tally.copy().errors["nvmlGpmSampleGet", "IN_USE"] == asked - 3
    rig.fake.control.gpu[3].gpm_in_use = 0
    before = len(rig.windows(3))
    rig.round(70)
    assert len(rig.windows(3)) > before
    assert all(w.ended_at - w.started_at < 1.5 for w in rig.windows(3))
    assert len(rig.windows(2)) == 132
    rig.assert_exact(3)


def test_activity_that_is_no_number_is_unknown(rig: Rig) -> None:
    rig.fake.control.gpm_nan = 1
    rig.start()
    rig.round(3)
    assert rig.windows(0) == []


def test_an_activity_the_card_does_not_know_is_unknown_and_the_rest_is_told(rig: Rig) -> None:
    rig.fake.control.gpu[0].tensor = 0  # the fake answers NOT_SUPPORTED for it
    rig.start()
    rig.round(2)
    (window,) = rig.windows(0)
    assert window.tensor_ratio is None
    assert window.sm_ratio is not None


def test_one_byte_counter_that_fails_leaves_the_gauges(rig: Rig) -> None:
    rig.fake.control.gpu[0].pcie_code = CODES["NOT_SUPPORTED"]
    rig.start()
    rig.round(12)
    assert rig.gauges(0)[-1].pcie_transmit_bytes is None
    assert rig.gauges(0)[-1].temperature_celsius == 40.0
    assert rig.fake.calls("nvmlDeviceGetFieldValues", gpu=0) == 1
    assert (rig.gauges(1)[-1].pcie_transmit_bytes or 0) > 0


def test_a_gpu_lost_until_a_restart_of_the_library_comes_back_by_one(rig: Rig) -> None:
    rig.start()
    rig.round(2)
    rig.fake.lose_until_restart(3)
    rig.round(100)
    assert rig.states(3) == [(True, None), (False, "GPU_IS_LOST"), (True, None)]
    assert rig.fake.control.generation == 2
    for gpu in OTHERS:
        rig.assert_exact(gpu)
        assert rig.states(gpu) == [(True, None)]


def test_a_library_that_forgot_everything_is_started_again(rig: Rig) -> None:
    rig.start()
    rig.round(2)
    rig.driver.stop()
    rig.round(3)
    for gpu in range(8):
        assert rig.states(gpu) == [(True, None), (False, "UNINITIALIZED"), (True, None)]
        rig.assert_exact(gpu)


def test_a_driver_that_does_not_start_again_is_unavailable(rig: Rig) -> None:
    rig.start()
    rig.round()
    rig.driver.stop()
    rig.fake.fault("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
    rig.round()
    with pytest.raises(SourceUnavailableError, match="kernel driver is not loaded"):
        rig.round(2)


def test_after_a_gpu_vanished_the_others_keep_their_numbers(rig: Rig) -> None:
    rig.start()
    rig.round(2)
    rig.fake.lose(3)
    rig.round()
    rig.fake.control.gpu[3].absent = 1  # now the library counts seven and renumbers
    rig.round(100)
    assert rig.fake.control.generation >= 2
    assert rig.states(3) == [(True, None), (False, "GPU_IS_LOST")]
    for gpu in OTHERS:
        rig.assert_exact(gpu)
        assert rig.states(gpu) == [(True, None)]
    assert [r.temperature_celsius for r in rig.gauges(7)[-2:]] == [47.0, 47.0]


def test_a_gpu_lost_before_the_start_is_told_and_comes_later(rig: Rig) -> None:
    rig.fake.lose(3)
    rig.start()
    assert rig.states(3) == [(False, "GPU_IS_LOST")]
    rig.fake.lose(3, None)
    rig.round(3)
    assert rig.states(3) == [(False, "GPU_IS_LOST"), (True, None)]
    rig.assert_exact(3)


def test_no_gpu_is_unavailable(rig: Rig) -> None:
    rig.fake.control.gpu_count = 0
    with pytest.raises(SourceUnavailableError, match="lists none"):
        rig.start()


def test_persistence_mode_off_is_noted(rig: Rig) -> None:
    rig.start()
    assert not rig.rounds.persistence_mode_off
    rig.fake.control.gpu[5].persistence_mode = 0
    rig.rounds.stop()
    rig.start()
    assert rig.rounds.persistence_mode_off


def test_processes_are_told_with_title_and_parent_every_five_seconds(rig: Rig) -> None:
    rig.add_process(2, 4242, "sglang::scheduler_PP2_TP0", parent=4000)
    rig.add_process(2, 4243, "python3\0-m\0sglang.launch_server\0--api-key\0SECRET")
    rig.fake.control.gpu[5].pids[0] = 99999  # a process /proc does not show
    rig.start()
    rig.round(11)
    assert len(rig.processes()) == 3
    listed = rig.processes()[-1]
    assert listed.gpus == tuple(range(8))
    assert listed.processes == (
        GpuProcess(2, 4242, "sglang::scheduler_PP2_TP0", 1 << 30, 4000),
        GpuProcess(2, 4243, "python3", 1 << 30, 1),
        GpuProcess(5, 99999, None, 0, None),
    )
    assert "SECRET" not in repr(rig.records)


def test_a_gpu_that_is_down_says_nothing_about_its_processes(rig: Rig) -> None:
    rig.start()
    rig.fake.lose(3)
    rig.round(7)
    assert rig.processes()[-1].gpus == OTHERS


def test_every_call_is_counted_with_its_time(rig: Rig) -> None:
    rig.start()
    rig.round(3)
    health = rig.rounds.tally.copy()
    assert health.call_counts["nvmlDeviceGetSamples"] == 3 * 8 + 2 * 8
    assert health.call_counts["nvmlInitWithFlags"] == 1
    assert health.call_seconds.keys() == health.call_counts.keys()
    assert health.samples[Signal.UTILIZATION] == sum(
        len(rig.samples(gpu, Signal.UTILIZATION)) for gpu in range(8)
    )
    assert health.samples[Signal.GPM] == 2 * 8
    assert health.errors == {}
