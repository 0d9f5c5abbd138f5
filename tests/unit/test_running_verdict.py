"""What the live page says in words: the running verdict, or the figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exporter.diagnosis.findings import Verdict
from exporter.ingest import Ingest
from exporter.kept_sources import Feed
from exporter.page.verdicts import RunningVerdicts
from exporter.page.words import figures_sentence, queued, switch_on, waits
from exporter.pipeline.figures import PipelineFigures, SlotFigures
from exporter.recent.records import RecentRecords
from exporter.recordings.reader import read_records
from exporter.snapshot import Snapshot
from exporter.sources.recording import RecordingSource
from exporter.stage_map import StageMapper
from tests.unit.test_pipeline_model import T, decode, fold

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"


def played(name: str) -> tuple[Ingest, RecentRecords]:
    """A recording as it went by, up to its end."""
    path = RECORDINGS / f"{name}.jsonl.gz"
    reader = read_records(path)
    recent = RecentRecords(lambda: reader.newest_at or 0.0)
    ingest = Ingest(
        (Feed(RecordingSource(path)),),
        mapper=StageMapper(()),
        clock=lambda: reader.newest_at or 0.0,
        tap=recent.keep,
    )
    for record in reader:
        ingest.handle(record)
    return ingest, recent


@pytest.mark.parametrize("name", ["thundering_herd", "stage_imbalance"])
async def test_the_running_verdict_is_what_diagnose_would_say(name: str) -> None:
    ingest, recent = played(name)
    verdicts = RunningVerdicts(
        lambda seconds: recent.recording(seconds, ingest.model.levels()), ingest.seconds
    )
    snapshot = ingest.snapshot()
    keys = [(s.name, p.dp_rank) for s in snapshot.servers for p in s.pipelines]
    await verdicts.judge(keys, snapshot.taken_at)
    (verdict,) = verdicts.latest.values()
    assert verdict.verdict == name
    assert verdict.judged_at == snapshot.taken_at
    assert verdict.advice
    assert verdict.window_seconds is not None


async def test_nothing_seen_is_no_verdict() -> None:
    recent = RecentRecords(lambda: T)
    verdicts = RunningVerdicts(
        lambda seconds: recent.recording(seconds, ()), lambda server, dp_rank: ()
    )
    await verdicts.judge([("kimi", 0)], T)
    assert verdicts.latest["kimi", 0].verdict is Verdict.CANNOT_TELL
    await verdicts.judge([], T)
    assert verdicts.latest == {}


# --- the figures in words ------------------------------------------------------------------------


def herd() -> PipelineFigures:
    ingest, _ = played("thundering_herd")
    (server,) = ingest.snapshot().servers
    (pipeline,) = server.pipelines
    return pipeline


def test_figures_are_said_in_one_sentence() -> None:
    told = figures_sentence(herd(), 7)
    assert told.startswith("The stages work ")
    assert "32 requests sit in 1.0 of 8 micro-batches" in told
    assert told.endswith("7 requests wait in the queue.")


def test_what_is_not_known_is_left_out_and_an_upper_bound_is_called_so() -> None:
    seen = herd()
    unknown = replace(seen, occupancy_ratio=None, stages=(), slots=SlotFigures())
    assert figures_sentence(unknown, None) == "Nothing is known of what the stages do yet."
    stages = tuple(replace(stage, method="residency") for stage in seen.stages)
    bound = figures_sentence(replace(seen, stages=stages, slots=SlotFigures()), 1)
    assert bound.startswith("The stages work at most ")
    assert bound.endswith("1 request waits in the queue.")


def test_the_longest_queue_is_told_and_none_if_no_stage_told_one() -> None:
    model = fold(decode(pp=0, running=1), decode(pp=1, running=1)._replace(queued_reqs=None))
    (server,) = model.snapshot(T + 1).servers
    told = [stage.queued_reqs for stage in server.stages]
    assert queued(server, 0) == max((each for each in told if each is not None), default=None)
    assert queued(server, 5) is None


def test_what_is_waited_for_is_named_with_its_reason() -> None:
    empty = Snapshot(T, (), (), {}, 0, ())
    told = list(waits(empty, {"journal:kimi": "permission denied; join systemd-journal"}, 0))
    assert told[0] == "journal:kimi: permission denied; join systemd-journal"
    assert "first line of an SGLang scheduler" in told[1]
    lines_only = fold(decode(pp=0, running=1)).snapshot(T + 1)
    (told_of_gpus,) = waits(lines_only, {}, 0)
    assert "first sample of a GPU" in told_of_gpus
    assert list(waits(lines_only, {}, 1)) == []


def test_every_recommendation_says_what_to_set_and_what_it_shows() -> None:
    names = ("decode_log_interval", "SGLANG_LOG_FORWARD_ITERS", "LogRateLimitIntervalSec")
    assert [each["setting"] for each in switch_on(names)] == [
        "--decode-log-interval 41",
        "SGLANG_LOG_FORWARD_ITERS=1",
        "LogRateLimitIntervalSec=0 in the unit",
    ]
    assert all(each["shows"] for each in switch_on(names))
