"""Prefill lines since the stages were idle → how many requests are in flight, without being told.

A request joins a slot by a prefill pass and stays there for life, so from an empty pipeline on the
`#new-seq` of the prefill lines add up to what is in flight, until the first request is answered.
Afterwards a steady load shows in steady lines: the same batches at the same pace. Requests that were
answered before the first decode line count too: it is an upper bound. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from statistics import fmean, median

from exporter.diagnosis.log_figures import one_stage
from exporter.diagnosis.steady_window import Span, stops
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.pipeline.server_facts import count_of
from exporter.records import Batch, Mode

IDLE_SECONDS = 2.0
"""No kernel on any stage for so long before the first line that is seen: nothing is in flight."""
PAUSE_SECONDS = 10.0
"""The same after earlier lines: what was in flight then may only have stood still."""

_EMPTY_POOL = 0.01  # as printed, with two decimals
_LEAST_GROWTH = 0.04  # of the printed pool usage, from which the pool's size is estimated
_POOL_ERROR = 1.4
_CHUNK_STEP = 512  # SGLang's own sizes are 2048 and its multiples
_SAME_SIZE = 0.1
_SAME_MIX = 0.25  # of lines that would have to show another size
_SAME_PACE = 0.2
_LEAST_LINES = 3
_BLOCK = 5  # gaps of which the middle one tells the pace


def counted_requests(watch: Watch, key: PipelineKey, span: Span) -> int | None:
    """Requests in the slots over a window; `None` where their beginning is not seen, or may not last.

    What it rests on: the flight began with idle stages and an empty pool; no prompt came in chunks,
    which print their request again; nothing was thrown back; the lines of the window are as those
    right after the beginning.
    """
    facts = watch.facts.get(key[0], {})
    interval = count_of(facts, "decode_log_interval")
    lines = [b for b in one_stage(watch.batches.get(key, ())) if b.logged_at <= span[1]]
    began = _began_empty(watch, key, lines, span[0])
    if began is None or interval is None or facts.get("enable_dynamic_chunking") is True:
        return None
    lines = lines[began:]
    own = (event for event in watch.events if event.server == key[0])
    if any(event.happened_at >= lines[0].logged_at for event in own):
        return None  # a retraction makes requests join twice; an exception may have ended some
    joining = list(takewhile(lambda line: line.mode is Mode.PREFILL, lines))
    after = lines[len(joining) :]
    held = list(takewhile(lambda line: line.mode is Mode.DECODE, after))
    counted = sum(line.new_seqs or 0 for line in joining)
    if any(_is_chunk(line) for line in joining) or not held:
        return None
    return counted if _lasts(held, after, counted, interval) else None


def _began_empty(
    watch: Watch, key: PipelineKey, lines: Sequence[Batch], before: float
) -> int | None:
    """The newest prefill line up to an instant before which nothing was in flight.

    A line is printed when its pass comes back: its kernels stand between it and the idle time.
    """
    found, last_at = None, watch.first_at
    for index, line in enumerate(lines):
        if line.logged_at > before or last_at is None:
            break
        least = PAUSE_SECONDS if index else IDLE_SECONDS
        if (
            line.mode is Mode.PREFILL
            and not line.running_reqs
            and line.logged_at - last_at >= least
        ):
            idle = stops(watch, key, (last_at, line.logged_at), least)
            if idle and _was_empty(lines[index:]):
                found = index
        last_at = line.logged_at
    return found


def _was_empty(lines: Sequence[Batch]) -> bool:
    """Whether the pool holds what its first prefill has brought, and nothing from before a stop.

    Its size is told by what decode adds to the printed usage; where that is too little, only a pool
    that is printed as empty is.
    """
    joined, first = lines[0].new_tokens or 0, _usage(lines[0])
    decodes = [line for line in lines if line.mode is Mode.DECODE]
    last = _usage(decodes[-1]) if decodes else None
    if first is None or first <= _EMPTY_POOL or last is None:
        return first is not None and first <= _EMPTY_POOL
    added = 0.0 + sum(line.new_tokens or 0 for line in lines[1:] if line.mode is Mode.PREFILL)
    for before, after in pairwise(decodes):
        rate = after.gen_throughput_tokens_per_second or 0.0
        added += rate * (after.logged_at - before.logged_at)
    if last - first < _LEAST_GROWTH:
        return False
    pool = added / (last - first)
    return first <= _POOL_ERROR * joined / pool + _EMPTY_POOL


def _usage(line: Batch) -> float | None:
    return max(line.token_usage_ratios.values(), default=None)


def _is_chunk(line: Batch) -> bool:
    """Whether it may be a part of a prompt: a rest waits, or it has the size of a chunk."""
    rest = not line.queued_reqs and bool(line.pending_tokens)
    tokens = line.new_tokens or 0
    return rest or (tokens > 0 and tokens % _CHUNK_STEP == 0)


def _lasts(held: Sequence[Batch], after: Sequence[Batch], counted: int, interval: int) -> bool:
    """Whether as many requests are still there in the end.

    While the slots hold as much and take their turns at the same pace, as many slots are filled:
    with fewer of them a turn would come sooner, or later where stages wait for the next batch.
    `held` are the lines before anybody else joins.
    """
    sizes = [line.running_reqs or 0 for line in after if line.mode is Mode.DECODE]
    if len(sizes) < _LEAST_LINES:
        return set(sizes) == {counted}  # all in one slot, and all still there
    if _differ(sizes[: len(sizes) // 2], sizes[len(sizes) // 2 :]):
        return False
    paces = _seconds_a_batch(after, interval)
    if len(paces) < _BLOCK:
        return len(held) == len(after)  # nobody came, so nobody's client was answered
    blocks = [median(paces[at : at + _BLOCK]) for at in range(0, len(paces) - _BLOCK + 1, _BLOCK)]
    return max(blocks) - min(blocks) <= _SAME_PACE * max(blocks)


def _differ(early: Sequence[int], late: Sequence[int]) -> bool:
    """Whether the sizes of two halves differ: in their mean, and in how often each comes."""
    if len(early) < _LEAST_LINES or abs(fmean(early) - fmean(late)) <= _SAME_SIZE * fmean(late):
        return False
    before, after = Counter(early), Counter(late)
    shares = (abs(before[s] / len(early) - after[s] / len(late)) for s in before | after)
    return sum(shares) / 2 > _SAME_MIX


def _seconds_a_batch(lines: Sequence[Batch], interval: int) -> list[float]:
    """Between two decode lines: their distance over the decode and prefill passes in it."""
    at = [index for index, line in enumerate(lines) if line.mode is Mode.DECODE]
    return [
        (lines[after].logged_at - lines[before].logged_at) / (interval + after - before - 1)
        for before, after in pairwise(at)
    ]
