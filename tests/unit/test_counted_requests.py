"""Requests counted by their prefill lines: when they add up, and when nothing is claimed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from exporter.diagnosis.counted_requests import counted_requests
from exporter.diagnosis.watch import Watch
from exporter.records import (
    Batch,
    EventKind,
    Mode,
    RingSamples,
    ServerEvent,
    ServerFacts,
    Signal,
    StageGpu,
    StageMap,
)

SERVER = "sglang"
STAGES = 4
INTERVAL = 41
STEP = 0.02
"""Seconds a batch, seen at one stage."""
IDLE = 3.0


def prefill(at: float, seqs: int, *, running: int = 0, usage: float = 0.0) -> Batch:
    return Batch(
        server=SERVER,
        logged_at=at,
        mode=Mode.PREFILL,
        dp_rank=0,
        pp_rank=0,
        tp_rank=0,
        pid=1,
        running_reqs=running,
        queued_reqs=0,
        new_seqs=seqs,
        new_tokens=seqs * 101,
        token_usage_ratios={"kv": usage},
    )


def decode(at: float, size: int, *, usage: float = 0.01) -> Batch:
    return Batch(
        server=SERVER,
        logged_at=at,
        mode=Mode.DECODE,
        dp_rank=0,
        pp_rank=0,
        tp_rank=0,
        pid=1,
        running_reqs=size,
        queued_reqs=0,
        token_usage_ratios={"kv": usage},
        gen_throughput_tokens_per_second=size / STEP,
    )


def burst(*sizes: int) -> list[Batch]:
    """What opens one slot after the other."""
    return [prefill(IDLE + 0.1 * index, size) for index, size in enumerate(sizes, 1)]


def decodes(count: int, size: int = 4, *, first: float = 4.5, step: float = STEP) -> list[Batch]:
    return [decode(first + index * INTERVAL * step, size) for index in range(count)]


def seen(
    lines: Iterable[Batch], *, idle: float = IDLE, events: Sequence[ServerEvent] = ()
) -> Watch:
    """Stages that are idle at first, and at work as long as there are lines."""
    watch, taken = Watch(), sorted(lines, key=lambda line: line.logged_at)
    watch.fold(ServerFacts(SERVER, 0.0, {"pp_size": STAGES, "decode_log_interval": INTERVAL}, ""))
    stages = tuple(StageGpu(0, rank, 0, rank) for rank in range(STAGES))
    watch.fold(StageMap(SERVER, 0.0, stages, ""))
    for index in range(1, round(taken[-1].logged_at / 0.2) + 2):
        sample = (0.2 * index, float(0.2 * index > idle + 0.01))
        for gpu in range(STAGES):
            watch.fold(RingSamples(gpu, Signal.UTILIZATION, 0.2, (sample,)))
    for line in taken:
        watch.fold(line)
    for event in events:
        watch.fold(event)
    return watch


def counted(watch: Watch) -> int | None:
    newest = watch.batches[SERVER, 0][-1].logged_at
    return counted_requests(watch, (SERVER, 0), (4.4, newest))


def test_what_joined_idle_stages_is_in_flight() -> None:
    assert counted(seen([*burst(4, 4, 4, 4), *decodes(12)])) == 16


def test_requests_that_take_the_places_of_answered_ones_are_not_added() -> None:
    later = [prefill(8.0, 1, running=3), prefill(10.0, 2, running=2)]
    assert counted(seen([*burst(4, 4, 4, 4), *decodes(20), *later])) == 16


def test_one_line_is_enough_where_it_holds_them_all() -> None:
    assert counted(seen([*burst(32), *decodes(1, 32)])) == 32
    assert counted(seen([*burst(32), *decodes(1, 16)])) is None


def test_nothing_is_counted_where_the_beginning_is_not_seen() -> None:
    assert counted(seen([*burst(4, 4, 4, 4), *decodes(12)], idle=0.0)) is None


def test_a_stop_is_no_beginning() -> None:
    """What was in flight before it prints nothing while it stands still."""
    before = [decode(0.1, 4)]
    assert counted(seen([*before, *burst(4, 4), *decodes(12)])) is None


def test_a_pool_that_held_more_than_was_brought_was_not_empty() -> None:
    growing = [
        d._replace(token_usage_ratios={"kv": 0.3 + 0.01 * i}) for i, d in enumerate(decodes(20))
    ]
    first, *others = burst(4, 4, 4, 4)
    full = first._replace(token_usage_ratios={"kv": 0.25})
    assert counted(seen([full, *others, *growing])) is None


def test_a_large_first_prefill_explains_what_the_pool_holds() -> None:
    rate = 4 / STEP
    pool = 20_000.0
    first = burst(32)[0]._replace(token_usage_ratios={"kv": 3232 / pool})
    lines = decodes(40)
    grown = [
        d._replace(token_usage_ratios={"kv": (3232 + rate * (d.logged_at - 4.5)) / pool})
        for d in lines
    ]
    assert counted(seen([first, *grown])) == 32


@pytest.mark.parametrize("change", [{"pending_tokens": 900}, {"new_tokens": 2048}])
def test_a_prompt_in_chunks_prints_its_request_again(change: dict[str, int]) -> None:
    *others, last = burst(4, 4, 4, 4)
    chunk = last._replace(**change)
    assert counted(seen([*others, chunk, *decodes(12)])) is None


def test_what_is_thrown_back_joins_twice() -> None:
    thrown = ServerEvent(SERVER, 6.0, EventKind.RETRACTION, count=2)
    assert counted(seen([*burst(4, 4, 4, 4), *decodes(12)], events=[thrown])) is None


def test_a_pace_that_changes_is_another_number_of_slots() -> None:
    """Half of the slots are emptied at once: the others hold as much, and take turns as quickly as they can."""
    slower = decodes(12, first=10.0, step=2 * STEP)
    assert counted(seen([*burst(4, 4, 4, 4), *decodes(6), *slower])) is None


def test_slots_that_hold_less_later_have_lost_requests() -> None:
    assert counted(seen([*burst(4, 4, 4, 4), *decodes(6), *decodes(12, 3, first=10.0)])) is None
