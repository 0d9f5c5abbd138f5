"""Recordings: what is written is read again, and a hostile line costs only itself."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.recordings.fields import BadLineError
from exporter.recordings.format import decode
from exporter.recordings.held_lines import HOLD_SECONDS
from exporter.recordings.reader import RecordingError, RecordingReader, read_records
from exporter.recordings.writer import RecordingWriter
from exporter.records import (
    ActivityLevel,
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuLevels,
    GpuProcesses,
    GpuState,
    LoadEvent,
    LoadPhase,
    LogLine,
    Record,
    Refusal,
    RingSamples,
    ServerFacts,
    Signal,
    StageGpu,
    StageMap,
    ThroughputReference,
    XidError,
)
from exporter.sources.recording import RecordingSource

GIVEN = Path(__file__).parents[1] / "data" / "recordings"
BEGAN = 1_796_032_800.0
HEADER = {"type": "header", "format": "sglang-pipeline-recording", "version": 1, "created": BEGAN}
TITLE = "sglang::scheduler_PP0"
DECODE = "[2026-11-30 10:00:00 PP0] Decode batch, #running-req: 4, #queue-req: 0"


class Clock:
    """Seconds that pass when told to, or while something sleeps by it."""

    def __init__(self, now: float = BEGAN) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def util(at: float, gpu: int = 0, share: Any = 0.5) -> dict[str, Any]:
    return {"type": "util", "gpu": gpu, "start": at - 0.2, "end": at, "share": share}


def log(at: Any, **more: Any) -> dict[str, Any]:
    return {"type": "log", "t": at, "server": "kimi", "message": DECODE, **more}


def written(path: Path, *lines: object, header: object = HEADER) -> Path:
    """A recording of these lines; bytes are written as they are."""
    with path.open("wb") as file:
        for line in (header, *lines):
            file.write(line if isinstance(line, bytes) else json.dumps(line).encode())
            file.write(b"\n")
    return path


def times(records: RecordingReader) -> list[float]:
    return [round(at - BEGAN, 3) for at, _ in records.timed()]


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "recording.jsonl"


# --- reading what conforms -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["healthy", "stage_imbalance", "thundering_herd"])
def test_a_given_recording_is_read_completely_and_in_order(name: str) -> None:
    path = GIVEN / f"{name}.jsonl.gz"
    kinds: Counter[str] = Counter()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        kinds.update(json.loads(line)["type"] for line in file)
    reader = read_records(path)
    seen: Counter[type] = Counter()
    before = 0.0
    for at, record in reader.timed():
        assert at >= before
        before = at
        seen[type(record)] += 1
    assert seen == {
        ServerFacts: 1,
        StageMap: 1,
        GpuIdentity: 8,
        GpuLevels: 8,
        LoadEvent: 2,
        RingSamples: kinds["util"] + kinds["power"],
        GpmWindow: kinds["gpm"],
        LogLine: kinds["log"],
    } | ({ThroughputReference: 1} if kinds["reference"] else {})
    assert (reader.bad_lines, reader.late_lines, reader.unknown_lines) == (0, 0, 0)
    assert (reader.damage, reader.summary()) == (None, None)
    assert (reader.first_at, reader.newest_at) == (BEGAN, BEGAN + 40.0)
    assert reader.health.lines == kinds["log"]


def test_each_type_of_line_becomes_its_record(path: Path) -> None:
    written(
        path,
        {"type": "server", "server": "kimi", "facts": {"pp_size": 8, "version": "0.5.23"}},
        {
            "type": "map",
            "server": "kimi",
            "stages": [{"dp_rank": 0, "pp_rank": 3, "tp_rank": 0, "gpu": 5, "uuid": "GPU-5"}],
        },
        {"type": "gpu", "gpu": 0, "uuid": "GPU-0", "model": "H200", "power_limit": 700, "sms": 132},
        {"type": "levels", "gpu": 0, "idle": {"watts": 88.0}, "working": {"sm": 0.8, "dram": None}},
        {"type": "reference", "concurrency": 1, "output_tokens_per_second": 34.3},
        {"type": "load", "t": BEGAN, "event": "start", "concurrency": 32},
        {"type": "power", "gpu": 1, "start": BEGAN + 0.1, "end": BEGAN + 0.12, "watts": 251.3},
        util(BEGAN + 0.2),
        log(BEGAN + 0.3, pid=4242, title=TITLE),
        {"type": "gpm", "gpu": 0, "start": BEGAN, "end": BEGAN + 1, "sm": 0.41, "dram": None},
    )
    assert list(read_records(path)) == [
        ServerFacts("kimi", BEGAN, {"pp_size": 8, "version": "0.5.23"}, "recording"),
        StageMap("kimi", BEGAN, (StageGpu(0, 3, 0, 5, "GPU-5"),), "recording"),
        GpuIdentity(0, "GPU-0", "H200", None, 700.0, 132),
        GpuLevels(0, idle=ActivityLevel(88.0), working=ActivityLevel(None, 0.8)),
        ThroughputReference(1, 34.3),
        LoadEvent(BEGAN, LoadPhase.START, 32),
        RingSamples(1, Signal.POWER, 0.02, ((BEGAN + 0.12, 251.3),)),
        RingSamples(0, Signal.UTILIZATION, 0.2, ((BEGAN + 0.2, 0.5),)),
        LogLine("kimi", BEGAN + 0.3, DECODE, 4242, TITLE),
        GpmWindow(0, BEGAN, BEGAN + 1, sm_ratio=0.41),
    ]


def test_unknown_types_keys_and_blank_lines_are_ignored(path: Path) -> None:
    written(path, {"type": "novelty", "t": "?"}, b"", b"  ", util(BEGAN) | {"extra": [1]}, HEADER)
    reader = read_records(path)
    assert len(list(reader)) == 1
    assert (reader.unknown_lines, reader.bad_lines) == (2, 0)


def test_compression_is_told_by_content_not_by_name(path: Path) -> None:
    written(path, util(BEGAN))
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert len(list(read_records(path))) == 1


def test_facts_get_the_time_of_their_place(path: Path) -> None:
    facts = {"type": "server", "server": "kimi", "facts": {}}
    written(path, facts, util(BEGAN + 1), util(BEGAN + 9), facts | {"new_launch": True})
    found = [record for record in read_records(path) if isinstance(record, ServerFacts)]
    assert [fact.known_at - BEGAN for fact in found] == [1.0, 9.0]
    assert [fact.new_launch for fact in found] == [False, True]


def test_an_api_key_among_the_facts_is_not_read(path: Path) -> None:
    facts = {"api_key": "geheim", "admin_api_key": "geheim", "tp_size": 1, "bad": [1], "n": None}
    written(path, {"type": "server", "server": "kimi", "facts": facts})
    (record,) = read_records(path)
    assert isinstance(record, ServerFacts)
    assert record.facts == {"tp_size": 1, "n": None}


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("pp_size", value) for value in (10**9, 0, -8, float("nan"), "8", True)),
        *((name, 10**9) for name in ("tp_size", "dp_size", "pp_async_batch_depth")),
        *(("decode_log_interval", value) for value in (0, -40, 10**9)),
    ],
)
def test_a_fact_out_of_bounds_costs_only_itself_and_is_named(
    path: Path, name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    facts = {name: value, "version": "0.5.23"}
    reader = read_records(written(path, {"type": "server", "server": "kimi", "facts": facts}))
    (record,) = list(reader)
    assert isinstance(record, ServerFacts)
    assert record.facts == {"version": "0.5.23"}
    assert (reader.bad_values, reader.bad_lines) == (1, 0)
    assert f"line 2: `{name}` is not a whole number from" in caplog.text
    assert "1 of its facts refused" in (reader.summary() or "")


def test_a_second_of_disorder_is_put_right(path: Path) -> None:
    offsets = [1.0, 0.2, 0.1, 1.1, 2.0, 1.05, 2.9, 1.95]
    written(path, *(util(BEGAN + offset) for offset in offsets))
    reader = read_records(path)
    assert times(reader) == sorted(offsets)
    assert reader.late_lines == 0


def test_more_than_a_second_late_is_refused_and_counted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(path, util(BEGAN + 1), util(BEGAN + 2), log(BEGAN + 0.9), util(BEGAN + 0.5))
    reader = read_records(path)
    assert times(reader) == [1.0, 2.0]
    assert reader.late_lines == 2
    assert reader.health.read_refusals == {Refusal.LATE: 1}
    assert "line 4: more than a second behind" in caplog.text


@pytest.mark.parametrize("wrong", [0.0, 5.0, BEGAN + 4, BEGAN + 1e6, 9e10])
@pytest.mark.parametrize("place", [0, 1, 20, 40])
def test_one_wrong_clock_costs_only_its_own_line(path: Path, wrong: float, place: int) -> None:
    lines = [util(BEGAN + index / 20) for index in range(40)]
    lines.insert(place, util(wrong))
    reader = read_records(written(path, *lines))
    kept = times(reader)
    assert len(set(kept) & {index / 20 for index in range(40)}) == 40
    assert reader.late_lines + reader.bad_lines + len(kept) == 41
    if abs(wrong - BEGAN) > 3600.0:
        assert len(kept) == 40


def test_a_wrong_clock_during_a_pause_costs_only_its_own_line(path: Path) -> None:
    """Log lines alone may be minutes apart; each of them is a jump ahead."""
    offsets = [0.0, 100.0, -20.0, 200.0, 90_000.0, 300.0, -50_000.0, 400.0]
    reader = read_records(written(path, *(log(BEGAN + offset) for offset in offsets)))
    assert times(reader) == [0.0, 100.0, 200.0, 300.0, 400.0]
    assert reader.late_lines == 3


def test_a_long_pause_is_no_wrong_clock(path: Path) -> None:
    offsets = [0.0, 100_000.0, 100_001.0, 200_000.0, 200_000.5, 203_000.0]
    reader = read_records(written(path, *(log(BEGAN + offset) for offset in offsets)))
    assert times(reader) == offsets
    assert reader.late_lines == 0


# --- lines that cannot be used -------------------------------------------------------------------

BAD_LINES: dict[str, object] = {
    "no_json": b"{nope",
    "no_utf8": b'{"type":"log","message":"\xff"}',
    "list": [],
    "no_type": {"t": 1},
    "type_no_text": {"type": 3},
    "deep": b"[" * 100_000,
    "deep_object": b'{"a":' * 100_000,
    "huge_number": b'{"type":"log","t":' + b"9" * 5000 + b"}",
    "too_long": b'{"type":"log","message":"' + b"x" * (10 << 20) + b'"}',
    "nan": util(BEGAN, share=float("nan")),
    "infinite": util(BEGAN, share=float("inf")),
    "share_above_one": util(BEGAN, share=1.5),
    "negative_share": util(BEGAN, share=-0.1),
    "share_text": util(BEGAN, share="0.5"),
    "share_bool": util(BEGAN, share=True),
    "share_missing": util(BEGAN, share=None),
    "negative_span": util(BEGAN) | {"start": BEGAN + 1},
    "no_span": util(BEGAN) | {"start": BEGAN},
    "long_span": util(BEGAN) | {"start": 0},
    "nan_time": util(float("nan")),
    "far_time": log(1e300),
    "negative_time": log(-1),
    "gpu_huge": util(BEGAN, gpu=10**9),
    "gpu_text": util(BEGAN) | {"gpu": "0"},
    "gpu_bool": util(BEGAN) | {"gpu": True},
    "gpu_float": util(BEGAN) | {"gpu": 0.5},
    "watts": {"type": "power", "gpu": 0, "start": BEGAN, "end": BEGAN + 1, "watts": 1e9},
    "gpm": {"type": "gpm", "gpu": 0, "start": BEGAN, "end": BEGAN + 1, "sm": "x"},
    "message_missing": log(BEGAN, message=None),
    "title_no_text": log(BEGAN, title=7),
    "pid_text": log(BEGAN, pid="7"),
    "pid_huge": log(BEGAN, pid=2**40),
    "server_empty": log(BEGAN, server=""),
    "server_newline": log(BEGAN, server="a\nb"),
    "server_surrogate": log(BEGAN, server="\ud800"),
    "server_long": log(BEGAN, server="k" * 65),
    "facts_missing": {"type": "server", "server": "kimi"},
    "stages_missing": {"type": "map", "server": "kimi"},
    "stage_no_object": {"type": "map", "server": "kimi", "stages": [3]},
    "stage_rank": {"type": "map", "server": "kimi", "stages": [{"pp_rank": 64, "gpu": 0}]},
    "uuid_missing": {"type": "gpu", "gpu": 0},
    "level_no_object": {"type": "levels", "gpu": 0, "idle": 80},
    "gauge_text": {"type": "gauges", "t": BEGAN, "gpu": 0, "temperature": "hot"},
    "gauge_half_byte": {"type": "gauges", "t": BEGAN, "gpu": 0, "memory_used": 0.5},
    "throttle_no_list": {"type": "gauges", "t": BEGAN, "gpu": 0, "throttle": "HOT"},
    "throttle_newline": {"type": "gauges", "t": BEGAN, "gpu": 0, "throttle": ["HOT", "a\nb"]},
    "throttle_long": {"type": "gauges", "t": BEGAN, "gpu": 0, "throttle": ["HOT"] * 65},
    "state_unknown": {"type": "gpu_state", "t": BEGAN, "gpu": 0, "up": None},
    "state_number": {"type": "gpu_state", "t": BEGAN, "gpu": 0, "up": 1},
    "xid_missing": {"type": "xid", "t": BEGAN, "gpu": 0},
    "xid_no_time": {"type": "xid", "gpu": 0, "xid": 79},
    "event": {"type": "load", "t": BEGAN, "event": "pause"},
    "reference": {"type": "reference", "concurrency": 0, "output_tokens_per_second": 1},
    "reference_zero": {"type": "reference", "concurrency": 1, "output_tokens_per_second": 0},
    "reference_tiny": {"type": "reference", "concurrency": 1, "output_tokens_per_second": 1e-300},
    "load_of_none": {"type": "load", "t": BEGAN, "event": "start", "concurrency": 0},
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_costs_only_itself_and_is_named_without_its_text(
    path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    written(path, util(BEGAN), BAD_LINES[name], util(BEGAN + 0.2))
    reader = read_records(path)
    assert times(reader) == [0.0, 0.2]
    assert reader.bad_lines == 1
    assert reader.health.read_refusals == {Refusal.MALFORMED: 1}
    assert f"recording {path} line 3: " in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < len(str(path)) + 100


def test_the_text_of_a_bad_line_is_never_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(path, log("geheim", message="geheim"), b"geheim", {"type": "log", "geheim": 1})
    assert list(read_records(path)) == []
    assert caplog.text.count("line") >= 3
    assert "geheim" not in caplog.text.replace(str(path), "")


def test_a_flood_of_bad_lines_is_counted_but_not_all_named(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = read_records(written(path, *[b"x"] * 5000))
    assert list(reader) == []
    assert reader.bad_lines == 5000
    assert len(caplog.records) < 110
    assert "5000 lines bad" in (reader.summary() or "")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["watts", "sm", "pp_rank", "gpu", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
LINE_KEYS = st.sampled_from(
    [
        "type",
        "gpu",
        "start",
        "end",
        "share",
        "watts",
        "t",
        "server",
        "message",
        "pid",
        "title",
        "facts",
        "stages",
        "event",
        "concurrency",
        "output_tokens_per_second",
        "idle",
        "uuid",
        "sm",
        "throttle",
        "temperature",
        "up",
        "xid",
    ]
)
TYPES = st.sampled_from(
    [
        *("server", "map", "log", "util", "power", "gpm", "gpu", "levels", "load", "reference"),
        *("gauges", "gpu_state", "xid", "header"),
    ]
)


@given(st.dictionaries(LINE_KEYS, JSON_VALUES), TYPES)
def test_any_object_is_a_record_or_a_named_fault(values: dict[str, Any], kind: str) -> None:
    try:
        found = decode({**values, "type": kind})
    except BadLineError:
        return
    assert found is None or found.at is None or 0.0 <= found.at <= 1e11


def test_mutated_recordings_never_raise_and_stay_in_order(tmp_path: Path) -> None:
    randomness = random.Random(4)
    with gzip.open(GIVEN / "healthy.jsonl.gz", "rb") as file:
        lines = file.read().split(b"\n")[:2000]
    for turn in range(20):
        mutated = [bytearray(line) for line in lines]
        for line in randomness.sample(mutated[1:-1], 60):
            for _ in range(randomness.randrange(1, 4)):
                line[randomness.randrange(len(line))] = randomness.randrange(256)
        path = tmp_path / f"{turn}.jsonl"
        path.write_bytes(b"\n".join(bytes(line) for line in mutated))
        reader = read_records(path)
        seen = times(reader)
        assert seen == sorted(seen)
        assert len(seen) >= len(lines) - 200


# --- files that are no recording, or not whole ---------------------------------------------------


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not JSON"),
        (b"\n", "not JSON"),
        (b"[]\n", "the first line is no header"),
        (b'{"type":"log"}\n', "the first line is no header"),
        (b'{"type":"header","format":"x","version":1}\n', "another format"),
        (
            b'{"type":"header","format":"sglang-pipeline-recording","version":2}\n',
            "another version",
        ),
        (b'{"type":"header","format":"sglang-pipeline-recording"}\n', "another version"),
        (b"x" * (2 << 20), "not JSON"),
        (b"\x1f\x8bnot gzip at all", "unreadable"),
        (gzip.compress(b"", mtime=0)[:8], "ends early"),
    ],
)
def test_a_file_with_a_bad_header_is_refused(path: Path, content: bytes, fault: str) -> None:
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=fault):
        read_records(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"missing\.jsonl: No such file or directory"):
        read_records(tmp_path / "missing.jsonl")


@pytest.fixture(name="truncated")
def _truncated(path: Path) -> Path:
    content = (GIVEN / "healthy.jsonl.gz").read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


async def test_a_truncated_gzip_gives_what_is_there_and_says_so(
    truncated: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    source = RecordingSource(truncated, clock=clock, sleep=clock.sleep)
    await source.open(None)
    played: list[Record] = []
    await source.run(played.append)
    assert 8000 < len(played) < 12000
    said = f"recording {truncated}: the compressed data ends early; what came before was used"
    assert source.health.last_error == said
    assert said in caplog.text


def test_a_damaged_gzip_gives_what_is_before_and_says_so(path: Path) -> None:
    content = bytearray((GIVEN / "healthy.jsonl.gz").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    path.write_bytes(content)
    reader = read_records(path)
    assert sum(1 for _ in reader) > 8000
    assert "unreadable from here on" in (reader.damage or "")


def test_a_file_cut_in_a_line_gives_the_lines_before(path: Path) -> None:
    written(path, util(BEGAN), util(BEGAN + 0.2))
    path.write_bytes(path.read_bytes()[:-20])
    reader = read_records(path)
    assert times(reader) == [0.0]
    assert reader.bad_lines == 1


# --- writing -------------------------------------------------------------------------------------

WRITTEN: tuple[Record, ...] = (
    ServerFacts("kimi", BEGAN, {"pp_size": 8, "model": "ü", "ok": True}, "recording", True),
    StageMap("kimi", BEGAN, (StageGpu(0, 1, 2, 3, "GPU-3", 77), StageGpu(1, 0, 0, 4)), "recording"),
    GpuIdentity(3, "GPU-3", "NVIDIA H200", "0000:01:00.0", 700.0, 132),
    GpuIdentity(4, "GPU-4"),
    GpuLevels(3, ActivityLevel(88.0), ActivityLevel(140.0, 0.09, 0.0), None),
    ThroughputReference(1, 34.3),
    LoadEvent(BEGAN, LoadPhase.START, 32),
    RingSamples(3, Signal.UTILIZATION, 0.2, ((BEGAN + 0.2, 0.25), (BEGAN + 0.4, 1.0))),
    RingSamples(3, Signal.POWER, 0.02, ((BEGAN + 0.5, 251.25),)),
    LogLine("kimi", BEGAN + 0.6, DECODE, 4242, TITLE),
    LogLine("kimi", BEGAN + 0.7, "ü\u2028\ud800", None, None),
    GpmWindow(3, BEGAN, BEGAN + 1.0, 0.5, 0.25, None, 0.125, 1.0),
    GpuGauges(3, BEGAN + 1.1, 0.5, 250.5, 700.0, 1e9 + 0.5, 7, 8, 61.0, 1.98e9, 2**52, 0, ("HOT",)),
    GpuGauges(4, BEGAN + 1.2, throttle_reasons=()),
    GpuState(4, BEGAN + 1.3, up=False, reason="GPU_IS_LOST"),
    GpuState(4, BEGAN + 1.35, up=True),
    XidError(4, BEGAN + 1.4, 79),
    LoadEvent(BEGAN + 1.5, LoadPhase.END, 32, 4096, 1.5, 0),
)


def sample_by_sample(record: Record) -> list[Record]:
    """The format holds one ring sample a line."""
    if isinstance(record, RingSamples):
        return [dataclasses.replace(record, samples=(sample,)) for sample in record.samples]
    return [record]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    clock = Clock()
    with RecordingWriter(tmp_path / name, note="test", host="node-a", clock=clock) as writer:
        for record in WRITTEN:
            if isinstance(record, LogLine):
                writer.write_log(record, record.message)
            else:
                writer.write(record)
            clock.now += 0.01
    reader = read_records(tmp_path / name)
    expected = [single for record in WRITTEN for single in sample_by_sample(record)]
    by_text = {repr(record) for record in reader}
    assert by_text == {repr(record) for record in expected}
    assert (writer.lines, writer.left_out, reader.bad_lines) == (len(expected), 0, 0)
    assert reader.created_at == BEGAN


def test_what_arrives_late_is_written_in_time_order(path: Path) -> None:
    """GPU drains and log lines come up to two seconds after the fact, each on its own beat."""
    clock = Clock()
    randomness = random.Random(3)
    arrivals = sorted((at + randomness.random() * 2.0, at) for at in (i / 25 for i in range(500)))
    with RecordingWriter(path, clock=clock) as writer:
        for arrival, at in arrivals:
            clock.now = BEGAN + arrival
            writer.write(RingSamples(0, Signal.POWER, 0.02, ((BEGAN + at, 100.0),)))
    ends = [json.loads(line)["end"] for line in path.read_bytes().split(b"\n")[1:-1]]
    assert len(ends) == 500
    assert ends == sorted(ends)
    assert writer.left_out == 0


def test_what_arrives_too_late_is_left_out_and_counted(path: Path) -> None:
    clock = Clock()
    with RecordingWriter(path, clock=clock) as writer:
        writer.write(LoadEvent(BEGAN + 10, LoadPhase.START))
        clock.now = BEGAN + 10 + HOLD_SECONDS
        writer.advance()
        writer.write(LoadEvent(BEGAN + 8.9, LoadPhase.END))
        writer.write(LoadEvent(BEGAN + 9.1, LoadPhase.END))
        writer.write(RingSamples(0, Signal.POWER, 0.02, ((BEGAN + 11, float("nan")),)))
    assert writer.left_out == 2
    reader = read_records(path)
    assert times(reader) == [9.1, 10.0]
    assert reader.late_lines == 0


def test_old_facts_hold_from_where_they_are_found(path: Path) -> None:
    clock = Clock()
    with RecordingWriter(path, clock=clock) as writer:
        writer.write(LoadEvent(BEGAN, LoadPhase.START))
        clock.now += 60.0
        writer.advance()
        writer.write(ServerFacts("kimi", BEGAN - 9000.0, {"pp_size": 8}, "server_args"))
    assert [type(record) for record in read_records(path)] == [LoadEvent, ServerFacts]


def test_only_a_schedulers_title_is_written_never_a_command_line(path: Path) -> None:
    with RecordingWriter(path, clock=Clock()) as writer:
        for title in (
            "python -m sglang.launch_server --api-key geheim",
            "sglang::scheduler_PP1 --api-key geheim",
        ):
            writer.write_log(LogLine("kimi", BEGAN, "request text", 1, title), "kept text")
        writer.write(ServerFacts("kimi", BEGAN, {"api_key": "geheim"}, "server_args"))
    assert b"geheim" not in path.read_bytes()
    assert b"request text" not in path.read_bytes()
    titles = [record.title for record in read_records(path) if isinstance(record, LogLine)]
    assert titles == [None, "sglang::scheduler_PP1"]


def test_records_the_format_has_no_place_for_are_passed_over(path: Path) -> None:
    with RecordingWriter(path, clock=Clock()) as writer:
        writer.write(GpuProcesses(BEGAN, (0,), ()))
    assert list(read_records(path)) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_killed_recorder_leaves_a_readable_file(tmp_path: Path, name: str) -> None:
    clock = Clock()
    writer = RecordingWriter(tmp_path / name, clock=clock)
    for second in range(20):
        clock.now = BEGAN + second
        writer.write(LoadEvent(clock.now, LoadPhase.START))
    left = (tmp_path / f"{name}.partial").read_bytes()
    writer.close()
    (tmp_path / "left").write_bytes(left)
    assert times(read_records(tmp_path / "left")) == [float(second) for second in range(17)]


def test_a_recording_gets_its_name_when_it_is_complete(path: Path) -> None:
    path.write_text("the one before")
    writer = RecordingWriter(path, clock=Clock())
    assert path.read_text() == "the one before"
    writer.close()
    writer.close()
    assert list(read_records(path)) == []
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("count", [0, 1])
def test_an_interrupted_recording_stays_beside_the_one_before(path: Path, count: int) -> None:
    path.write_text("the one before")

    def record_until_interrupted() -> None:
        with RecordingWriter(path, clock=Clock()) as writer:
            for _ in range(count):
                writer.write(LoadEvent(BEGAN, LoadPhase.START))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_until_interrupted()
    assert path.read_text() == "the one before"
    left = [entry for entry in path.parent.iterdir() if entry != path]
    assert [len(list(read_records(entry))) for entry in left] == [count] * count


# --- playing -------------------------------------------------------------------------------------


async def test_a_recording_plays_at_the_speed_it_was_made(path: Path) -> None:
    clock = Clock(now=50.0)
    offsets = [0.0, 0.25, 2.0, 700.0, 700.5]
    source = RecordingSource(
        written(path, *(log(BEGAN + offset) for offset in offsets)), clock=clock, sleep=clock.sleep
    )
    assert source.now() == 0.0
    await source.open(None)
    emitted: list[tuple[float, float]] = []
    await source.run(lambda _: emitted.append((clock.now - 50.0, source.now() - BEGAN)))
    assert emitted == [(offset, offset) for offset in offsets]
    clock.now += 1000.0
    assert source.now() == BEGAN + 700.5
    assert (source.health.up, source.health.lines, source.position()) == (True, 5, None)
    await source.close()
    await source.close()
    assert not source.health.up


async def test_a_bad_header_stops_the_source_for_good(path: Path) -> None:
    source = RecordingSource(written(path, header={"type": "log"}))
    with pytest.raises(RecordingError, match="is no recording of version 1"):
        await source.open(None)


def test_memory_stays_bounded_when_time_stands_still(path: Path) -> None:
    """All lines of one instant: nothing ever gets a second old."""
    message = "x" * 500_000
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(HEADER) + "\n")
        for _ in range(100):
            file.write(json.dumps(log(BEGAN, message=message)) + "\n")
    reader = read_records(path)
    most = 0
    for _ in reader:
        most = max(most, reader._order._waiting_bytes)
    assert most < 40 << 20


def test_a_clean_recording_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    list(read_records(GIVEN / "healthy.jsonl.gz"))
    assert caplog.text == ""
