"""A real NCCL pipeline on two H200s, from the recording to shares and verdict.

tests/data/h200/nccl was made by bench/nccl_pipeline.py; the verdicts that are right were written
down in bench/nccl_scenarios.py before it ran.
"""

import json
from pathlib import Path

import pytest

from bench.nccl_said import Said, said
from bench.nccl_scenarios import effective, named
from bench.nccl_truth import Play
from bench.nccl_waiting import levels, seen
from exporter.diagnosis.findings import CONFIDENT, Verdict
from exporter.records import ActivityLevel, GpuLevels, Method

DATA = Path(__file__).parent / "data" / "h200" / "nccl"
TRUTH = json.loads((DATA / "truth.json").read_text(encoding="ascii"))
STAGES = 2
BOUNDS = {"all, levels": 0.05, "gpm, levels": 0.05, "power, levels": 0.08}
"""By what is looked at, with the levels given that the calibration showed."""
UPPER_BOUND = 0.05
"""How far a share that is called an upper bound may lie below the truth: the ring reads low."""
NOTHING_TO_TELL = ("idle_old_style",)
LEARNED = {("herd_long", 0), ("idle_old_style", 1)}
"""What is told wholly without levels: waits of two power samples that are the same in each turn,
and a wait that draws next to nothing."""


def level(values: dict[str, float]) -> ActivityLevel:
    return ActivityLevel(**values)


KNOWN = [
    GpuLevels(each["gpu"], level(each["idle"]), level(each["waiting"]), level(each["working"]))
    for each in TRUTH["levels"]
]


@pytest.fixture(name="scenario", scope="module", params=TRUTH["scenarios"])
def fixture_scenario(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="learned", scope="module")
def fixture_learned(scenario: str, tmp_path_factory: pytest.TempPathFactory) -> Said:
    return said(DATA / f"{scenario}.jsonl.gz", tmp_path_factory.mktemp(scenario), "all", ())


@pytest.fixture(name="way", scope="module", params=BOUNDS)
def fixture_way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="given", scope="module")
def fixture_given(scenario: str, way: str, tmp_path_factory: pytest.TempPathFactory) -> Said:
    folder = tmp_path_factory.mktemp(scenario)
    return said(DATA / f"{scenario}.jsonl.gz", folder, way, KNOWN)


def test_every_recording_has_its_truth() -> None:
    recorded = {path.name.removesuffix(".jsonl.gz") for path in DATA.glob("*.jsonl.gz")}
    assert recorded == {"probe", *TRUTH["scenarios"]}


def test_a_waiting_receive_fills_few_sms_and_reads_no_memory() -> None:
    play = Play("probe", STAGES, {name: tuple(span) for name, span in TRUTH["probe"].items()})
    resting = levels(seen(DATA / "probe.jsonl.gz", play))[1]
    assert resting.idle is not None
    assert resting.idle.watts == pytest.approx(124.6, abs=0.1)
    assert resting.waiting is not None
    assert resting.waiting.watts == pytest.approx(151.5, abs=0.1)
    assert resting.waiting.sm_ratio == pytest.approx(16 / 132, abs=0.001)
    assert resting.waiting.dram_ratio == pytest.approx(0.0, abs=0.0001)


def test_a_recording_as_it_is_gets_its_verdict_or_none(scenario: str, learned: Said) -> None:
    assert learned.diagnosis.verdict in (*named(scenario).expected, Verdict.CANNOT_TELL)


def test_a_share_is_true_or_called_an_upper_bound(scenario: str, learned: Said) -> None:
    found = TRUTH["scenarios"][scenario]
    for stage, true in enumerate(found["stages"]):
        shown = learned.stage(stage, tuple(found["seconds"]))
        assert shown is not None
        shares, methods, _ = shown
        told = methods.get(Method.RESIDENCY, 0.0) < 0.1
        assert told == ((scenario, stage) in LEARNED)
        assert shares.working >= true["working"] - UPPER_BOUND
        if told:
            assert shares.working == pytest.approx(true["working"], abs=UPPER_BOUND)
            assert shares.waiting == pytest.approx(true["waiting"], abs=UPPER_BOUND)


def test_with_levels_given_the_verdict_is_sure(scenario: str, given: Said) -> None:
    diagnosis = given.diagnosis
    assert diagnosis.verdict in named(scenario).expected
    assert (diagnosis.confidence >= CONFIDENT) == (scenario not in NOTHING_TO_TELL)
    assert diagnosis.figures.slots.effective == effective(named(scenario).sizes(STAGES))


def test_with_levels_given_shares_are_true(scenario: str, way: str, given: Said) -> None:
    found, bound = TRUTH["scenarios"][scenario], BOUNDS[way]
    method = Method.POWER if way.startswith("power") else Method.GPM
    for stage, true in enumerate(found["stages"]):
        shown = given.stage(stage, tuple(found["seconds"]))
        assert shown is not None
        shares, methods, span = shown
        assert span == tuple(found["seconds"])
        assert methods == {method: pytest.approx(1.0)}
        assert shares.working == pytest.approx(true["working"], abs=bound)
        assert shares.waiting == pytest.approx(true["waiting"], abs=bound)
        idle = 1.0 - true["working"] - true["waiting"]
        assert shares.idle == pytest.approx(idle, abs=bound)
