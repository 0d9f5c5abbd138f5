"""Recordings of known truth, from the file to the verdict."""

import json
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.diagnose.outcome import diagnose_recording
from exporter.diagnosis.findings import CONFIDENT, Verdict
from exporter.diagnosis.slot_hypotheses import herd_bound
from exporter.diagnosis.verdict import Diagnosis
from exporter.simulator.scenarios import SCENARIOS, Scenario
from tests.random_servers import CLASSES, is_right, server
from tests.recording_ways import WAYS, written
from tests.simulated_recording import write_recording

DATA = Path(__file__).parent / "data"
SHARED = ("healthy", "thundering_herd", "stage_imbalance")
SLICE = {
    "everything": ("everything", 1),
    "residency": ("residency alone", 3),
}


def is_confidently_wrong(diagnosis: Diagnosis, scenario: Scenario) -> bool:
    if diagnosis.verdict is Verdict.CANNOT_TELL:
        return False
    return diagnosis.confidence >= CONFIDENT and not is_right(diagnosis, scenario)


@pytest.mark.parametrize("truth", SHARED)
def test_a_shared_recording_gets_its_verdict(truth: str) -> None:
    diagnosis = diagnose_recording(DATA / "recordings" / f"{truth}.jsonl.gz").diagnosis
    assert diagnosis.verdict == truth
    assert diagnosis.confidence >= CONFIDENT


def test_a_real_server_without_graphs_is_told_so() -> None:
    diagnosis = diagnose_recording(DATA / "h200" / "sglang-graph-off.jsonl.gz").diagnosis
    assert diagnosis.verdict is Verdict.GRAPH_OFF
    assert diagnosis.confidence >= CONFIDENT
    assert Verdict.HOST_BOUND in diagnosis.also


def test_a_real_server_with_graphs_has_no_fault_but_its_compile_stall() -> None:
    diagnosis = diagnose_recording(DATA / "h200" / "sglang-graphs.jsonl.gz").diagnosis
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.also == (Verdict.GLOBAL_STALL,)
    outside = diagnosis.figures.stopped_outside_seconds
    assert outside is not None
    assert outside == pytest.approx(11.0, abs=1.0)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_demo_scenario_is_named_or_left_open(scenario: str, tmp_path: Path) -> None:
    path = written(SCENARIOS[scenario], tmp_path, "no levels", seconds=60.0, seed=3)
    diagnosis = diagnose_recording(path).diagnosis
    left_open = diagnosis.verdict is Verdict.CANNOT_TELL and bool(diagnosis.missing)
    assert left_open or is_right(diagnosis, SCENARIOS[scenario])


def test_a_card_held_down_by_heat_is_named_offline_too(tmp_path: Path) -> None:
    path = written(SCENARIOS["gpu_fault"], tmp_path, "no levels", seconds=60.0, seed=3)
    diagnosis = diagnose_recording(path).diagnosis
    assert diagnosis.verdict is Verdict.GPU_FAULT
    assert diagnosis.confidence >= CONFIDENT
    assert diagnosis.evidence[0].quantity == "throttled_ratio"


@pytest.mark.parametrize("part", SLICE)
@pytest.mark.parametrize("truth", CLASSES)
def test_a_random_server_is_never_confidently_misjudged(
    truth: str, part: str, tmp_path: Path
) -> None:
    way, seed = SLICE[part]
    scenario = server(truth, seed)
    diagnosis = diagnose_recording(written(scenario, tmp_path, way, seed=seed)).diagnosis
    assert not is_confidently_wrong(diagnosis, scenario), diagnosis.verdict
    if way == "everything":
        assert is_right(diagnosis, scenario)


@pytest.mark.parametrize("seed", [1, 104, 200])
@pytest.mark.parametrize("truth", ["thundering_herd", "uneven_split"])
def test_a_random_split_is_the_one_that_was_drawn(truth: str, seed: int, tmp_path: Path) -> None:
    """Seed 104 once spilled: its burst was longer than a prefill chunk."""
    path = tmp_path / "drawn.jsonl"
    sizes = write_recording(server(truth, seed), 10.0, path, seed=seed).slot_sizes
    effective = sum(sizes) ** 2 / sum(size * size for size in sizes)
    assert (effective <= herd_bound(len(sizes))) == (truth == "thundering_herd")


def test_every_way_of_looking_is_known() -> None:
    assert {way for way, _ in SLICE.values()} <= WAYS.keys()


@pytest.mark.parametrize(
    ("recording", "code"),
    [("recordings/healthy", 0), ("recordings/thundering_herd", 1), ("h200/sglang-graphs", 0)],
)
def test_the_verdict_is_the_exit_code(
    recording: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = DATA / f"{recording}.jsonl.gz"
    assert main(["diagnose", "--recording", str(path)]) == code
    text = capsys.readouterr().out
    assert max(len(line) for line in text.split("\n")) <= 80
    assert "\x1b" not in text, "colors are for terminals"


def test_what_cannot_be_told_exits_with_2_and_says_what_would_show_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(SCENARIOS["cannot_tell"], tmp_path, "no levels", seed=3)
    assert main(["diagnose", "--recording", str(path)]) == 2
    assert "--log-level info" in capsys.readouterr().out


def test_json_is_exactly_one_object_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "recordings" / "stage_imbalance.jsonl.gz"
    assert main(["diagnose", "--recording", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    contract = {"verdict", "confidence", "evidence", "also", "gain", "advice", "figures"}
    assert contract <= found.keys()
    assert found["verdict"] == "stage_imbalance"
    assert {"quantity", "value", "expected", "source"} <= found["evidence"][0].keys()
    assert {"ratio", "assumes"} == found["gain"].keys()
    assert found["gain"]["ratio"] == pytest.approx(1.45, abs=0.05)
    assert any("SGLANG_PP_LAYER_PARTITION" in each for each in found["advice"])


def test_a_file_that_is_no_recording_exits_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a recording\n")
    assert main(["diagnose", "--recording", str(path), "--json"]) == 3
    said = capsys.readouterr()
    assert str(path) in said.err
    assert "verdict" not in json.loads(said.out), "one object at any exit; an error has no verdict"
