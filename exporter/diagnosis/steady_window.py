"""Chooses the steady window a verdict speaks of, from the data.

A driven load is taken from its first sign of work to its last; without one the longest time in
flight. What comes before the figures have settled (warm-up) and after the last line (drain) is
left out. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean, median

from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.pipeline.in_flight import is_probe
from exporter.records import LoadPhase, Mode

LEAST_SECONDS = 3.0
"""A shorter window is none: a pass over all slots and a GPM window take a second each."""
BRIDGED_SECONDS = 15.0
"""Without GPUs, lines this far apart belong to one stretch of load: a herd prints seldom."""
WORKS_RATIO = 0.05
"""Resident share of a bin from which a GPU does something."""

_EDGE_SECONDS = 1.0  # cut at the first and last sign of work, and no more than
_EDGE_SHARE = 0.05  # of the stretch
_BLOCK_SECONDS = 5.0  # the longest rhythm that must not look like warm-up
_SETTLED = 0.25  # a block this near the median of all is settled
_MOST_WARM_UP = 0.35  # share of the stretch that warm-up may take at most
_AS_LONG = 0.8  # of the longest: an experiment drives the same load again under another setting

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the figures cover, in epoch seconds.

    Attributes:
        chosen_by: How it was chosen, for people.
        load_started_at: Start of the driven load it lies in; `None` without one.
        concurrency: Requests that load keeps in flight; `None` if not known.
    """

    start: float
    end: float
    chosen_by: str
    load_started_at: float | None = None
    concurrency: int | None = None

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Load:
    """A driven load from its start to its end (or to the end of the records)."""

    start: float
    end: float
    concurrency: int | None
    output_tokens: int | None = None
    seconds: float | None = None


def choose_window(watch: Watch, key: PipelineKey) -> Window | None:
    """The steady window of a pipeline; `None` if nothing was in flight long enough."""
    loads = [load for load in loads_of(watch) if load.concurrency != 0]
    found = []
    for load in loads:
        span = _settled(watch, key, (load.start, load.end))
        if span is not None:
            found.append((load, span))
    if found:
        load, span = _chosen(found)
        kept = "" if load.concurrency is None else f" of {load.concurrency} requests"
        which = "the driven load" if len(loads) == 1 else f"one of {len(loads)} driven loads,"
        return Window(
            *span,
            chosen_by=f"{which}{kept}, {span[0] - load.start:.0f} s after its start",
            load_started_at=load.start,
            concurrency=load.concurrency,
        )
    if loads:
        return None
    spans = [_settled(watch, key, span) for span in _busy_spans(watch, key)]
    longest = max((s for s in spans if s is not None), key=lambda s: s[1] - s[0], default=None)
    return None if longest is None else Window(*longest, chosen_by="the longest time in flight")


def _chosen(found: Sequence[tuple[Load, Span]]) -> tuple[Load, Span]:
    """The load that asks most of the server; of those the longest, of about as long ones the first."""
    most = max(load.concurrency or 0 for load, _ in found)
    asking = [each for each in found if (each[0].concurrency or 0) == most]
    # Not by what is steady in it: a herd prints seldom, which makes its load look shorter.
    longest = max(load.end - load.start for load, _ in asking)
    return next(each for each in asking if each[0].end - each[0].start >= _AS_LONG * longest)


def loads_of(watch: Watch) -> list[Load]:
    """The driven loads, oldest first."""
    loads: list[Load] = []
    open_since: float | None = None
    concurrency: int | None = None
    for event in watch.loads:
        if event.phase is LoadPhase.START:
            if open_since is not None:
                loads.append(Load(open_since, event.happened_at, concurrency))
            open_since, concurrency = event.happened_at, event.concurrency
        elif open_since is not None:
            loads.append(
                Load(open_since, event.happened_at, concurrency, event.output_tokens, event.seconds)
            )
            open_since = None
    if open_since is not None and watch.last_at is not None:
        loads.append(Load(open_since, watch.last_at, concurrency))
    return loads


def residency(watch: Watch, key: PipelineKey, span: Span) -> dict[int, list[float]]:
    """Resident shares of the pipeline's GPUs by bin, where most of them are seen: one may be lost."""
    gpus = [gpu for used in watch.stage_gpus(key).values() for gpu in used]
    found: dict[int, list[float]] = {}
    for gpu in gpus:
        for index, share in watch.gpus[gpu].resident.means(*span, least_covered=0.5).items():
            found.setdefault(index, []).append(share)
    return {index: found[index] for index in sorted(found) if 2 * len(found[index]) > len(gpus)}


# --- where there is work -----------------------------------------------------------------------


def _busy_spans(watch: Watch, key: PipelineKey) -> list[Span]:
    """Stretches in flight: by the model's seconds, or by lines where no GPU is seen."""
    bridged = 5.0
    signs = [
        (float(second.second), second.second + 1.0)
        for second in watch.seconds.get(key, ())
        if (second.inflight_ratio or 0.0) > 0.5
    ]
    if not signs:
        bridged = BRIDGED_SECONDS
        lines = [b.logged_at for b in watch.batches.get(key, ()) if not is_probe(b)]
        signs = [(at, at) for at in sorted(lines)]
    spans: list[Span] = []
    for start, end in signs:
        if spans and start - spans[-1][1] <= bridged:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _settled(watch: Watch, key: PipelineKey, span: Span) -> Span | None:
    """The stretch from the first to the last sign of work, less warm-up and drain."""
    lines = [b for b in watch.batches.get(key, ()) if span[0] <= b.logged_at <= span[1]]
    shares = residency(watch, key, span)
    bins = {index: fmean(values) for index, values in shares.items()}
    width = _bin_seconds(watch, key)
    busy = [index * width for index, mean in bins.items() if mean >= WORKS_RATIO]
    signs = [batch.logged_at for batch in lines] + busy
    if not signs:
        return None
    first, last = max(min(signs), span[0]), min(max(signs) + width, span[1])
    most = first + _MOST_WARM_UP * (last - first)
    decodes = [batch.logged_at for batch in lines if batch.mode is Mode.DECODE]
    edge = min(_EDGE_SECONDS, _EDGE_SHARE * (last - first))
    start = min(max(first + edge, min(decodes, default=first)), most)
    end = max(last - edge, start)
    start = min(max(start, _warmed_up(bins, width, (start, end))), most)
    return (start, end) if end - start >= LEAST_SECONDS else None


def _bin_seconds(watch: Watch, key: PipelineKey) -> float:
    gpus = [gpu for used in watch.stage_gpus(key).values() for gpu in used]
    return watch.gpus[gpus[0]].resident.width_seconds if gpus else 0.0


def _warmed_up(bins: dict[int, float], width: float, span: Span) -> float:
    """When the first block like the others begins."""
    count = int((span[1] - span[0]) / _BLOCK_SECONDS) if width else 0
    if count < 3:
        return span[0]
    blocks: list[float | None] = []
    for number in range(count):
        begin = span[0] + number * _BLOCK_SECONDS
        inside = [
            mean for index, mean in bins.items() if begin <= index * width < begin + _BLOCK_SECONDS
        ]
        blocks.append(fmean(inside) if inside else None)
    known = [block for block in blocks if block is not None]
    if not known:
        return span[0]
    middle = median(known)
    unlike = takewhile(lambda b: b is None or abs(b - middle) > _SETTLED * middle, blocks)
    return span[0] + len(list(unlike)) * _BLOCK_SECONDS


# --- where it stops ----------------------------------------------------------------------------


def stops(watch: Watch, key: PipelineKey, span: Span, least_seconds: float) -> list[Span]:
    """Stretches in which no GPU of the pipeline had a kernel, that long at least.

    Idle by residency is truly idle, whatever the method: only its working share is a bound. The
    idle parts of the bins at both ends belong to the stop.
    """
    width = _bin_seconds(watch, key)
    shares = {index: max(values) for index, values in residency(watch, key, span).items()}
    runs: list[list[int]] = []
    for index, share in shares.items():
        if share >= WORKS_RATIO:
            continue
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    found = []
    for first, last in runs:
        if (last - first + 1) * width >= least_seconds - width / 2:
            before, after = shares.get(first - 1, 1.0), shares.get(last + 1, 1.0)
            found.append((first * width - (1.0 - before) * width, (last + 2 - after) * width))
    return found
