"""A GPU's time split into working, waiting and idle, against recordings with known truth."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from exporter.activity.gpu import HOLD_SECONDS, GpuActivity
from exporter.recordings.reader import read_records
from exporter.records import (
    ActivityLevel,
    ActivityWindow,
    GpmWindow,
    GpuIdentity,
    GpuLevels,
    LoadEvent,
    LoadPhase,
    Method,
    RingSamples,
    Signal,
)
from tests.activity_judge import (
    activity_of,
    between,
    check_shape,
    judge,
    truth_of,
    windows_of,
)
from tests.activity_simulator import (
    BEGAN_AT,
    Card,
    State,
    Timeline,
    records,
    rhythm,
    warming,
)

DATA = Path(__file__).parents[1] / "data"
RECORDINGS = ("healthy", "thundering_herd", "stage_imbalance")
UTILIZATION, POWER, GPM = Signal.UTILIZATION, Signal.POWER, Signal.GPM

Folded = RingSamples | GpmWindow | GpuLevels

H200 = Card(
    watts=(122.0, 143.0, 440.0, 705.0, 205.0),
    sm=(0.0, 0.18, 0.66, 0.94, 0.30),
    dram=(0.0, 0.0, 0.62, 0.2, 0.0),
    tensor=(0.0, 0.0, 0.03, 0.63, 0.0),
    power_limit_watts=700.0,
    noise_watts=1.5,
    smoothing_seconds=0.015,
)
"""Levels of nvml's measurements on an H200: a spin on 24 SMs, decode, prefill, 40 SMs at work."""


@cache
def recorded(path: Path) -> tuple[dict[int, GpuIdentity], dict[int, list[Folded]]]:
    """A recording's GPUs, and the records of each that the estimator folds."""
    identities: dict[int, GpuIdentity] = {}
    by_gpu: dict[int, list[Folded]] = defaultdict(list)
    for record in read_records(path):
        if isinstance(record, GpuIdentity):
            identities[record.gpu] = record
        elif isinstance(record, RingSamples | GpmWindow | GpuLevels):
            by_gpu[record.gpu].append(record)
    return identities, by_gpu


def kept(records: Iterable[Folded], signals: Sequence[Signal], levels: bool) -> Iterator[Folded]:
    for record in records:
        if isinstance(record, GpuLevels):
            if levels:
                yield record
        elif (record.signal if isinstance(record, RingSamples) else GPM) in signals:
            yield record


def activity_for(identity: GpuIdentity) -> GpuActivity:
    return GpuActivity(
        identity.gpu,
        power_limit_watts=identity.power_limit_watts,
        multiprocessors=identity.multiprocessors,
    )


def judged_recording(
    name: str, signals: Sequence[Signal], *, levels: bool
) -> list[tuple[float, float, set[Method]]]:
    """Error of working and of waiting, and the methods, of each stage."""
    truth = json.loads((DATA / "recordings" / "truth.json").read_text())[name]
    identities, by_gpu = recorded(DATA / "recordings" / f"{name}.jsonl.gz")
    results = []
    for gpu, identity in sorted(identities.items()):
        windows = windows_of(activity_for(identity), kept(by_gpu[gpu], signals, levels))
        check_shape(windows)
        seconds = sum(w.ended_at - w.started_at for w in windows)
        working = sum((w.ended_at - w.started_at) * w.working_ratio for w in windows)
        waiting = sum((w.ended_at - w.started_at) * (w.waiting_ratio or 0) for w in windows)
        results.append(
            (
                working / seconds - truth["busy"][gpu],
                waiting / seconds - truth["waiting"][gpu],
                {w.method for w in windows},
            )
        )
    return results


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize(
    ("signals", "method"),
    [
        pytest.param((UTILIZATION, POWER, GPM), Method.GPM, id="everything"),
        pytest.param((UTILIZATION, POWER), Method.POWER, id="power"),
        pytest.param((UTILIZATION, GPM), Method.GPM, id="gpm"),
    ],
)
def test_with_levels_every_stage_is_right(
    name: str, signals: Sequence[Signal], method: Method
) -> None:
    for working_error, waiting_error, methods in judged_recording(name, signals, levels=True):
        assert abs(working_error) <= 0.02
        assert abs(waiting_error) <= 0.03
        assert method in methods


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize(
    "signals",
    [
        pytest.param((UTILIZATION, POWER, GPM), id="everything"),
        pytest.param((UTILIZATION, POWER), id="power"),
        pytest.param((UTILIZATION, GPM), id="gpm"),
    ],
)
def test_without_levels_a_stage_is_right_or_left_to_residency(
    name: str, signals: Sequence[Signal]
) -> None:
    for working_error, waiting_error, methods in judged_recording(name, signals, levels=False):
        right = abs(working_error) <= 0.03 and abs(waiting_error) <= 0.03
        assert right or methods == {Method.RESIDENCY}


def test_levels_that_the_samples_show_are_learned_and_used_from_the_start() -> None:
    for working_error, waiting_error, methods in judged_recording(
        "thundering_herd", (UTILIZATION, POWER), levels=False
    ):
        assert abs(working_error) <= 0.02
        assert abs(waiting_error) <= 0.03
        assert Method.POWER in methods


# --- the real card -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sglang-graphs", "sglang-graph-off"])
@pytest.mark.parametrize(
    "signals",
    [
        pytest.param((UTILIZATION, POWER, GPM), id="everything"),
        pytest.param((UTILIZATION, POWER), id="power"),
        pytest.param((UTILIZATION, GPM), id="gpm"),
    ],
)
def test_a_real_card_without_peers_works_whenever_a_kernel_is_resident(
    name: str, signals: Sequence[Signal]
) -> None:
    path = DATA / "h200" / f"{name}.jsonl.gz"
    identities, by_gpu = recorded(path)
    windows = windows_of(activity_for(identities[0]), kept(by_gpu[0], signals, levels=False))
    resident = windows_of(
        GpuActivity(0, has_peers=False), kept(by_gpu[0], (UTILIZATION,), levels=False)
    )
    check_shape(windows)
    loads = [r for r in read_records(path) if isinstance(r, LoadEvent)]
    starts = [r.happened_at for r in loads if r.phase is LoadPhase.START]
    ends = [r.happened_at for r in loads if r.phase is LoadPhase.END]
    assert len(starts) == 5
    for start, end in zip(starts, ends, strict=True):
        assert mean(windows, start, end) == pytest.approx(mean(resident, start, end), abs=0.03)
    assert mean(windows, ends[-1] + 2.0, windows[-1].ended_at) == pytest.approx(0.0, abs=0.005)


def test_decode_without_graphs_works_a_sixth_of_the_time() -> None:
    """Where SGLang itself prints 86 to 89 %: it counts launch gaps."""
    path = DATA / "h200" / "sglang-graph-off.jsonl.gz"
    identities, by_gpu = recorded(path)
    windows = windows_of(
        activity_for(identities[0]), kept(by_gpu[0], (UTILIZATION, POWER, GPM), levels=False)
    )
    loads = [r for r in read_records(path) if isinstance(r, LoadEvent)]
    spans = list(zip(loads[::2], loads[1::2], strict=True))
    for start, end in (spans[1], spans[2]):  # 8 and 32 requests at once, loaded all the time
        assert 0.14 <= mean(windows, start.happened_at, end.happened_at) <= 0.23


def mean(windows: Iterable[ActivityWindow], start: float, end: float) -> float:
    total = covered = 0.0
    for window in windows:
        overlap = min(end, window.ended_at) - max(start, window.started_at)
        if overlap > 0.0:
            total += overlap * window.working_ratio
            covered += overlap
    return total / covered


@cache
def duty_cycle() -> list[dict[str, Any]]:
    with gzip.open(DATA / "h200" / "duty_cycle.json.gz") as file:
        phases: list[dict[str, Any]] = json.load(file)
    return phases


def duty_cycle_records(signals: Sequence[Signal]) -> list[Folded]:
    """The measured rings and GPM windows; the latter with their lag of 0.11 s taken off."""
    timed: list[tuple[float, Folded]] = []
    for phase in duty_cycle():
        for us, percent in phase["util"] if UTILIZATION in signals else ():
            sample = ((us / 1e6, percent / 100.0),)
            timed.append((us / 1e6, RingSamples(0, UTILIZATION, 0.2, sample)))
        for us, milliwatts in phase["power"] if POWER in signals else ():
            sample = ((us / 1e6, milliwatts / 1000.0),)
            timed.append((us / 1e6, RingSamples(0, POWER, 0.02, sample)))
        for start, end, (graphics, sm, _, dram, *_) in phase["gpm"] if GPM in signals else ():
            shares = {"sm_ratio": sm, "dram_ratio": dram, "graphics_ratio": graphics}
            window = GpmWindow(
                0, start - 0.11, end - 0.11, **{key: each / 100 for key, each in shares.items()}
            )
            timed.append((end, window))
    return [record for _, record in sorted(timed, key=lambda each: each[0])]


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param((UTILIZATION, POWER, GPM), id="everything"),
        pytest.param((UTILIZATION, POWER), id="power"),
    ],
)
def test_on_a_real_card_a_spin_waits_and_kernels_work(signals: Sequence[Signal]) -> None:
    activity = GpuActivity(0, power_limit_watts=700.0, multiprocessors=132)
    windows = windows_of(activity, duty_cycle_records(signals))
    check_shape(windows)
    for phase in duty_cycle():
        start, end = (phase["util"][i][0] / 1e6 for i in (0, -1))
        edges = [(max(a, start), min(b, end)) for a, b in phase["edges"]]
        busy = sum(b - a for a, b in edges if b > a) / (end - start)
        inside = between(windows, start, end)
        said = judge(inside, lambda a, b: (0.0, 0.0))
        waits = phase["kind"] == "spin"
        assert said.working == pytest.approx(0.0 if waits else busy, abs=0.03)
        assert said.waiting == pytest.approx(busy if waits else 0.0, abs=0.03)


def test_gpm_alone_proves_nothing_without_levels() -> None:
    """Work on few SMs that needs no memory looks like a spin: an upper bound is said instead."""
    activity = GpuActivity(0, multiprocessors=132)
    windows = windows_of(activity, duty_cycle_records((UTILIZATION, GPM)))
    assert {window.method for window in windows} == {Method.RESIDENCY}


# --- learning ----------------------------------------------------------------------------------

MIXES = (
    (State.PREFILL, 0.35, 0.30, 0.50),
    (State.DECODE, 0.30, 0.40, 0.40),
    (State.LIGHT, 0.50, 0.35, 0.45),
    (State.DECODE, 0.60, 0.60, 0.25),
    (State.PREFILL, 1.00, 0.25, 0.15),
    (State.LIGHT, 0.40, 0.10, 0.70),
)
"""(what works, period, waiting share, working share), 20 s each."""


@pytest.mark.parametrize(
    ("signals", "bound"),
    [
        pytest.param((UTILIZATION, POWER, GPM), 0.05, id="everything"),
        pytest.param((UTILIZATION, POWER), 0.05, id="power"),
    ],
)
def test_six_mixes_on_one_card_are_told_apart(signals: Sequence[Signal], bound: float) -> None:
    """Compute bound, memory bound, and compute that fills few SMs; nothing is given."""
    rng = random.Random(5)
    timeline = Timeline()
    timeline.extend(4.0, State.IDLE)
    spans = []
    for state, period, waits, works in MIXES:
        start = timeline.ends[-1]
        rhythm(rng, 20.0, period, (waits, works), state, timeline)
        spans.append((start, timeline.ends[-1]))
    windows = windows_of(activity_of(H200), records(timeline, H200, rng, signals))
    check_shape(windows)
    for start, end in spans:
        said = judge(between(windows, BEGAN_AT + start, BEGAN_AT + end), truth_of(timeline))
        assert abs(said.working_error) <= bound
        assert abs(said.waiting_error) <= bound


def test_light_work_is_not_taken_for_waiting_where_gpm_denies_it() -> None:
    """A small model: decode draws little, prefill much, and nobody ever waits."""
    card = Card(
        watts=(122.0, 143.0, 205.0, 705.0),
        sm=(0.0, 0.18, 0.5, 0.94),
        dram=(0.0, 0.0, 0.4, 0.2),
        power_limit_watts=700.0,
    )
    rng = random.Random(7)
    timeline = Timeline()
    while timeline.ends[-1] < 90.0:
        timeline.extend(timeline.ends[-1] + 0.3, State.IDLE)
        timeline.extend(timeline.ends[-1] + 0.3, State.DECODE)
        timeline.extend(timeline.ends[-1] + 0.3, State.PREFILL)
    windows = windows_of(activity_of(card), records(timeline, card, rng))
    late = between(windows, BEGAN_AT + HOLD_SECONDS, windows[-1].ended_at)
    assert judge(late, truth_of(timeline)).waiting == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param((UTILIZATION, POWER, GPM), id="everything"),
        pytest.param((UTILIZATION, POWER), id="power"),
    ],
)
def test_a_warming_card_with_levels_stays_within_bounds(signals: Sequence[Signal]) -> None:
    card = warming(H200)
    rng = random.Random(9)
    timeline = rhythm(rng, 60.0, 0.005, (0.3, 0.7))
    given = [card.levels(), *records(timeline, card, rng, signals)]
    said = judge(windows_of(activity_of(card), given), truth_of(timeline))
    assert abs(said.working_error) <= 0.03


def test_prefill_between_decodes_counts_as_work_with_the_levels_of_decode() -> None:
    rng = random.Random(13)
    timeline = Timeline()
    while timeline.ends[-1] < 40.0:
        rhythm(rng, 0.5, 0.006, (0.4, 0.6), into=timeline)
        timeline.extend(timeline.ends[-1] + rng.uniform(0.05, 0.3), State.PREFILL)
    for signals in ((UTILIZATION, POWER, GPM), (UTILIZATION, POWER), (UTILIZATION, GPM)):
        given = [H200.levels(), *records(timeline, H200, random.Random(1), signals)]
        said = judge(windows_of(activity_of(H200), given), truth_of(timeline))
        assert abs(said.working_error) <= 0.03


# --- time --------------------------------------------------------------------------------------


def ring(signal: Signal, nominal: float, *samples: tuple[float, float]) -> RingSamples:
    return RingSamples(0, signal, nominal, samples)


def steady(start: float, seconds: float, share: float, watts: float | None) -> Iterator[Folded]:
    """A GPU that does not change, drained once a second."""
    for second in range(int(seconds)):
        at = start + second
        yield ring(UTILIZATION, 0.2, *((at + 0.2 * (i + 1), share) for i in range(5)))
        if watts is not None:
            yield ring(POWER, 0.02, *((at + 0.02 * (i + 1), watts) for i in range(50)))


def test_windows_are_held_while_levels_may_be_learned_and_no_longer_than_30_seconds() -> None:
    activity = GpuActivity(0, power_limit_watts=600.0)
    said = [(record, activity.fold(record)) for record in steady(1000.0, 60.0, 1.0, 300.0)]
    early = [w for record, windows in said if record.samples[-1][0] < 1029.9 for w in windows]  # type: ignore[union-attr]  # only rings
    everything = [window for _, windows in said for window in windows]
    assert not early
    assert everything[0].started_at == pytest.approx(1000.0)
    assert {window.method for window in everything} == {Method.RESIDENCY}
    last = everything[-1].ended_at
    assert last > 1059.0  # afterwards nothing is held


def test_the_only_rank_of_a_server_is_neither_held_nor_made_to_wait() -> None:
    activity = GpuActivity(0, power_limit_watts=600.0, has_peers=False)
    windows = [w for record in steady(1000.0, 8.0, 1.0, 90.0) for w in activity.fold(record)]
    assert windows[-1].ended_at > 1006.0
    assert {window.method for window in windows} == {Method.RESIDENCY}


def test_a_gap_in_the_samples_gives_no_window() -> None:
    activity = GpuActivity(0)
    windows = windows_of(
        activity, [*steady(1000.0, 3.0, 0.5, 100.0), *steady(1010.0, 3.0, 0.5, 100.0)]
    )
    check_shape(windows)
    assert sum(w.ended_at - w.started_at for w in windows) == pytest.approx(6.0)
    assert not [w for w in windows if w.ended_at > 1003.001 and w.started_at < 1009.999]


def test_samples_seen_before_change_nothing() -> None:
    once = list(steady(1000.0, 5.0, 0.5, 100.0))
    twice = [record for record in once for _ in range(2)]
    assert windows_of(GpuActivity(0), once) == windows_of(GpuActivity(0), twice)


def test_rings_drained_sample_by_sample_give_the_same_windows() -> None:
    rng = random.Random(17)
    timeline = rhythm(rng, 40.0, 0.3, (0.3, 0.4))
    whole = list(records(timeline, H200, rng, (UTILIZATION, POWER)))
    single = [
        RingSamples(0, record.signal, record.nominal_seconds, (sample,))
        for record in whole
        if isinstance(record, RingSamples)
        for sample in record.samples
    ]
    assert windows_of(activity_of(H200), whole) == windows_of(activity_of(H200), single)


def test_a_signal_that_stops_is_waited_for_only_a_moment() -> None:
    rng = random.Random(19)
    timeline = rhythm(rng, 40.0, 0.01, (0.5, 0.5))
    activity = activity_of(H200)
    activity.fold(H200.levels())
    windows: list[ActivityWindow] = []
    for record in records(timeline, H200, rng):
        if isinstance(record, GpmWindow) and record.ended_at > BEGAN_AT + 20.0:
            continue
        windows += activity.fold(record)
    assert windows[-1].ended_at > BEGAN_AT + 38.0
    late = between(windows, BEGAN_AT + 21.0, BEGAN_AT + 40.0)
    assert {window.method for window in late} == {Method.POWER}
    assert abs(judge(late, truth_of(timeline)).working_error) <= 0.03


def test_power_that_covers_a_part_of_a_slice_is_not_used_for_it() -> None:
    activity = GpuActivity(0)
    activity.fold(H200.levels())
    rings = [
        ring(UTILIZATION, 0.2, (1000.2, 1.0), (1000.4, 1.0)),
        ring(POWER, 0.02, *((1000.0 + 0.02 * (i + 1), 440.0) for i in range(5))),
        ring(POWER, 0.02, *((1000.2 + 0.02 * (i + 1), 440.0) for i in range(10))),
    ]
    windows = windows_of(activity, rings)
    assert [w.method for w in windows[:1]] == [Method.RESIDENCY]
    assert {w.method for w in windows[1:]} == {Method.POWER}


# --- levels ------------------------------------------------------------------------------------


def test_what_was_learned_is_told_for_recordings() -> None:
    rng = random.Random(23)
    timeline = rhythm(rng, 40.0, 0.4, (0.3, 0.3))
    activity = activity_of(H200)
    assert activity.levels() is None
    windows_of(activity, records(timeline, H200, rng))
    levels = activity.levels()
    assert levels is not None
    assert levels.waiting is not None
    assert levels.waiting.watts == pytest.approx(143.0, abs=3.0)
    assert levels.working is None


def test_a_replay_that_starts_from_learned_levels_says_the_same() -> None:
    rng = random.Random(29)
    timeline = rhythm(rng, 60.0, 0.4, (0.3, 0.3))
    live = activity_of(H200)
    first = windows_of(live, records(timeline, H200, random.Random(2)))
    levels = live.levels()
    assert levels is not None
    again = windows_of(activity_of(H200), [levels, *records(timeline, H200, random.Random(2))])
    truth = truth_of(timeline)
    assert judge(again, truth).working == pytest.approx(judge(first, truth).working, abs=0.02)


@pytest.mark.parametrize(
    ("waiting", "working"),
    [
        pytest.param(ActivityLevel(300.0, 0.5, 0.0), ActivityLevel(300.0, 0.5, 0.0), id="equal"),
        pytest.param(ActivityLevel(300.0, 0.5, 0.0), ActivityLevel(100.0, 0.1, 0.0), id="inverted"),
        pytest.param(ActivityLevel(), ActivityLevel(), id="empty"),
        pytest.param(None, None, id="missing"),
        pytest.param(None, ActivityLevel(300.0, 0.5, 0.5), id="no waiting level"),
    ],
)
def test_levels_that_cannot_be_used_are_not(
    waiting: ActivityLevel | None, working: ActivityLevel | None
) -> None:
    rng = random.Random(31)
    timeline = rhythm(rng, 10.0, 0.01, (0.5, 0.5))
    given = [
        GpuLevels(0, None, waiting, working),
        *records(timeline, H200, rng, (UTILIZATION, POWER)),
    ]
    windows = windows_of(activity_of(H200), given)
    check_shape(windows)
    assert {window.method for window in windows} == {Method.RESIDENCY}


# --- what the log says of turns ------------------------------------------------------------------


def always_at_work(turn_seconds: float | None) -> set[Method]:
    """The methods for a card that idles first, and then works without a pause."""
    activity = activity_of(H200)
    timeline = Timeline()
    timeline.extend(3.0, State.IDLE)
    timeline.extend(60.0, State.DECODE)
    if turn_seconds is not None:
        activity.note_turn(turn_seconds, BEGAN_AT + 50.0)
    windows = windows_of(activity, records(timeline, H200, random.Random(3), (UTILIZATION, POWER)))
    late = between(windows, BEGAN_AT + 45.0, BEGAN_AT + 59.0)
    assert {window.working_ratio for window in late} == {1.0}
    return {window.method for window in late}


def test_a_stage_that_never_waits_is_proven_to_work_where_a_wait_would_show() -> None:
    assert always_at_work(0.2) == {Method.POWER}


@pytest.mark.parametrize("turn_seconds", [0.05, None])
def test_short_or_unknown_turns_prove_nothing(turn_seconds: float | None) -> None:
    assert always_at_work(turn_seconds) == {Method.RESIDENCY}
