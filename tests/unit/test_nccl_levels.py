"""Levels with the links awake, from a calibration whose truth is known."""

from pathlib import Path

import pytest

from bench.nccl_levels import awake
from bench.nccl_truth import Play, StageTruth
from exporter.recordings.writer import RecordingWriter
from exporter.records import ActivityLevel, GpmWindow, GpuLevels, RingSamples, Signal

T0 = 1_000.0
TURN = 0.14
"""Seconds: half of it work, half of it a wait."""
RESTING = GpuLevels(
    0,
    ActivityLevel(100.0, 0.0, 0.0),
    ActivityLevel(125.0, 0.12, 0.0),
    ActivityLevel(400.0, 0.6, 0.5),
)


def watts(at: float) -> float:
    """A sample of the 20 ms before, of 430 W at work and 160 W in a wait."""
    phase = (at - T0) % TURN
    return 430.0 if 0.02 <= phase <= TURN / 2 else 160.0 if phase >= TURN / 2 + 0.02 else 300.0


@pytest.fixture(name="recording")
def fixture_recording(tmp_path: Path) -> Path:
    path = tmp_path / "levels.jsonl"
    with RecordingWriter(path) as writer:
        for second in range(10):
            samples = tuple((at := T0 + second + n / 50, watts(at)) for n in range(1, 51))
            writer.write(RingSamples(0, Signal.POWER, 0.02, samples))
            start = T0 + second
            writer.write(GpmWindow(0, start, start + 1, sm_ratio=0.33, dram_ratio=0.25))
    return path


def play_and_truth() -> tuple[Play, StageTruth]:
    turns = [T0 + n * TURN for n in range(71)]
    works = [(at, at + TURN / 2) for at in turns]
    waits = [(at + TURN / 2, at + TURN) for at in turns]
    play = Play("levels", 1, {"main": (T0 + 0.5, T0 + 9.5)})
    return play, StageTruth("levels", 0, works, waits)


def test_pure_samples_and_what_is_left_of_windows_are_the_levels(recording: Path) -> None:
    play, truth = play_and_truth()
    (found,) = awake([RESTING], recording, play, {("levels", 0): truth})
    assert found.working is not None
    assert found.working.watts == pytest.approx(430.0)
    assert (found.working.sm_ratio, found.working.dram_ratio) == (0.6, 0.5)
    assert found.waiting is not None
    assert found.waiting.watts == pytest.approx(160.0)
    assert found.waiting.sm_ratio == pytest.approx(0.06, abs=0.02)
    assert found.waiting.dram_ratio == pytest.approx(0.0, abs=0.02)
    assert found.idle == RESTING.idle


def test_a_stage_without_truth_keeps_the_levels_of_the_probe(recording: Path) -> None:
    play, _ = play_and_truth()
    assert awake([RESTING], recording, play, {}) == [RESTING]
