"""The logic of bench/nccl_pipeline without torch: the ring, its lines, its truth, its tables."""

import gzip
import itertools
import queue
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.nccl_judge import gauge_error, judge
from bench.nccl_picture import picture
from bench.nccl_said import said
from bench.nccl_scenarios import (
    INTERVAL,
    SCENARIOS,
    Order,
    Scenario,
    effective,
    named,
    orders,
    single_stream,
)
from bench.nccl_stage_loop import BatchLog, bounded, run_stage
from bench.nccl_tables import Row
from bench.nccl_truth import (
    Play,
    Shares,
    StageTruth,
    binned,
    covered,
    read_truths,
    union,
    without,
)
from bench.nccl_waiting import levels, seen
from bench.nccl_witness import Witness
from exporter.admission import Admission
from exporter.diagnosis.findings import Verdict
from exporter.recordings.writer import RecordingWriter
from exporter.records import (
    Batch,
    GpmWindow,
    GpuIdentity,
    GpuProcess,
    GpuProcesses,
    LogLine,
    Mode,
    RingSamples,
    Signal,
)

RECEIVE_SECONDS = 20.0


@dataclass
class Ring:
    """Queues between stages that share a process."""

    stages: int
    ways: dict[tuple[str, int], "queue.Queue[object]"] = field(default_factory=dict)

    def way(self, kind: str, stage: int) -> "queue.Queue[object]":
        return self.ways.setdefault((kind, stage), queue.Queue())


class QueueDevice:
    """A stage's links as queues; a forward takes no time."""

    def __init__(self, stage: int, ring: Ring) -> None:
        self.launched: list[Order] = []
        self._ring = ring
        self._stage = stage
        self._next = (stage + 1) % ring.stages

    def _put(self, kind: str, stage: int, what: object) -> None:
        self._ring.way(kind, stage).put(what)

    def _get(self, kind: str) -> object:
        return self._ring.way(kind, self._stage).get(timeout=RECEIVE_SECONDS)

    def receive_order(self) -> Order:
        order = self._get("order")
        assert isinstance(order, Order)
        return order

    def send_order(self, order: Order) -> None:
        self._put("order", self._next, order)

    def receive_hidden(self, order: Order) -> None:
        assert self._get("hidden") == order.slot

    def send_hidden(self, order: Order) -> None:
        self._put("hidden", self._next, order.slot)

    def launch(self, order: Order) -> None:
        self.launched.append(order)

    def send_result(self) -> None:
        self._put("result", 0, None)

    def pass_result_on(self) -> None:
        self._put("result", self._next, None)

    def receive_result(self) -> None:
        self._get("result")


def ticking(step: float = 0.01) -> Callable[[], float]:
    """A clock that goes on by a step each time it is read."""
    ticks = itertools.count()
    return lambda: 1000.0 + step * next(ticks)


def played(
    scenario: Scenario, stages: int, seconds: float = 1.0
) -> tuple[list[QueueDevice], list[list[str]], list[BatchLog]]:
    """What every stage launched and printed; single-threaded stages side by side."""
    ring, sizes = Ring(stages), scenario.sizes(stages)
    for stage in range(stages):
        for kind in ("order", "hidden", "result"):
            ring.way(kind, stage)
    devices = [QueueDevice(stage, ring) for stage in range(stages)]
    printed: list[list[str]] = [[] for _ in range(stages)]
    logs = [BatchLog(stage, printed[stage].append, clock=ticking()) for stage in range(stages)]
    own = bounded(orders(scenario, stages, sizes), len(sizes), seconds, clock=ticking())
    left = []

    def run(stage: int) -> None:
        first = own if stage == 0 else None
        run_stage(stage, stages, len(sizes), devices[stage], logs[stage], orders=first)
        left.append(stage)

    threads = [threading.Thread(target=run, args=(stage,)) for stage in range(stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RECEIVE_SECONDS)
    assert sorted(left) == list(range(stages))
    assert all(way.empty() for way in ring.ways.values())
    return devices, printed, logs


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["even_short", "herd_short", "over_split", "uneven_long"])
def test_every_stage_runs_the_same_batches_and_hears_every_result(name: str, stages: int) -> None:
    devices, _, logs = played(named(name), stages)
    launched = [[(each.slot, each.batch) for each in device.launched] for device in devices]
    assert launched[0]
    assert all(each == launched[0] for each in launched)
    decoded = sum(each.batch for each in devices[0].launched if not each.prefill)
    assert [log.tokens for log in logs] == [decoded] * stages


@pytest.mark.parametrize("name", ["even_short", "herd_short", "over_split", "uneven_long"])
def test_the_lines_are_sglangs_and_show_every_filled_slot(name: str) -> None:
    scenario = named(name)
    _, printed, _ = played(scenario, 2, 2.0)
    sizes = [size for size in scenario.sizes(2) if size]
    for stage, texts in enumerate(printed):
        admission, title = Admission(), f"sglang::scheduler_PP{stage}"
        found = [admission.admit(LogLine("sglang", 1000.0, text, 4242, title)) for text in texts]
        batches = [each for each in found if isinstance(each, Batch)]
        assert len(batches) == len(texts)
        assert all(each.pp_rank == stage and each.verified for each in batches)
        prefills = [each.new_seqs for each in batches if each.mode is Mode.PREFILL]
        assert prefills == sizes
        decodes = {each.running_reqs for each in batches if each.mode is Mode.DECODE}
        assert decodes == set(sizes)


def test_a_decode_line_comes_once_an_interval_and_counts_all_slots() -> None:
    lines: list[str] = []
    now = iter([0.0, *(0.1 * n for n in range(1, INTERVAL + 1))])
    log = BatchLog(0, lines.append, clock=lambda: next(now))
    for turn in range(INTERVAL):
        log.note(Order(turn % 2, (20, 6)[turn % 2], False, False, 0.1))
    assert len(lines) == 1
    tokens = 21 * 20 + 20 * 6
    assert f"gen throughput (token/s): {tokens / (0.1 * INTERVAL):.2f}" in lines[0]


def test_orders_fill_the_slots_and_begin_with_their_prefill() -> None:
    scenario = named("herd_long")
    first = list(itertools.islice(orders(scenario, 2, (32, 0)), 4))
    assert [(each.slot, each.batch, each.prefill) for each in first] == [
        (0, 32, True),
        (1, 0, False),
        (0, 32, False),
        (1, 0, False),
    ]
    assert single_stream(2, 4) == (1, 0, 0, 0)


def test_a_stall_comes_when_it_is_due_and_the_pipeline_is_emptied_at_the_end() -> None:
    stalls: list[float] = []
    scenario = named("host_stall")
    own = bounded(
        orders(scenario, 2, (16, 16)),
        2,
        10.0,
        stall=stalls.append,
        stall_seconds=0.9,
        stall_every=3.0,
        clock=ticking(),
    )
    played_orders = list(own)
    assert stalls == [0.9] * 3
    assert [each.batch for each in played_orders[-4:]] == [0, 0, 0, 0]
    assert played_orders[-1].over
    assert not any(each.over for each in played_orders[:-1])


def test_a_pass_grows_with_its_batch_and_the_last_stage_may_be_slow() -> None:
    scenario = named("slow_last_long")
    assert scenario.seconds_of(16, 2, 0) == pytest.approx(0.040)
    assert scenario.seconds_of(16, 2, 1) == pytest.approx(0.064)
    assert scenario.seconds_of(1, 2, 0) == pytest.approx(0.040 * (0.7 + 0.3 / 16))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_expected_verdicts_are_verdicts(scenario: Scenario) -> None:
    assert scenario.expected
    assert set(scenario.expected) <= {verdict.value for verdict in Verdict}
    assert len(scenario.sizes(2)) == 2 + scenario.depth(2)


def test_slots_are_as_uneven_as_their_names_say() -> None:
    assert effective(named("even_long").sizes(4)) == 4.0
    assert effective(named("herd_long").sizes(4)) == 1.0
    assert effective(named("idle_old_style").sizes(4)) is None
    for stages in (2, 4, 8):
        uneven = effective(named("uneven_long").sizes(stages))
        assert uneven is not None
        assert max(1.5, stages / 4) < uneven < 0.8 * stages


# --- truth -------------------------------------------------------------------------------------


def test_waiting_is_what_is_not_work() -> None:
    works = union([(1.0, 2.0), (4.0, 5.0), (1.5, 2.5)])
    assert works == [(1.0, 2.5), (4.0, 5.0)]
    waits = without(union([(0.0, 3.0), (4.2, 4.4), (4.5, 6.0)]), works)
    assert waits == [(0.0, 1.0), (2.5, 3.0), (5.0, 6.0)]
    truth = StageTruth("even_long", 0, works, waits)
    shares = truth.shares(0.0, 10.0)
    assert (shares.working, shares.waiting) == pytest.approx((0.25, 0.25))
    assert shares.idle == pytest.approx(0.5)


def test_bins_hold_their_part_of_a_span() -> None:
    assert binned([(0.5, 2.25)], 0.0, 1.0, 4) == pytest.approx([0.5, 1.0, 0.25, 0.0])
    assert binned([(-3.0, 0.5), (3.5, 9.0)], 0.0, 1.0, 4) == pytest.approx([0.5, 0.0, 0.0, 0.5])


def written(folder: Path, play: Play, *truths: StageTruth) -> Path:
    path = folder / "truth.jsonl.gz"
    with gzip.open(path, "at", encoding="ascii") as lines:
        for truth in truths:
            lines.write(truth.to_json() + "\n")
        lines.write(play.to_json() + "\n")
    return path


def test_a_truth_is_read_as_it_was_written_even_from_a_file_that_was_cut(tmp_path: Path) -> None:
    at = 1_796_032_800.0
    truth = StageTruth("even_long", 1, [(at, at + 0.04)], [(at + 0.04, at + 0.08)], 1, 1e-5)
    play = Play("even_long", 2, {"main": (at, at + 20)}, {0: [(at, 0.5)]}, {}, 640, mapped=True)
    path = written(tmp_path, play, truth)
    written(tmp_path, Play("herd_long", 2), truth)
    plays, stages = read_truths(path)
    assert plays[0] == play
    found = stages["even_long", 1]
    assert covered(found.works, at, at + 1) == pytest.approx(0.04, abs=2e-6)
    assert covered(found.waits, at, at + 1) == pytest.approx(0.04, abs=2e-6)
    path.write_bytes(path.read_bytes()[:-20])
    assert read_truths(path)[0] == [play]


# --- what is said ------------------------------------------------------------------------------


def test_the_gauge_is_compared_with_what_lay_before_it() -> None:
    truth = StageTruth("herd_long", 0, [(0.0, 5.0)], [(5.0, 6.0)])
    readings = [(2.0, 1.0), (4.0, 0.5), (9.0, 0.0)]
    mean, over_resident, over_working, each = gauge_error(truth, readings, (0.0, 10.0))
    assert mean == pytest.approx(0.5)
    assert over_resident == pytest.approx(0.5 - 0.6)
    assert over_working == pytest.approx(0.0)
    assert each == pytest.approx(0.5 / 3)
    assert gauge_error(truth, [], (0.0, 10.0)) == (None, None, None, None)


def test_stages_count_as_found_where_their_titles_stand_on_their_cards(tmp_path: Path) -> None:
    for swapped in (False, True):
        witness, play = Witness(2), Play("herd_long", 2)
        witness.open(tmp_path / f"{swapped}.jsonl.gz", named("herd_long"), play, [700, 701])
        processes = []
        for gpu in range(2):
            witness.see(GpuIdentity(gpu, f"GPU-{gpu}"))
            stage = 1 - gpu if swapped else gpu
            title = f"sglang::scheduler_PP{stage}"
            processes.append(GpuProcess(gpu, 700 + stage, title, parent_pid=600))
        witness.see(GpuProcesses(1000.0, (0, 1), tuple(processes)))
        witness.close()
        assert play.mapped is not swapped


def test_a_claim_must_be_near_and_an_upper_bound_above() -> None:
    true = Shares(0.5, 0.4)
    by_gpm = Row("herd_long", 0, "all", true, Shares(0.46, 0.43), {"gpm": 1.0})
    by_power = Row("herd_long", 0, "power", true, Shares(0.43, 0.47), {"power": 0.95})
    resident = Row("herd_long", 0, "residency", true, Shares(0.9, 0.0), {"residency": 1.0})
    low = Row("herd_long", 0, "residency", true, Shares(0.4, 0.0), {"residency": 1.0})
    assert [each.within for each in (by_gpm, by_power, resident, low)] == [True, True, True, False]
    far = Row("herd_long", 0, "all", true, Shares(0.43, 0.47), {"gpm": 1.0})
    assert not far.within


def probe_recording(path: Path) -> Play:
    """Two cards: the second waits from 10 to 18 s, works from 18 to 26 s."""
    at = 1_796_032_800.0
    phases = {"idle": (at, at + 8), "receive": (at + 10, at + 18), "work": (at + 18, at + 26)}
    play = Play("probe", 2, phases)
    states = {"idle": (0.0, 80.0, 0.0, 0.0), "receive": (1.0, 130.0, 0.12, 0.0)}
    states["work"] = (1.0, 430.0, 0.7, 0.6)
    with RecordingWriter(path, host="test", clock=lambda: at + 30) as writer:
        for name, (start, _end) in phases.items():
            share, watts, sm, dram = states[name]
            for second in range(8):
                now = start + second + 1
                writer.write(RingSamples(1, Signal.UTILIZATION, 0.2, ((now, share),)))
                power = tuple((now - 0.02 * n, watts) for n in range(10, -1, -1))
                writer.write(RingSamples(1, Signal.POWER, 0.02, power))
                writer.write(GpmWindow(1, now - 1, now, sm, 0.02, dram, 0.01, share))
    return play


def test_a_probe_shows_each_state_and_gives_levels(tmp_path: Path) -> None:
    play = probe_recording(tmp_path / "probe.jsonl.gz")
    found = seen(tmp_path / "probe.jsonl.gz", play)
    table = {(each.phase, each.gpu): each for each in found}
    assert table["receive", 1].resident == 1.0
    assert table["receive", 1].sm == pytest.approx(0.12)
    assert table["idle", 0].watts is None
    second = levels(found)[1]
    assert second.waiting is not None
    assert second.waiting.watts == pytest.approx(130.0)
    assert second.working is not None
    assert second.working.dram_ratio == pytest.approx(0.6)


def test_a_recording_is_judged_in_every_way_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = 1_796_032_800.0
    names = ("probe", "herd_long")
    probe = probe_recording(tmp_path / "probe.jsonl.gz")
    probe_recording(tmp_path / "herd_long.jsonl.gz")
    play = Play("herd_long", 2, {"main": (at, at + 26)}, {1: []}, {1: [(at, 1.9e9)]}, 100)
    with tarfile.open(tmp_path / "recordings.tar", "w") as archive:
        for name in names:
            archive.add(tmp_path / f"{name}.jsonl.gz", f"{name}.jsonl.gz")
    spans = [(at + 18, at + 26)]
    truths = [StageTruth("herd_long", stage, spans, [(at + 10, at + 18)]) for stage in range(2)]
    written(tmp_path, probe)
    written(tmp_path, play, *truths)
    judge(tmp_path, until=float("inf"))
    shown = capsys.readouterr().out
    assert "| receive | 1 | 1.000 | 130.0 (130-130) | 0.1200 |" in shown
    assert "| herd_long | all, levels | cannot_tell |" in shown
    assert (tmp_path / "results.json").exists()
    drawn = picture([play], {("herd_long", truth.stage): truth for truth in truths}, {})
    assert "stage 1: true" in drawn
    assert (
        said(tmp_path / "herd_long.jsonl.gz", tmp_path, "power", ()).stage(0, (at, at + 5)) is None
    )
