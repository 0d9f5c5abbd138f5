"""Batch lines of a window → how the requests are spread over the slots, as far as they show it.

Adds to what the exporter's own observer says: the printed throughput counts the tokens of all
slots, so throughput x time between two lines / D is the mean batch of all slots, even where the
lines themselves show one slot for ever. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from exporter.diagnosis.log_figures import one_stage
from exporter.diagnosis.steady_window import LEAST_SECONDS, Window
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.pipeline.figures import SlotFigures
from exporter.pipeline.micro_batches import Activity, SlotObserver
from exporter.pipeline.server_facts import count_of
from exporter.records import Batch, FactValue, LoadEvent, LoadPhase, Mode

BY_WORKING = "mean number of working stages"
"""Evidence for the number of active slots that launch gaps make too low."""
BY_PERIOD = "period of the batch sizes"
BY_THROUGHPUT = "known concurrency over the mean batch by the printed throughput"
BY_MOMENTS = "known concurrency over the mean square of the batch sizes"

_LEAST_SAMPLE = 8  # lines that give a mean square
_AGREES = 0.15
_NEAR_WHOLE = 0.2  # how near N / mean b must be to a whole number of slots
_SAME_SIZE = 0.06
_LEAST_LINES = 3
_LOOK_SECONDS = 1.0


def slots_in_window(
    batches: Sequence[Batch],
    facts: Mapping[str, FactValue],
    window: Window,
    activity: Activity | None,
    counted: int | None = None,
) -> SlotFigures:
    """The slots by the lines of this window alone.

    `counted`: requests in the slots by their prefill lines, where no load is known.
    """
    observer = SlotObserver()
    if window.concurrency is None and counted is not None:
        window = replace(window, concurrency=counted + round(_queued(one_stage(batches))))
    if window.concurrency is not None:
        observer.fold_load(LoadEvent(window.start, LoadPhase.START, window.concurrency))
    for batch in batches:
        observer.fold_batch(batch)
    figures = observer.figures(facts, activity, window.end)
    surer = figures.active is not None and figures.active_from != BY_WORKING
    if window.concurrency is None or figures.slots is None:
        return figures
    lines = one_stage(batches)
    if surer:
        return _of_all_rounds(figures, lines, facts, window)
    found = _by_throughput(figures, lines, facts, window.concurrency)
    return found if found.effective is not None else _by_moments(found, lines, facts, window)


def telling_window(watch: Watch, key: PipelineKey, window: Window) -> Window | None:
    """The longest part of a window in which the lines show how requests are spread, at its end too.

    Requests that come and go hide it in between. `None` if it shows nowhere long enough.
    """
    facts = watch.facts.get(key[0], {})
    observer = SlotObserver()
    if window.concurrency is not None:
        observer.fold_load(LoadEvent(window.start, LoadPhase.START, window.concurrency))
    stretches: list[list[float]] = []
    shows = False
    looked_at = window.start
    for batch in watch.batches.get(key, ()):
        if not window.start <= batch.logged_at <= window.end:
            continue
        observer.fold_batch(batch)
        if batch.logged_at - looked_at < _LOOK_SECONDS:
            continue
        looked_at, showed = batch.logged_at, shows
        shows = observer.figures(facts, None, looked_at).effective is not None
        if shows and showed:
            stretches[-1][1] = looked_at
        elif shows:
            stretches.append([looked_at, looked_at])
    longest = max(stretches, key=lambda s: s[1] - s[0], default=[0.0, 0.0])
    if longest[1] - longest[0] < LEAST_SECONDS:
        return None
    told = "while the lines show how requests are spread"
    return replace(
        window, start=longest[0], end=longest[1], chosen_by=f"{window.chosen_by}, {told}"
    )


def mean_slot_requests(lines: Sequence[Batch], interval: int) -> float | None:
    """Mean batch of all slots, seen or not, by the printed throughput; `None` with too few lines.

    Speculative decoding makes more than one token of a request and pass: `accept_length` of them.
    """
    decodes = [line for line in lines if line.mode is Mode.DECODE]
    tokens, count = 0.0, 0
    for before, after in pairwise(decodes):
        rate = after.gen_throughput_tokens_per_second
        if rate is not None:
            tokens += rate * (after.logged_at - before.logged_at) / (after.accept_length or 1.0)
            count += interval
    return tokens / count if count and len(decodes) >= _LEAST_LINES else None


def _by_throughput(
    figures: SlotFigures, lines: Sequence[Batch], facts: Mapping[str, FactValue], concurrency: int
) -> SlotFigures:
    interval, slots = count_of(facts, "decode_log_interval"), figures.slots
    mean = mean_slot_requests(lines, interval) if interval is not None else None
    decodes = [line for line in lines if line.mode is Mode.DECODE]
    if mean is None or interval is None or not mean > 0.0 or slots is None:
        return figures
    count = (concurrency - _queued(lines)) / mean
    active = round(count)
    if abs(count - active) > max(_NEAR_WHOLE, 0.02 * active) or not 1 <= active <= slots:
        return figures
    seen = [line.running_reqs or 0 for line in decodes]
    shown = active // math.gcd(active, interval)
    figures = replace(
        figures,
        active=active,
        active_from=BY_THROUGHPUT,
        observable=shown,
        aliased=shown < active,
        running_requests=min(mean * active, float(concurrency)),
        sizes=None,
        effective=None,
        size_variation=None,
        fairness=None,
        reason="the log interval hides slots" if shown < active else "too few lines",
    )
    if shown == active and all(abs(size - mean) <= max(_SAME_SIZE * mean, 0.1) for size in seen):
        variation = math.sqrt(max(slots / active - 1.0, 0.0))
        return replace(
            figures,
            sizes=(round(fmean(seen)),) * active,
            effective=float(active),
            size_variation=variation,
            fairness=active / slots,
            reason=None,
        )
    return figures


def _by_moments(
    figures: SlotFigures, lines: Sequence[Batch], facts: Mapping[str, FactValue], window: Window
) -> SlotFigures:
    """Effective micro-batches from the sizes' mean and mean square, whatever their order.

    Lines sample the batches evenly where the interval hides no slot: N = A mean(b), and so
    (sum b)^2 / sum b^2 = N mean(b) / mean(b^2). Requests may come and go meanwhile. Where slots may
    be hidden, the printed throughput must agree that the mean is that of all slots.
    """
    interval, slots = count_of(facts, "decode_log_interval"), figures.slots
    decodes = [line for line in lines if line.mode is Mode.DECODE and line.running_reqs]
    least = _LEAST_SAMPLE
    if figures.active is not None and not figures.aliased:
        least = min(least, _LEAST_LINES * figures.active)  # every slot has shown as often
    if interval is None or slots is None or len(decodes) < least:
        return figures
    sizes = [float(line.running_reqs or 0) for line in decodes]
    mean, square = fmean(sizes), fmean(size * size for size in sizes)
    if figures.suggested_interval is not None:  # the interval may hide slots
        of_all = mean_slot_requests(lines, interval)
        if of_all is None or abs(of_all - mean) > _AGREES * of_all:
            return figures
    requests = (window.concurrency or 0) - _queued(lines)
    if requests < 1.0:
        return figures
    effective = min(max(requests * mean / square, 1.0), float(slots), requests)
    return replace(
        figures,
        effective=effective,
        active_from=BY_MOMENTS,
        size_variation=math.sqrt(max(slots / effective - 1.0, 0.0)),
        fairness=effective / slots,
        running_requests=requests,
        reason=None,
    )


def _queued(lines: Sequence[Batch]) -> float:
    """Mean queue of the decode lines."""
    waiting = [line.queued_reqs or 0 for line in lines if line.mode is Mode.DECODE]
    return fmean(waiting) if waiting else 0.0


def _of_all_rounds(
    figures: SlotFigures, lines: Sequence[Batch], facts: Mapping[str, FactValue], window: Window
) -> SlotFigures:
    """The figures of the newest lines, or of all where the requests were spread otherwise before.

    Answers of one length end together, and those who asked fall into the slots anew as it happens.
    """
    if figures.effective is None or not figures.active:
        return figures
    decodes = [line for line in lines if line.mode is Mode.DECODE and line.running_reqs]
    passes = decodes[len(decodes) % figures.active :]
    found = _by_moments(figures, passes, facts, window)
    if abs((found.effective or 0.0) - figures.effective) <= _AGREES * figures.effective:
        return figures
    return replace(found, sizes=None)


def effective_at_most(figures: SlotFigures, lines: Sequence[Batch]) -> float | None:
    """Most effective micro-batches there can be, by the seen batch farthest from the mean.

    The others are most even when they are equal: m = N^2 / (b^2 + (N - b)^2 / (A - 1)).
    """
    if figures.effective is not None:
        return figures.effective
    requests, active = figures.running_requests, figures.active
    sizes = {line.running_reqs or 0 for line in lines if line.mode is Mode.DECODE}
    if requests is None or active is None or not sizes:
        return None
    bounds = []
    for size in sizes:
        held = min(float(size), requests)
        rest = (requests - held) ** 2 / (active - 1) if active > 1 else 0.0
        bounds.append(requests**2 / (held**2 + rest))
    return min(bounds)
