"""A simulated scenario as a recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporter.simulator.log_text import API_KEY
from exporter.simulator.noise import PROMPT
from exporter.simulator.scenarios import SCENARIOS, STAGES
from tests.simulated_recording import write_recording


def recorded(scenario: str, tmp_path: Path, seconds: float = 20.0) -> tuple[list[dict], float]:  # type: ignore[type-arg]  # JSON
    path = tmp_path / f"{scenario}.jsonl"
    truth = write_recording(scenario, seconds, path)
    return [json.loads(line) for line in path.read_text().split("\n") if line], truth.occupancy


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_can_be_recorded_in_time_order(scenario: str, tmp_path: Path) -> None:
    lines, _ = recorded(scenario, tmp_path)
    ends = [line.get("end", line.get("t")) for line in lines]
    known = [end for end in ends if end is not None]
    assert known == sorted(known)
    assert {line["gpu"] for line in lines if line["type"] == "util"} == set(range(STAGES))


def test_recorded_activity_adds_up_to_the_truth(tmp_path: Path) -> None:
    lines, occupancy = recorded("thundering_herd", tmp_path, seconds=30.0)
    windows = [line for line in lines if line["type"] == "gpm"]
    dram = sum(line["dram"] * (line["end"] - line["start"]) for line in windows)
    seconds = sum(line["end"] - line["start"] for line in windows)
    # The first pass is a prefill, which reads less.
    assert dram / seconds / 0.57 == pytest.approx(occupancy, rel=0.05)


def test_a_recording_holds_neither_keys_nor_prompts(tmp_path: Path) -> None:
    write_recording("healthy", 20.0, tmp_path / "healthy.jsonl")
    text = (tmp_path / "healthy.jsonl").read_text()
    assert "Decode batch" in text
    assert API_KEY not in text
    assert PROMPT not in text


def test_a_recording_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_recording("uneven_split", 5.0, tmp_path / name, seed=3)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
