"""When requests are in flight, and when nobody can know: silence is neither bubble nor idle."""

from __future__ import annotations

import math
import random

import pytest

from exporter.pipeline.figures import PipelineFigures
from exporter.pipeline.in_flight import BRIDGED_SECONDS, InFlight
from exporter.pipeline.server import ServerPipelines
from exporter.records import (
    ActivityWindow,
    Batch,
    GpuProcess,
    GpuProcesses,
    LoadEvent,
    LoadPhase,
    Method,
    Mode,
    ServerFacts,
    StageGpu,
    StageMap,
)
from tests.h200_recordings import records_of

T0 = 1_796_032_800.0
SERVER = "kimi"
END = 100.0


def decode(at: float, queued: int = 0, pid: int | None = 4000, size: int = 4) -> Batch:
    return Batch(SERVER, T0 + at, Mode.DECODE, 0, 0, 0, pid, size, queued)


def prefill(
    at: float, new: int = 1, running: int = 0, queued: int = 0, pending: int | None = None
) -> Batch:
    return Batch(
        SERVER, T0 + at, Mode.PREFILL, 0, 0, 0, 4000, running, queued, new, pending_tokens=pending
    )


def load(at: float, phase: LoadPhase) -> LoadEvent:
    return LoadEvent(T0 + at, phase, 32)


def flight(*batches: Batch) -> InFlight:
    found = InFlight()
    for batch in batches:
        found.fold_batch(batch)
    return found


def spans(found: InFlight, until: float = END) -> list[tuple[float, float]]:
    found.close(T0 + until)
    return [
        (round(start - T0, 6), round(end - T0, 6)) for start, end in found.spans(T0, T0 + until)
    ]


# --- lines and work ----------------------------------------------------------------------------


def test_time_between_lines_up_to_five_seconds_apart_is_in_flight():
    assert spans(flight(decode(1), decode(3), decode(8), decode(8.5))) == [(1.0, 8.5)]


def test_a_herd_whose_lines_come_12_s_apart_is_no_flight_by_its_lines_alone():
    assert spans(flight(decode(1), decode(13), decode(25))) == []


def test_work_between_the_lines_of_a_herd_bridges_them():
    found = flight(decode(1))
    for second in range(1, 13):
        found.add_work(T0 + second, T0 + second + 0.3)
    found.fold_batch(decode(13))
    assert spans(found) == [(1.0, 13.0)]


def test_silence_after_the_last_evidence_is_unknown():
    found = flight(decode(1), decode(4))
    assert spans(found) == [(1.0, 4.0)]
    assert found.seconds == pytest.approx(3.0)


def test_lines_out_of_order_make_the_same_flight():
    batches = [decode(at) for at in (1, 3, 5, 20, 22, 11, 15.5)]
    expected = spans(flight(*batches))
    rng = random.Random(3)
    for _ in range(20):
        rng.shuffle(batches)
        assert spans(flight(*batches)) == expected


# --- queues ------------------------------------------------------------------------------------


def test_a_queue_holds_the_flight_until_a_line_says_it_is_empty():
    assert spans(flight(decode(1, queued=3), decode(41, queued=0))) == [(1.0, 41.0)]


def test_a_queue_nobody_emptied_holds_the_flight_to_the_end():
    assert spans(flight(decode(1, queued=3))) == [(1.0, END)]


def processes(at: float, *pids: int) -> GpuProcesses:
    return GpuProcesses(T0 + at, (0,), tuple(GpuProcess(0, pid, None) for pid in pids))


def test_a_queue_ends_with_the_process_that_printed_it():
    found = flight(decode(1, queued=3))
    for at in (5.0, 10.0, 15.0):
        found.fold_processes(processes(at, 4000, 77))
    found.fold_processes(processes(20.0, 77))
    assert spans(found) == [(1.0, 15.0)]


def test_a_process_that_was_never_seen_on_a_gpu_cannot_be_missed():
    found = flight(decode(1, queued=3))
    found.fold_processes(processes(5.0, 77))
    assert spans(found) == [(1.0, END)]


def test_no_answer_from_any_gpu_ends_no_queue():
    found = flight(decode(1, queued=3))
    found.fold_processes(processes(5.0, 4000))
    found.fold_processes(GpuProcesses(T0 + 10.0, (), ()))
    assert spans(found) == [(1.0, END)]


def test_a_new_launch_ends_the_queue_of_the_one_before():
    found = flight(decode(1, queued=3), decode(3, queued=3))
    found.end_launch(T0 + 30.0)
    assert spans(found) == [(1.0, 3.0)]


# --- health probes -----------------------------------------------------------------------------


def test_health_probes_are_no_evidence():
    assert spans(flight(*(prefill(at) for at in range(0, 60, 4)))) == []


def test_the_work_of_a_health_probe_is_no_evidence():
    found = InFlight()
    for at in range(0, 60, 4):
        found.add_work(T0 + at + 0.1, T0 + at + 0.4)
        found.fold_batch(prefill(at + 0.5))
    assert spans(found) == []


def test_a_single_request_that_goes_on_to_decode_began_with_its_prefill():
    assert spans(flight(prefill(10.0), decode(13.0), decode(16.0))) == [(10.0, 16.0)]


def test_work_that_goes_on_beyond_a_probe_is_evidence():
    found = flight(prefill(10.0))
    found.add_work(T0 + 10.0, T0 + 18.0)
    assert spans(found) == [(11.0, 18.0)]


@pytest.mark.parametrize(
    "batch",
    [
        prefill(10.0, new=2),
        prefill(10.0, running=3),
        prefill(10.0, queued=1),
        prefill(10.0, pending=512),
    ],
    ids=["two requests", "others run", "others wait", "a chunk is left"],
)
def test_a_prefill_with_anything_beyond_one_request_is_evidence(batch):
    assert spans(flight(batch, decode(14.0)))[0][0] == 10.0


# --- loads -------------------------------------------------------------------------------------


def test_a_known_load_is_a_flight_from_start_to_end():
    found = InFlight()
    found.fold_load(load(10.0, LoadPhase.START))
    found.fold_load(load(40.0, LoadPhase.END))
    assert spans(found) == [(10.0, 40.0)]


def test_a_load_that_still_runs_is_in_flight_to_the_end():
    found = InFlight()
    found.fold_load(load(10.0, LoadPhase.START))
    assert spans(found, 25.0) == [(10.0, 25.0)]


# --- what is decided when ----------------------------------------------------------------------


def settle(found: InFlight, at: float) -> float:
    found.settle(T0 + at, math.inf)
    return found.settled_until - T0


def test_a_pause_is_decided_only_when_no_evidence_can_bridge_it_any_more():
    found = flight(decode(0.0), decode(10.0))
    assert settle(found, 12.0) <= 10.0
    assert settle(found, 10.0 + BRIDGED_SECONDS + 4.0) > 10.0


def test_work_that_is_not_known_yet_keeps_a_pause_open():
    found = flight(decode(0.0), decode(12.0))
    found.settle(T0 + 12.0, T0 + 3.0)
    assert found.settled_until <= T0
    for second in range(12):
        found.add_work(T0 + second, T0 + second + 1.0)
    found.settle(T0 + 15.0, T0 + 12.0)
    assert found.seconds == pytest.approx(12.0)


@pytest.mark.parametrize("seed", range(10))
def test_deciding_early_gives_the_same_time_as_deciding_at_the_end(seed):
    rng = random.Random(seed)
    at, events = 0.0, []
    while at < 200.0:
        at += rng.choice((0.1, 0.5, 2.0, 7.0, 20.0)) * rng.random() * 2
        queued = rng.choice((0, 0, 0, 2))
        events.append(rng.choice((decode(at, queued), prefill(at), prefill(at, new=3))))
    early, late = InFlight(), InFlight()
    for batch in events:
        early.fold_batch(batch)
        late.fold_batch(batch)
        early.settle(batch.logged_at, math.inf)
    early.close(T0 + 230.0)
    late.close(T0 + 230.0)
    assert early.seconds == pytest.approx(late.seconds)


def test_memory_is_bounded_whatever_the_log_says():
    found = InFlight()
    for index in range(20_000):
        at = index * 0.05
        found.fold_batch(rng_line(at, index))
        if index % 20 == 0:
            found.add_work(T0 + at, T0 + at + 0.5)
            found.settle(T0 + at, T0 + at)
    assert len(found._chains) < 100
    assert len(found._probes) < 1000
    assert len(found._work) < 100


def test_lines_read_again_from_a_quarter_of_an_hour_ago_change_nothing():
    found = flight(decode(1000.0), decode(1004.0))
    settle(found, 1020.0)
    for batch in (prefill(100.0), decode(102.0), prefill(104.0), decode(105.0)):
        found.fold_batch(batch)
        settle(found, 1020.0)
    found.close(T0 + 1020.0)
    assert found.seconds == pytest.approx(4.0)


def test_a_server_without_gpus_settles_by_its_lines():
    pipelines = ServerPipelines()
    pipelines.fold_facts(ServerFacts(SERVER, T0, {"pp_size": 2}, "recording"))
    for second in range(60):
        pipelines.fold_batch(decode(float(second)))
    (figures,) = pipelines.figures(T0 + 60.0)
    assert figures.inflight_seconds >= 54.0
    assert figures.bubble_ratio is None


def rng_line(at: float, index: int) -> Batch:
    return prefill(at) if index % 3 else decode(at, queued=index % 2)


# --- with stages -------------------------------------------------------------------------------


def pipeline(stages: int = 2) -> ServerPipelines:
    pipelines = ServerPipelines()
    pipelines.fold_facts(ServerFacts(SERVER, T0, {"pp_size": stages}, "recording"))
    places = tuple(StageGpu(0, s, 0, s) for s in range(stages))
    pipelines.fold_map(StageMap(SERVER, T0, places, "recording"))
    return pipelines


def work(pipelines: ServerPipelines, start: int, end: int, share: float) -> None:
    for index in range(start * 10, end * 10):
        for gpu in range(2):
            at = T0 + index / 10
            pipelines.fold_window(ActivityWindow(gpu, at, at + 0.1, share, 0.0, Method.POWER))


def closed(pipelines: ServerPipelines, at: float) -> PipelineFigures:
    pipelines.close(T0 + at)
    return pipelines.figures(T0 + at)[0]


def test_a_load_that_ends_and_a_server_that_stays_silent_make_no_bubble():
    pipelines = pipeline()
    pipelines.fold_load(load(0.0, LoadPhase.START))
    work(pipelines, 0, 20, 0.8)
    pipelines.fold_load(load(20.0, LoadPhase.END))
    work(pipelines, 20, 60, 0.01)
    figures = closed(pipelines, 60.0)
    assert figures.inflight_seconds == pytest.approx(20.0)
    for stage in figures.stages:
        assert stage.inflight_seconds == pytest.approx(20.0, abs=0.01)
        assert stage.bubble_seconds == pytest.approx(4.0, abs=0.01)
    assert figures.bubble_ratio is None
    assert not figures.in_flight


def test_a_stall_of_all_stages_while_requests_wait_is_bubble():
    pipelines = pipeline()
    pipelines.fold_batch(decode(0.0, queued=5))
    work(pipelines, 0, 10, 1.0)
    work(pipelines, 10, 30, 0.0)
    work(pipelines, 30, 40, 1.0)
    pipelines.fold_batch(decode(40.0, queued=0))
    figures = closed(pipelines, 40.0)
    assert figures.stages[0].bubble_seconds == pytest.approx(20.0, abs=0.01)
    assert figures.stages[0].inflight_seconds == pytest.approx(40.0, abs=0.01)


def test_the_same_stall_without_evidence_is_unknown():
    pipelines = pipeline()
    work(pipelines, 0, 10, 1.0)
    work(pipelines, 10, 30, 0.0)
    work(pipelines, 30, 40, 1.0)
    figures = closed(pipelines, 40.0)
    assert figures.stages[0].bubble_seconds == pytest.approx(0.0, abs=0.01)
    assert figures.stages[0].inflight_seconds == pytest.approx(20.0, abs=0.01)


def test_live_counters_follow_within_five_seconds_of_the_records():
    pipelines = pipeline()
    pipelines.fold_load(load(0.0, LoadPhase.START))
    work(pipelines, 0, 20, 0.5)
    (figures,) = pipelines.figures(T0 + 20.0)
    assert figures.stages[0].inflight_seconds >= 15.0
    assert figures.inflight_seconds >= 15.0


# --- a real server -----------------------------------------------------------------------------


def fold(pipelines: ServerPipelines, record: object) -> None:
    if isinstance(record, ActivityWindow):
        pipelines.fold_window(record)
    elif isinstance(record, LoadEvent):
        pipelines.fold_load(record)
    elif isinstance(record, Batch):
        pipelines.fold_batch(record)
    elif isinstance(record, StageMap):
        pipelines.fold_map(record)
    elif isinstance(record, ServerFacts):
        pipelines.fold_facts(record)


def residency_figures(name: str) -> tuple[PipelineFigures, list[tuple[float, float, float]]]:
    """Figures by the residency ring alone, and (start, end, resident) of its windows."""
    pipelines, windows, ended = ServerPipelines(), [], 0.0
    for record in records_of(name):
        fold(pipelines, record)
        if isinstance(record, ActivityWindow):
            windows.append((record.started_at, record.ended_at, record.working_ratio))
            ended = record.ended_at
    pipelines.close(ended)
    return pipelines.figures(ended)[0], windows


@pytest.mark.parametrize(
    ("name", "stall", "drained_at", "end"),
    [
        ("sglang-graphs", (1796031297.0, 1796031307.0), 1796031350.6, 1796031355.4),
        ("sglang-graph-off", (1796031521.0, 1796031571.0), 1796031691.4, 1796031696.1),
    ],
    ids=["graphs", "graph-off"],
)
def test_compile_stalls_are_bubble_in_flight_and_the_drained_tail_is_neither(
    name, stall, drained_at, end
):
    figures, windows = residency_figures(name)
    (stage,) = figures.stages
    resident = sum((stop - start) * share for start, stop, share in windows)
    worked = sum(stage.seconds[key] for key in stage.seconds if key[0] == "working")
    assert worked == pytest.approx(resident, abs=0.01)
    idle = sum((e - s) * (1 - x) for s, e, x in windows if stall[0] <= s and e <= stall[1])
    assert idle > 0.95 * (stall[1] - stall[0])
    assert stage.bubble_seconds > idle
    # Before the first load and after the last one nothing is in flight; the pauses of 3 s between
    # loads lie between evidence less than 5 s apart.
    loads = [r for r in records_of(name) if isinstance(r, LoadEvent)]
    assert figures.inflight_seconds == pytest.approx(
        loads[-1].happened_at - loads[0].happened_at, abs=0.3
    )
    assert stage.inflight_seconds <= figures.inflight_seconds
    assert end - drained_at > 4.5
    assert figures.bubble_ratio is None


@pytest.mark.parametrize("cut", [0.3, 0.7])
def test_a_real_recording_looked_at_in_between_gives_the_same_figures(cut):
    records = list(records_of("sglang-graphs"))
    ended = max(r.ended_at for r in records if isinstance(r, ActivityWindow))
    once, twice = ServerPipelines(), ServerPipelines()
    for index, record in enumerate(records):
        for pipelines in (once, twice):
            fold(pipelines, record)
        if index == int(cut * len(records)) and isinstance(record, ActivityWindow):
            twice.advance(record.ended_at)
            twice.figures(record.ended_at)
    once.close(ended)
    twice.close(ended)
    assert once.figures(ended) == twice.figures(ended)
