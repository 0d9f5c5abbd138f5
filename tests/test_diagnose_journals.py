"""Journals of real servers on a CPU: what the log alone says when the load is known."""

import json

import pytest

from exporter.diagnose.outcome import diagnose_recording
from exporter.diagnosis.findings import CONFIDENT, Verdict
from exporter.diagnosis.measure import measure
from exporter.diagnosis.verdict import Diagnosis, diagnose
from exporter.diagnosis.watch import Watch
from exporter.ingest import Ingest
from exporter.records import LoadEvent, LoadPhase, LogLine, Record
from exporter.stage_map import StageMapper
from tests.journal_export import DATA, real_journal

SERVER = "sglang"


def journal_records(name: str) -> list[tuple[float, Record]]:
    """The lines of a journal and the loads that its clients drove, in time order."""
    truth = json.loads((DATA / "sglang_journal" / f"{name}.truth.json").read_text())
    found: list[tuple[float, Record]] = []
    for phase in truth["phases"]:
        for at, edge in (("t_start", LoadPhase.START), ("t_end", LoadPhase.END)):
            found.append((phase[at], LoadEvent(phase[at], edge, phase["concurrency"])))
    for entry in real_journal(name):
        at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
        message = entry.get("MESSAGE", b"").decode(errors="replace")
        pid = int(entry["_PID"]) if "_PID" in entry else None
        title = entry["_CMDLINE"].decode() if "_CMDLINE" in entry else None
        found.append((at, LogLine(SERVER, at, message, pid, title)))
    return sorted(found, key=lambda each: each[0])


def recorded(name: str) -> Diagnosis:
    return diagnose_recording(DATA / "sglang_journal" / f"{name}.jsonl.gz").diagnosis


def diagnosis_of(name: str) -> Diagnosis:
    watch, now = Watch(), [0.0]
    ingest = Ingest(
        (), mapper=StageMapper(()), clock=lambda: now[0], tap=lambda record, _: watch.fold(record)
    )
    for now[0], record in journal_records(name):
        ingest.handle(record)
    ingest.finish()
    return diagnose(measure(watch, (SERVER, 0)))


def test_a_burst_that_went_into_few_slots_is_a_bad_split() -> None:
    diagnosis = diagnosis_of("pp4_burst_i7_iters")
    assert diagnosis.verdict in {Verdict.THUNDERING_HERD, Verdict.UNEVEN_SPLIT}
    assert diagnosis.figures.slots.effective == pytest.approx(1.6, abs=0.2), "26, 5, 1 and others"


def test_an_even_split_has_no_fault_as_far_as_the_log_shows() -> None:
    diagnosis = diagnosis_of("pp4_mmb8_i41")
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.confidence < CONFIDENT, "what the stages do is not seen"
    assert diagnosis.figures.slots.effective == pytest.approx(4.0, abs=0.1)


def test_the_default_interval_hides_the_slots_and_a_better_one_is_named() -> None:
    diagnosis = diagnosis_of("pp8_default")
    assert diagnosis.verdict is Verdict.CANNOT_TELL
    assert diagnosis.figures.slots.suggested_interval == 41


def test_requests_that_are_spread_anew_within_the_window_count_as_all_of_them_were() -> None:
    diagnosis = recorded("pp2_rounds")
    assert diagnosis.verdict is Verdict.THUNDERING_HERD
    assert diagnosis.confidence < CONFIDENT, "31 and 1 for 17 s, then 18 and 14 for 19 s"
    assert diagnosis.figures.slots.sizes is None


def test_rounds_of_different_sizes_are_an_uneven_split() -> None:
    diagnosis = recorded("pp4_rounds")
    assert diagnosis.verdict is Verdict.UNEVEN_SPLIT
    assert diagnosis.figures.slots.effective == pytest.approx(2.3, abs=0.3), "of 1.3, 2.2 and 2.7"


def test_a_herd_goes_before_decode_without_graphs() -> None:
    diagnosis = recorded("pp4_herd")
    assert diagnosis.figures.log.graph_ratio == 0.0
    assert diagnosis.verdict is Verdict.THUNDERING_HERD
    assert diagnosis.confidence >= CONFIDENT, "27, 2, 2 and 1 nearly all the time"
    assert diagnosis.also == (), "what graphs would give is not known without GPUs"
