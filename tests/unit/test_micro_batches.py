"""Slots: what the log shows of them, how many hold requests, how evenly; else not observable."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from exporter.admission import Admission
from exporter.pipeline.figures import SlotFigures
from exporter.pipeline.micro_batches import Activity, SlotObserver, coprime_interval
from exporter.pipeline.server import ServerPipelines
from exporter.pipeline.server_facts import local_pp_ranks, micro_batch_slots
from exporter.records import (
    Batch,
    FactValue,
    LoadEvent,
    LoadPhase,
    LogLine,
    Mode,
    ServerFacts,
    StageMap,
)
from tests.h200_recordings import records_of
from tests.journal_export import DATA, REAL_JOURNALS, real_journal

T0 = 1_796_032_800.0
SERVER = "kimi"


def facts(slots: int, interval: int | None = 41) -> dict[str, FactValue]:
    found: dict[str, FactValue] = {"pp_size": slots}
    return found if interval is None else found | {"decode_log_interval": interval}


class Ring:
    """SGLang's pipeline loop: active slots in turn, a decode line every `interval` decodes.

    `prefills` maps a batch number to the requests that join the slot whose turn it is.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        interval: int,
        *,
        iterations: bool = False,
        prefills: dict[int, int] | None = None,
        batch_seconds: float = 0.004,
    ) -> None:
        self.sizes = list(sizes)
        self.interval = interval
        self.iterations = iterations
        self.prefills = prefills or {}
        self.batch_seconds = batch_seconds

    def lines(self, batches: int, pp_rank: int = 0, skip: int = 0) -> Iterator[Batch]:
        decodes = 0
        for number in range(1, batches + 1):
            slot, at = number % len(self.sizes), T0 + number * self.batch_seconds
            iteration = number if self.iterations else None
            new = self.prefills.get(number)
            if new is not None:
                yield self._line(Mode.PREFILL, at, pp_rank, self.sizes[slot], new, iteration)
                self.sizes[slot] += new
                continue
            decodes += 1
            if decodes % self.interval == 0 and number > skip:
                yield self._line(Mode.DECODE, at, pp_rank, self.sizes[slot], None, iteration)

    def _line(  # the fields of a line
        self, mode: Mode, at: float, pp_rank: int, size: int, new: int | None, iteration: int | None
    ) -> Batch:
        return Batch(
            SERVER, at, mode, 0, pp_rank, 0, 4000, size, 0, new, forward_iteration=iteration
        )

    def end(self, batches: int) -> float:
        return T0 + batches * self.batch_seconds


def observe(
    ring: Ring,
    slots: int,
    *,
    requests: int | None = None,
    activity: Activity | None = None,
    batches: int = 5000,
) -> SlotFigures:
    observer = SlotObserver()
    if requests is not None:
        observer.fold_load(LoadEvent(T0, LoadPhase.START, requests))
    for line in ring.lines(batches):
        observer.fold_batch(line)
    return observer.figures(facts(slots, ring.interval), activity, ring.end(batches))


@pytest.mark.parametrize("interval", [11, 40])
def test_lines_tell_how_often_a_pass_begins(interval):
    observer, ring = SlotObserver(), Ring((4,) * 8, interval, prefills={100: 2, 300: 1})
    *_, last = [line for line in ring.lines(2000) if not observer.fold_batch(line)]
    assert observer.turn_seconds(last, facts(8, interval)) == pytest.approx(0.004, rel=1e-4)
    assert observer.turn_seconds(last, facts(8, None)) is None


def test_too_few_lines_tell_nothing_of_turns():
    observer, ring = SlotObserver(), Ring((4,) * 8, 41)
    *_, last = [line for line in ring.lines(130) if not observer.fold_batch(line)]
    assert observer.turn_seconds(last, facts(8)) is None


# --- facts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "slots"),
    [
        ({"pp_size": 8}, 8),
        ({"pp_size": 8, "pp_async_batch_depth": 8}, 16),
        ({"pp_size": 8, "pp_async_batch_depth": 0}, 8),
        ({"pp_size": 1}, None),
        ({}, None),
    ],
)
def test_slots_are_stages_plus_depth(known, slots):
    assert micro_batch_slots(known) == slots


def test_the_second_of_two_nodes_runs_the_second_half_of_the_stages():
    assert local_pp_ranks({"pp_size": 8, "nnodes": 2, "node_rank": 1}) == range(4, 8)
    assert local_pp_ranks({}) is None


@pytest.mark.parametrize(("slots", "interval"), [(8, 41), (16, 41), (41, 43), (64, 67)])
def test_the_interval_to_advise_is_a_prime_above_the_slots(slots, interval):
    assert coprime_interval(slots) == interval


# --- what the log can show ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "interval", "active", "observable"),
    [(8, 40, 8, 1), (16, 40, 16, 2), (4, 40, 4, 1), (8, 40, 3, 3), (8, 41, 8, 8)],
)
def test_the_log_shows_active_slots_over_their_gcd_with_the_interval(
    slots, interval, active, observable
):
    figures = observe(
        Ring((2,) * active, interval), slots, activity=Activity(float(active), 0.5), batches=20_000
    )
    assert figures.active == active
    assert figures.observable == observable
    assert figures.aliased == (observable < active)


def test_without_the_number_of_active_slots_a_coprime_interval_shows_all():
    figures = observe(Ring((4,) * 8, 41), 8)
    assert (figures.active, figures.observable, figures.aliased) == (None, 8, False)
    assert figures.suggested_interval is None


def test_without_the_number_of_active_slots_the_default_interval_may_show_one():
    figures = observe(Ring((4,) * 8, 40), 8)
    assert (figures.active, figures.observable, figures.aliased) == (None, 1, True)
    assert figures.suggested_interval == 41


def test_an_unknown_interval_leaves_everything_but_the_slots_open():
    observer = SlotObserver()
    assert observer.figures(facts(8, None), None, T0) == SlotFigures(
        slots=8, reason="decode_log_interval is not known"
    )


# --- how evenly --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "slots", "effective"),
    [
        ((4,) * 8, 8, 8.0),
        ((32,), 8, 1.0),
        ((28, 3, 1), 8, 1024 / 794),
        ((18, 6, 2, 2, 1, 1, 1, 1), 8, 1024 / 372),
        ((2,) * 16, 16, 16.0),
    ],
    ids=["even", "herd of one", "herd of three", "uneven", "over-split"],
)
def test_with_known_concurrency_effective_micro_batches_are_those_of_the_slots(
    sizes, slots, effective
):
    figures = observe(Ring(sizes, 41), slots, requests=32)
    assert figures.active == len(sizes)
    assert figures.effective == pytest.approx(effective)
    assert figures.running_requests == pytest.approx(32.0)
    assert figures.fairness == pytest.approx(effective / slots)
    assert sorted(figures.sizes or ()) == sorted(sizes)


def test_evenness_counts_empty_slots():
    assert observe(Ring((32,), 41), 8, requests=32).size_variation == pytest.approx(7**0.5)
    assert observe(Ring((4,) * 8, 41), 8, requests=32).size_variation == pytest.approx(0.0)


def test_different_sizes_tell_the_number_of_slots_by_their_period():
    figures = observe(Ring((26, 5, 1), 7), 4)
    assert figures.active == 3
    assert figures.effective == pytest.approx(1024 / 702)


def test_a_pattern_that_could_be_half_a_ring_is_not_believed_alone():
    """Seen with eight requests on eight stages: 1, 3, 1, 3."""
    figures = observe(Ring((1, 3, 1, 3), 41), 8)
    assert figures.effective is None
    assert figures.reason is not None
    assert observe(Ring((1, 3, 1, 3), 41), 8, requests=8).effective == pytest.approx(64 / 20)


def test_equal_sizes_alone_tell_nothing():
    figures = observe(Ring((4,) * 8, 41), 8)
    assert figures.effective is None
    assert figures.running_requests is None


@pytest.mark.parametrize(
    ("sizes", "queued", "known", "effective"),
    [
        pytest.param((8,) * 4, 16, {"pp_max_micro_batch_size": 8}, 4.0, id="full"),
        pytest.param((8,) * 4, 0, {"pp_max_micro_batch_size": 8}, None, id="nobody waits"),
        pytest.param((8,) * 4, 16, {"pp_max_micro_batch_size": 16}, None, id="room left"),
        pytest.param((8,) * 4, 16, {}, None, id="no known cap"),
        pytest.param(
            (8,) * 4,
            16,
            {"pp_max_micro_batch_size": 8, "max_running_requests": 24},
            None,
            id="too few may run to fill all",
        ),
    ],
)
def test_full_slots_are_all_slots_while_requests_wait(sizes, queued, known, effective):
    observer, ring = SlotObserver(), Ring(sizes, 41)
    for line in ring.lines(5000):
        observer.fold_batch(line._replace(queued_reqs=queued))
    found = observer.figures(facts(4) | known, None, ring.end(5000))
    assert found.effective == effective


@pytest.mark.parametrize("sizes", [(2, 2, 4, 4), (28, 4), (3, 1, 3, 1)])
def test_aliased_lines_give_no_figure_even_with_known_concurrency(sizes):
    figures = observe(Ring(sizes, 40), 8, requests=sum(sizes))
    assert figures.effective is None
    assert figures.running_requests is None
    assert figures.aliased


def test_an_aliased_herd_of_one_is_seen_by_what_the_stages_do():
    figures = observe(Ring((32,), 40), 8, activity=Activity(0.99, 0.13))
    assert (figures.active, figures.observable, figures.effective) == (1, 1, 1.0)


def test_working_stages_tell_nothing_while_one_of_them_is_the_limit():
    figures = observe(Ring((4,) * 8, 41), 8, activity=Activity(6.0, 0.95))
    assert figures.active is None
    assert figures.active_at_least == 6


def test_working_stages_tell_nothing_while_the_host_leaves_gaps():
    """Five slots, each stage works a fifth of its turn: one stage works on the average."""
    observer, ring = SlotObserver(), Ring((4,) * 5, 41)
    for line in ring.lines(5000):
        observer.fold_batch(
            Batch(
                SERVER,
                line.logged_at,
                line.mode,
                0,
                0,
                0,
                4000,
                line.running_reqs,
                0,
                forward_occupancy_ratio=0.88,
            )
        )
    figures = observer.figures(facts(8), Activity(1.0, 0.13), ring.end(5000))
    assert figures.active is None


# --- prefills and iterations -------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [True, False], ids=["iterations", "by sequence"])
def test_prefills_between_decodes_shift_the_phase(iterations):
    """Requests that leave and join at the same turn: sizes stay, the lines' order does not."""
    rng = random.Random(4)
    prefills = dict.fromkeys(rng.sample(range(1, 5000), 60), 0)
    ring = Ring((18, 6, 2, 1), 7, iterations=iterations, prefills=prefills)
    figures = observe(ring, 4)
    assert figures.active == 4
    assert figures.effective == pytest.approx(27**2 / 365)
    assert figures.running_requests == pytest.approx(27)


def test_iterations_survive_lines_that_were_lost():
    rng = random.Random(6)
    observer, ring = SlotObserver(), Ring((18, 6, 2, 1), 7, iterations=True)
    for line in ring.lines(5000):
        if rng.random() > 0.2:
            observer.fold_batch(line)
    figures = observer.figures(facts(4, 7), None, ring.end(5000))
    assert figures.effective == pytest.approx(27**2 / 365)


def test_passes_of_another_time_do_not_count():
    """Half a minute ago 32 requests sat in one slot; now they are even."""
    observer = SlotObserver()
    observer.fold_load(LoadEvent(T0, LoadPhase.START, 32))
    first = list(Ring((32,), 41).lines(2000))
    even = Ring((4,) * 8, 41)
    for line in [*first, *even.lines(5000, skip=2000)]:
        observer.fold_batch(line)
    assert observer.figures(facts(8), None, even.end(5000)).effective == pytest.approx(8.0)


# --- copies, staleness, launches ---------------------------------------------------------------


def test_the_stages_copies_of_a_line_count_once():
    observer, ring = SlotObserver(), Ring((26, 5, 1), 7)
    lines = [line for pp_rank in range(4) for line in ring.lines(3000, pp_rank, skip=30 * pp_rank)]
    for line in sorted(lines, key=lambda line: line.logged_at):
        observer.fold_batch(line)
    assert observer.figures(facts(4, 7), None, ring.end(3000)).running_requests == 32.0


def test_old_lines_say_nothing_of_now():
    observer, ring = SlotObserver(), Ring((26, 5, 1), 7)
    for line in ring.lines(3000):
        observer.fold_batch(line)
    figures = observer.figures(facts(4, 7), None, ring.end(3000) + 31.0)
    assert figures.effective is None
    assert figures.reason == "no recent decode line"


def test_a_new_launch_forgets_the_slots_of_the_one_before():
    observer, ring = SlotObserver(), Ring((26, 5, 1), 7)
    for line in ring.lines(3000):
        observer.fold_batch(line)
    observer.begin_launch()
    assert observer.figures(facts(4, 7), None, ring.end(3000)).effective is None


def random_ring(seed: int) -> tuple[Ring, SlotFigures]:
    """A ring whose sizes three prefills may change, and what is said of it at the end."""
    rng = random.Random(seed)
    slots = rng.choice((2, 4, 8, 16))
    sizes = tuple(rng.choice((1, 1, 2, 4, 8, 30)) for _ in range(rng.randint(1, slots)))
    prefills = dict.fromkeys(rng.sample(range(1, 8000), rng.choice((0, 3))), 1)
    ring = Ring(sizes, rng.choice((7, 40, 41)), iterations=rng.random() < 0.5, prefills=prefills)
    requests = sum(sizes) + len(prefills) if rng.random() < 0.5 else None
    return ring, observe(ring, slots, requests=requests, batches=12_000)


def assert_near_truth(ring: Ring, figures: SlotFigures) -> None:
    assert figures.active == len(ring.sizes)
    truth = sum(ring.sizes) ** 2 / sum(size * size for size in ring.sizes)
    assert figures.effective == pytest.approx(truth, rel=0.1)
    assert sum(figures.sizes or ()) == pytest.approx(sum(ring.sizes), rel=0.1)


@pytest.mark.parametrize("seed", range(30))
def test_no_number_is_better_than_a_wrong_one(seed):
    ring, figures = random_ring(seed)
    if figures.effective is not None:
        assert_near_truth(ring, figures)


@pytest.mark.soak
def test_no_number_is_better_than_a_wrong_one_in_thousands_of_rings():
    shown = 0
    for seed in range(5000):
        ring, figures = random_ring(seed)
        if figures.effective is not None:
            shown += 1
            assert_near_truth(ring, figures)
    print(f"\nrings: 5000, shown: {shown}, wrong: 0")
    assert shown > 2000


# --- real servers ------------------------------------------------------------------------------


def replayed(name: str, *, with_load: bool = False) -> Iterator[tuple[float, ServerPipelines]]:
    """The pipelines of a real server after each of its lines."""
    assert name in REAL_JOURNALS
    truth = json.loads((DATA / "sglang_journal" / f"{name}.truth.json").read_text())
    events: list[tuple[float, LogLine | LoadEvent]] = [
        (int(entry["__REALTIME_TIMESTAMP"]) / 1e6, line)
        for entry in real_journal(name)
        for line in (_line(entry),)
    ]
    for phase in truth["phases"] if with_load else ():
        start, end = phase["t_start"], phase["t_end"]
        events.append((start, LoadEvent(start, LoadPhase.START, phase["concurrency"])))
        events.append((end, LoadEvent(end, LoadPhase.END)))
    admission, pipelines = Admission(), ServerPipelines()
    for at, event in sorted(events, key=lambda timed: timed[0]):
        record = admission.admit(event) if isinstance(event, LogLine) else event
        if isinstance(record, Batch):
            pipelines.fold_batch(record)
        elif isinstance(record, ServerFacts):
            pipelines.fold_facts(record)
        elif isinstance(record, LoadEvent):
            pipelines.fold_load(record)
        yield at, pipelines


def _line(entry: dict[str, bytes]) -> LogLine:
    return LogLine(
        SERVER,
        int(entry["__REALTIME_TIMESTAMP"]) / 1e6,
        entry.get("MESSAGE", b"").decode(errors="replace"),
        int(entry.get("_PID", b"0")),
        entry.get("_CMDLINE", b"").decode(errors="replace"),
    )


def slots_seen(name: str, *, with_load: bool = False) -> list[SlotFigures]:
    """The slots a few times a second."""
    seen, due = [], 0.0
    for at, pipelines in replayed(name, with_load=with_load):
        if at >= due:
            due = at + 0.5
            seen += [pipeline.slots for pipeline in pipelines.figures(at)]
    return seen


def test_eight_stages_with_the_default_interval_are_seen_to_be_aliased():
    for figures in slots_seen("pp8_default", with_load=True):
        assert figures.slots == 8
        assert figures.aliased
        assert figures.observable == 1
        assert figures.suggested_interval == 41
        assert figures.effective is None


def test_a_cap_of_eight_makes_four_slots_of_eight():
    seen = slots_seen("pp4_mmb8_i41", with_load=True)
    effective = [figures.effective for figures in seen if figures.effective is not None]
    assert len(effective) > 10
    assert min(effective) > 3.6
    assert max(effective) == pytest.approx(4.0)
    assert (8, 8, 8, 8) in {figures.sizes for figures in seen}


def test_a_cap_of_eight_without_known_concurrency_is_not_observable():
    assert all(figures.effective is None for figures in slots_seen("pp4_mmb8_i41"))


def test_a_burst_shows_its_slots_with_iterations_printed():
    """32 requests land 1, 5 and 26; when the first end and others come, a fourth slot opens."""
    seen = [figures for figures in slots_seen("pp4_burst_i7_iters") if figures.effective]
    assert {figures.active for figures in seen} == {3, 4}
    for figures in seen:
        assert figures.effective == pytest.approx(1.46 if figures.active == 3 else 1.57, abs=0.05)
        assert figures.running_requests == pytest.approx(32.0, rel=0.05)


@pytest.mark.parametrize(
    ("name", "effective"), [("healthy", 8), ("thundering_herd", 1), ("stage_imbalance", 8)]
)
def test_recordings_show_their_effective_micro_batches(name, effective):
    pipelines, last = ServerPipelines(), 0.0
    for record in records_of(name, "recordings"):
        if isinstance(record, Batch):
            pipelines.fold_batch(record)
        elif isinstance(record, ServerFacts):
            pipelines.fold_facts(record)
        elif isinstance(record, StageMap):
            pipelines.fold_map(record)
        elif isinstance(record, LoadEvent):
            pipelines.fold_load(record)
            last = record.happened_at
    (figures,) = pipelines.figures(last)
    assert figures.slots.effective == pytest.approx(effective, rel=0.1)
    assert figures.slots.running_requests == pytest.approx(32.0)
