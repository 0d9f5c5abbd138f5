"""The simulated log, read by the code that reads real ones."""

from __future__ import annotations

import re

import pytest

from exporter.admission import Admission
from exporter.records import (
    Batch,
    EventKind,
    FactValue,
    LogLine,
    Mode,
    Record,
    Refusal,
    RefusedLine,
    ServerEvent,
    ServerFacts,
)
from exporter.simulator.log_text import API_KEY
from exporter.simulator.noise import FORGED_RUNNING_REQS, PROMPT
from exporter.simulator.processes import SCHEDULERS
from exporter.simulator.scenarios import SCENARIOS, STAGES
from exporter.simulator.server_log import LogEntry
from tests.unit.test_simulator import minute_of


def admitted(entries: list[LogEntry]) -> list[Record]:
    admission = Admission()
    lines = (
        LogLine("demo", entry.at, entry.message, entry.process.pid, entry.process.title)
        for entry in entries
    )
    return [record for line in lines if (record := admission.admit(line)) is not None]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_real_batch_line_counts_with_all_its_fields(scenario: str) -> None:
    entries = minute_of(scenario).entries
    printed = [
        entry
        for entry in entries
        if entry.process in SCHEDULERS
        and re.match(r"\[[-0-9: ]+PP\d\] (Prefill|Decode) batch", entry.message)
        and f"#running-req: {FORGED_RUNNING_REQS}" not in entry.message
    ]
    batches = [record for record in admitted(entries) if isinstance(record, Batch)]
    assert len(batches) == len(printed)
    assert all(batch.verified and batch.unknown_fields == 0 for batch in batches)
    assert all(SCHEDULERS[batch.pp_rank].pid == batch.pid for batch in batches)


def test_all_stages_print_the_same_batches() -> None:
    batches = [
        record for record in admitted(minute_of("healthy").entries) if isinstance(record, Batch)
    ]
    for mode in Mode:
        sizes = [
            [
                (batch.running_reqs, batch.new_tokens)
                for batch in batches
                if (batch.mode, batch.pp_rank) == (mode, rank)
            ]
            for rank in range(STAGES)
        ]
        assert all(each == sizes[0] for each in sizes)
        assert len(sizes[0]) > 50


def test_all_stages_have_printed_a_decode_line_within_three_seconds() -> None:
    run = minute_of("healthy")
    early = [entry for entry in run.entries if entry.at < run.simulation.started_at + 3.0]
    ranks = {
        record.pp_rank
        for record in admitted(early)
        if isinstance(record, Batch) and record.mode is Mode.DECODE
    }
    assert ranks == set(range(STAGES))


def test_the_start_tells_the_facts_and_the_key_goes_nowhere() -> None:
    entries = minute_of("healthy").entries
    assert any(API_KEY in entry.message for entry in entries)
    records = admitted(entries)
    facts: dict[str, FactValue] = {}
    for record in records:
        if isinstance(record, ServerFacts):
            facts.update(record.facts)
    assert facts["pp_size"] == STAGES
    assert facts["decode_log_interval"] == 41
    assert API_KEY not in repr(records)
    assert PROMPT not in repr(records)
    fired_up = [
        record
        for record in records
        if isinstance(record, ServerEvent) and record.kind is EventKind.FIRED_UP
    ]
    assert len(fired_up) == 1


def test_forged_lines_are_there_and_are_refused() -> None:
    run = minute_of("healthy")
    assert any(PROMPT in entry.message for entry in run.entries)
    entries = run.entries + run.simulation.advance(run.simulation.now + 5.0)
    while run.simulation.now < run.simulation.started_at + 130.0:
        entries += run.simulation.advance(run.simulation.now + 0.1)
    records = admitted(entries)
    reasons = {record.reason for record in records if isinstance(record, RefusedLine)}
    assert {Refusal.NOT_SCHEDULER, Refusal.GLUED, Refusal.RANK_MISMATCH} <= reasons
    assert all(
        record.running_reqs != FORGED_RUNNING_REQS
        for record in records
        if isinstance(record, Batch)
    )


def test_retractions_are_events_of_every_stage() -> None:
    retracted = [0] * STAGES
    for record in admitted(minute_of("kv_limited").entries):
        if isinstance(record, ServerEvent) and record.kind is EventKind.RETRACTION:
            assert record.pp_rank is not None
            assert record.count is not None
            retracted[record.pp_rank] += record.count
    assert len(set(retracted)) == 1
    assert retracted[0] > 5


def test_printed_throughput_is_the_whole_servers() -> None:
    run = minute_of("healthy")
    printed = [
        record.gen_throughput_tokens_per_second
        for record in admitted(run.entries)
        if isinstance(record, Batch)
        and record.mode is Mode.DECODE
        and record.pp_rank == 7
        and record.logged_at > run.simulation.started_at + 20.0
    ]
    mean = sum(value for value in printed if value is not None) / len(printed)
    assert mean == pytest.approx(run.truth.generated_tokens_per_second, rel=0.05)
