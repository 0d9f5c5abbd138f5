"""The newest ten minutes: packed small, bounded, and written as `record` would have."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.diagnose.outcome import diagnose_recording
from exporter.ingest import Ingest
from exporter.recent.log import RecentLog
from exporter.recent.records import MOST_SECONDS, STRETCH_SECONDS, RecentRecords
from exporter.recent.samples import PackedSamples
from exporter.recorder import keep
from exporter.recordings.reader import read_records
from exporter.recordings.writer import RecordingWriter
from exporter.records import (
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuLevels,
    GpuState,
    LogLine,
    Record,
    RingSamples,
    ServerFacts,
    Signal,
    StageGpu,
    StageMap,
    XidError,
)
from exporter.stage_map import StageMapper
from tests.unit.test_recording import BEGAN, DECODE, GIVEN, TITLE, Clock

WHOLE = f"{DECODE}, gen throughput (token/s): 870.12"
NO_BATCH = GpuIdentity(0, "GPU-0")


def power(at: float, *watts: float, gpu: int = 0) -> RingSamples:
    taken = tuple((round(at + 0.02 * index, 6), value) for index, value in enumerate(watts))
    return RingSamples(gpu, Signal.POWER, 0.02, taken)


def line(at: float, text: str = WHOLE, title: str | None = TITLE, pid: int = 7) -> LogLine:
    return LogLine("kimi", at, text, pid, title)


def entries(
    recent: RecentRecords, seconds: float, levels: Sequence[GpuLevels] = ()
) -> list[dict[str, Any]]:
    """The objects of the recording, header included."""
    text = gzip.decompress(b"".join(recent.recording(seconds, levels).compressed()))
    return [json.loads(each) for each in text.split(b"\n")[:-1]]


# --- packing -------------------------------------------------------------------------------------


def test_packed_samples_are_the_same_to_the_microsecond_and_the_milliwatt() -> None:
    rng = random.Random(7)
    given: list[Record] = []
    for second in range(10):
        at = BEGAN + second + rng.random()
        given.append(power(at, *(rng.randrange(700_000) / 1e3 for _ in range(50)), gpu=second))
        given.append(RingSamples(3, Signal.UTILIZATION, 0.199983, ((at, 0.37), (at + 0.2, 1.0))))
        given = [
            RingSamples(
                each.gpu,
                each.signal,
                each.nominal_seconds,
                tuple((round(taken_at, 6), value) for taken_at, value in each.samples),
            )
            for each in given
            if isinstance(each, RingSamples)
        ]
    windows = [
        GpmWindow(1, BEGAN, BEGAN + 1.000001, 0.41, None, 0.0, 1.0, None),
        GpmWindow(2, BEGAN, BEGAN + 1.0),
    ]
    gauges = [
        GpuGauges(0, BEGAN + 0.5),
        GpuGauges(1, BEGAN + 0.5, 0.5, 1.5, 700.0, 1e9 + 0.125, 2**52, 0, 61.0, 1.98e9, 0, 2**40),
        GpuGauges(2, BEGAN + 0.5, throttle_reasons=()),
        GpuGauges(3, BEGAN + 0.5, throttle_reasons=("HOT", "POWER")),
        GpuGauges(4, BEGAN + 0.5, throttle_reasons=("HOT", "POWER")),
    ]
    packed = PackedSamples(BEGAN + 0.7)
    for record in (*given, *windows, *gauges):
        packed.add(record, BEGAN + 1.0)  # type: ignore[arg-type]  # of these kinds alone
    assert list(packed.records(0.0)) == [*given, *windows, *gauges]
    assert list(packed.closed().records(0.0)) == [*given, *windows, *gauges]


def test_what_is_closed_stays_as_it_is() -> None:
    packed = PackedSamples(BEGAN)
    packed.add(power(BEGAN, 1.0), BEGAN)
    closed = packed.closed()
    packed.add(power(BEGAN + 1, 2.0), BEGAN + 1)
    packed.add(GpuGauges(0, BEGAN, throttle_reasons=("HOT",)), BEGAN)
    assert list(closed.records(0.0)) == [power(BEGAN, 1.0)]


@pytest.mark.parametrize("at", [0.0, BEGAN + 1e6, float("inf"), float("nan")])
def test_an_instant_far_away_costs_its_own_record(at: float) -> None:
    packed = PackedSamples(BEGAN)
    packed.add(RingSamples(0, Signal.POWER, 0.02, ((BEGAN, 1.0), (at, 2.0))), BEGAN)
    packed.add(GpmWindow(0, at, BEGAN, 0.5), BEGAN)
    packed.add(power(BEGAN, 3.0), BEGAN)
    assert list(packed.records(0.0)) == [power(BEGAN, 3.0)]


def test_samples_before_the_span_are_left_out() -> None:
    packed = PackedSamples(BEGAN)
    packed.add(power(BEGAN, 1.0, 2.0, 3.0), BEGAN)
    packed.add(GpmWindow(0, BEGAN - 1, BEGAN, 0.5), BEGAN)
    packed.add(GpuGauges(0, BEGAN), BEGAN)
    (left,) = packed.records(BEGAN + 0.03)
    assert left == RingSamples(0, Signal.POWER, 0.02, ((BEGAN + 0.04, 3.0),))


# --- log lines -----------------------------------------------------------------------------------


def test_packed_lines_are_the_same() -> None:
    log, given = RecentLog(), []
    for index in range(10_000):
        given.append((line(BEGAN + index, f"text {index}", f"sglang::scheduler_PP{index % 8}"), ""))
        log.add(given[-1][0], f"text {index}", BEGAN + index)
    found = [each for block in log.blocks() for each in block.lines(0.0)]
    assert [each for each, _ in found] == [each for each, _ in given]
    assert [text for _, text in found] == [f"text {index}" for index in range(10_000)]
    assert len(log.blocks()) > 1


@pytest.mark.parametrize(("most_lines", "most_bytes"), [(20_000, 1 << 30), (1 << 30, 300_000)])
def test_a_flood_drops_the_oldest_lines(most_lines: int, most_bytes: int) -> None:
    log, rng = RecentLog(most_lines, most_bytes), random.Random(1)
    for index in range(40_000):
        log.add(line(BEGAN + index), f"{rng.randrange(10**9)}", BEGAN + index)
    blocks = log.blocks()
    assert sum(len(block.times) for block in blocks) <= most_lines
    assert sum(block.size for block in blocks) <= most_bytes
    assert blocks[-1].ended_at == BEGAN + 39_999
    assert log.dropped_at is not None
    assert blocks[0].began_at > log.dropped_at > BEGAN


def test_a_recording_says_what_a_flood_has_cost_it() -> None:
    clock = Clock()
    recent = RecentRecords(clock, RecentLog(most_lines=6000))
    for index in range(12_000):
        clock.now = BEGAN + index / 100
        recent.keep(NO_BATCH, line(clock.now))
    assert "too many log lines" in entries(recent, 600)[0]["note"]
    assert "too many" not in entries(recent, 1)[0]["note"], "these are all there"


# --- what is kept --------------------------------------------------------------------------------


def test_it_writes_what_record_would_have_and_gives_the_same_diagnosis(tmp_path: Path) -> None:
    reader = read_records(GIVEN / "thundering_herd.jsonl.gz")
    clock = Clock()
    recent = RecentRecords(clock)
    written, answered = tmp_path / "written.jsonl", tmp_path / "answered.jsonl.gz"
    with RecordingWriter(written, clock=clock) as writer:

        def tap(made: Record, from_line: LogLine | None) -> None:
            keep(writer, made, from_line)
            recent.keep(made, from_line)

        ingest = Ingest((), mapper=StageMapper(()), clock=clock, tap=tap)
        for clock.now, record in reader.timed():
            if clock.now > BEGAN + 25.0:
                break
            ingest.handle(record)
    reader.close()
    answered.write_bytes(b"".join(recent.recording(60, ingest.model.levels()).compressed()))

    def dated(path: Path) -> list[str]:
        kinds = RingSamples | GpmWindow | LogLine
        return [repr(each) for each in read_records(path) if isinstance(each, kinds)]

    assert sorted(dated(answered)) == sorted(dated(written))
    ours, theirs = diagnose_recording(answered), diagnose_recording(written)
    assert ours.diagnosis.verdict == theirs.diagnosis.verdict == "thundering_herd"
    assert ours.diagnosis.confidence == theirs.diagnosis.confidence


def test_what_held_before_the_span_stands_first_and_changes_stand_where_they_happened() -> None:
    clock = Clock()
    recent = RecentRecords(clock)
    for after, record in (
        (0.0, ServerFacts("kimi", 0.0, {"pp_size": 8, "model": "old"}, "server_args")),
        (1.0, ServerFacts("kimi", 0.0, {"tp_size": 1}, "server_info")),
        (2.0, ServerFacts("kimi", 0.0, {"pp_size": 4}, "server_args", new_launch=True)),
        (3.0, ServerFacts("kimi", 0.0, {"tp_size": 2}, "server_args")),
        (4.0, StageMap("kimi", BEGAN, (StageGpu(0, 0, 0, 5),), "formula")),
        (5.0, GpuIdentity(5, "GPU-5")),
        (6.0, GpuState(5, BEGAN + 6, up=False, reason="GPU_IS_LOST")),
        (7.0, XidError(5, BEGAN + 7, 79)),
        (20.0, GpuState(5, BEGAN + 20, up=True)),
        (21.0, ServerFacts("kimi", BEGAN + 21, {"pp_size": 2}, "server_args", new_launch=True)),
    ):
        clock.now = BEGAN + after
        recent.keep(record, None)
    clock.now = BEGAN + 30
    found = entries(recent, 20, (GpuLevels(5),))
    kinds = [each["type"] for each in found]
    assert kinds == ["header", "server", "map", "gpu", "gpu_state", "levels", "gpu_state", "server"]
    assert found[0]["created"] == BEGAN + 10
    assert found[1]["facts"] == {"pp_size": 4, "tp_size": 2}
    assert (found[4]["t"], found[4]["up"]) == (BEGAN + 10, False)
    assert (found[6]["t"], found[6]["up"]) == (BEGAN + 20, True)
    assert (found[7]["facts"], found[7]["new_launch"]) == ({"pp_size": 2}, True)
    assert "xid" in [each["type"] for each in entries(recent, 24)]
    clock.now = BEGAN + 5000
    recent.keep(XidError(5, clock.now, 31), None)
    assert [e["type"] for e in entries(recent, 600)] == ["header", "server", "map", "gpu", "xid"]


def test_ten_minutes_are_kept_and_no_more() -> None:
    clock = Clock()
    recent = RecentRecords(clock)
    for second in range(2000):
        clock.now = BEGAN + second
        recent.keep(power(clock.now, 100.0), None)
        recent.keep(NO_BATCH, line(clock.now))
    assert len(recent._stretches) <= MOST_SECONDS / STRETCH_SECONDS + 1
    found = entries(recent, MOST_SECONDS)
    for kind, key in (("power", "end"), ("log", "t")):
        times = [each[key] for each in found if each["type"] == kind]
        assert times == [BEGAN + second for second in range(1400, 2000)]
    assert {each["type"] for each in entries(recent, 1)} == {"header", "power", "log"}


def test_a_clock_set_back_keeps_nothing_for_ever() -> None:
    clock = Clock(BEGAN + 1e6)
    recent = RecentRecords(clock)
    for second in range(3000):
        recent.keep(power(clock.now, 100.0), None)
        clock.now = BEGAN + second
    assert len(recent._stretches) <= MOST_SECONDS / STRETCH_SECONDS + 1
    assert [each["end"] for each in entries(recent, 5)[1:]] == [
        BEGAN + second for second in range(2995, 2999)
    ]


def test_neither_request_text_nor_keys_are_held_or_written() -> None:
    secret = "tell-nobody"  # noqa: S105  # a made-up one
    clock = Clock()
    recent = RecentRecords(clock)
    ingest = Ingest((), mapper=StageMapper(()), clock=clock, tap=recent.keep)
    command = f"python -m sglang.launch_server --api-key {secret}"
    stamp = "[2026-11-30 10:00:00"
    for text, title in (
        (f"{stamp}] server_args=ServerArgs(pp_size=8, api_key='{secret}')", command),
        (f"{stamp}] The server is fired up and ready to roll!", command),
        (f"{WHOLE}, {secret}: 5", f"{TITLE} {secret}"),
        (f"{stamp} PP0] Scheduler hit an exception: {secret}", TITLE),
        (secret, TITLE),
    ):
        ingest.handle(line(BEGAN, text, title, pid=1 if title == command else 7))
    found = entries(recent, 60)
    assert [each["type"] for each in found].count("log") == 3
    assert {"server", "log"} < {each["type"] for each in found}
    assert secret not in json.dumps(found)
    assert secret not in repr(recent._log.blocks())
    assert secret not in repr(recent._changes)


def test_lines_of_an_old_log_cost_the_newest_ones_nothing() -> None:
    clock = Clock()
    recent = RecentRecords(clock, RecentLog(most_lines=6000))
    for _ in range(12_000):
        recent.keep(NO_BATCH, line(clock.now - 601))
    recent.keep(NO_BATCH, line(clock.now))
    note, *kept = entries(recent, 600)
    assert "too many log lines" not in note["note"]
    assert [entry["t"] for entry in kept if entry["type"] == "log"] == [clock.now]
