"""One pipeline stage as its log shows it: counters that only grow, gauges that go stale."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median_low
from typing import Any

from exporter.metric_catalog import BATCH_SIZE_BUCKETS
from exporter.records import Batch, Mode
from exporter.snapshot import ModeSnapshot, StageSnapshot

STALE_AFTER_SECONDS = 30.0
"""A gauge is shown while its last line is younger than this, or than `STALE_AFTER_GAPS` times
the stage's median gap between lines, whichever is longer."""
STALE_AFTER_GAPS = 4.0
LOWER_RANK_SILENT_SECONDS = 60.0
"""A tensor-parallel rank above the lowest speaks for the stage once lower ones were silent this
long: some SGLang versions print the same line on all of them."""

_GAPS_KEPT = 32
_GAUGES = tuple(
    (key, Batch._fields.index(field))
    for key, field in (
        ("running", "running_reqs"),
        ("queued", "queued_reqs"),
        ("throughput", "gen_throughput_tokens_per_second"),
        ("occupancy", "forward_occupancy_ratio"),
        ("idle_occupancy", "forward_idle_occupancy_ratio"),
        ("accept", "accept_length"),
    )
)
"""What a gauge is called here, and its place in a batch."""
_DECODE = Mode.DECODE  # a member's name is looked up slowly in Python 3.11, seven times a line


class _ModeCounts:
    __slots__ = ("batches", "bucket_counts", "graph_batches", "size_sum")

    def __init__(self) -> None:
        self.batches = 0
        self.bucket_counts = [0] * (len(BATCH_SIZE_BUCKETS) + 1)
        self.size_sum = 0
        self.graph_batches: int | None = None


class StageState:
    """Folds the accepted batch lines of one (dp_rank, pp_rank)."""

    def __init__(self, dp_rank: int, pp_rank: int) -> None:
        self.dp_rank = dp_rank
        self.pp_rank = pp_rank
        self.pid: int | None = None
        self.retracted_requests = 0
        self.watchdog_timeouts = 0
        self.last_batch_at: float | None = None
        self._modes = {mode: _ModeCounts() for mode in Mode}
        self._computed_tokens = 0
        self._cached_tokens = 0
        self._gauges: dict[str, tuple[float, float]] = {}
        self._printed_at: dict[int, float] = {}
        self._gaps: deque[float] = deque(maxlen=_GAPS_KEPT)

    def speaks(self, tp_rank: int, at: float) -> bool:
        """Whether a line of this tensor-parallel rank counts: no lower rank printed lately."""
        printed = self._printed_at
        printed[tp_rank] = at
        if len(printed) == 1:
            return True
        return not any(
            rank < tp_rank and at - seen <= LOWER_RANK_SILENT_SECONDS
            for rank, seen in printed.items()
        )

    def fold(self, batch: Batch) -> None:
        """Counts one batch line that speaks for the stage."""
        at, last = batch.logged_at, self.last_batch_at
        if last is None or at > last:
            if last is not None:
                self._gaps.append(at - last)
            self.last_batch_at = at
        if batch.pid is not None and batch.pid != self.pid:
            self._gauges.clear()  # another process: what the one before claimed is over
            self.pid = batch.pid
        mode = batch.mode
        size = batch.running_reqs if mode is _DECODE else batch.new_seqs
        counts = self._modes[mode]
        counts.batches += 1
        if size is not None:
            counts.bucket_counts[bisect_left(BATCH_SIZE_BUCKETS, size)] += 1
            counts.size_sum += size
        if batch.graph is not None:
            counts.graph_batches = (counts.graph_batches or 0) + batch.graph
        if batch.new_tokens:
            self._computed_tokens += batch.new_tokens
        if batch.cached_tokens:
            self._cached_tokens += batch.cached_tokens
        self._set_gauges(batch, size)

    def _set_gauges(self, batch: Batch, size: int | None) -> None:
        at, gauges = batch.logged_at, self._gauges
        if size is not None:
            gauges[batch.mode] = (size, at)
        values: tuple[Any, ...] = batch
        for key, place in _GAUGES:
            if (value := values[place]) is not None:
                gauges[key] = (value, at)
        for pool, ratio in batch.token_usage_ratios.items():
            gauges["pool:" + pool] = (ratio, at)

    def forget_gauges(self) -> None:
        """The process behind the stage is gone: its last words hold no longer."""
        self._gauges.clear()
        self._gaps.clear()
        self._printed_at.clear()
        self.pid = None

    def stale_after_seconds(self) -> float:
        """How old a line may be while its gauges are still shown."""
        if len(self._gaps) < 2:  # a single gap may be a night without requests
            return STALE_AFTER_SECONDS
        return max(STALE_AFTER_SECONDS, STALE_AFTER_GAPS * median_low(self._gaps))

    def snapshot(
        self, now: float, gpu_utilization_ratio: float | None, gpus: tuple[int, ...]
    ) -> StageSnapshot:
        """The stage at `now`; stale gauges are `None`, except a queue that nobody emptied."""
        stale_after = self.stale_after_seconds()  # or as far ahead: the clock was set back
        fresh = {
            k: value for k, (value, at) in self._gauges.items() if abs(now - at) <= stale_after
        }
        queued = self._gauges.get("queued")
        if queued is not None and queued[0] > 0:
            fresh["queued"] = queued[0]
        return StageSnapshot(
            dp_rank=self.dp_rank,
            pp_rank=self.pp_rank,
            modes=tuple(self._mode(mode, fresh) for mode in Mode),
            computed_tokens=self._computed_tokens,
            cached_tokens=self._cached_tokens,
            retracted_requests=self.retracted_requests,
            watchdog_timeouts=self.watchdog_timeouts,
            running_reqs=_whole(fresh.get("running")),
            queued_reqs=_whole(fresh.get("queued")),
            token_usage_ratios={
                key.removeprefix("pool:"): value
                for key, value in fresh.items()
                if key.startswith("pool:")
            },
            generation_tokens_per_second=fresh.get("throughput"),
            forward_occupancy_ratio=fresh.get("occupancy"),
            forward_idle_occupancy_ratio=fresh.get("idle_occupancy"),
            accept_length=fresh.get("accept"),
            last_batch_at=self.last_batch_at,
            gpu_utilization_ratio=gpu_utilization_ratio,
            gpus=gpus,
        )

    def _mode(self, mode: Mode, fresh: dict[str, float]) -> ModeSnapshot:
        counts = self._modes[mode]
        return ModeSnapshot(
            mode=mode,
            batches=counts.batches,
            bucket_counts=tuple(counts.bucket_counts),
            size_sum=counts.size_sum,
            batch_size=_whole(fresh.get(mode)),
            graph_batches=counts.graph_batches,
        )


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
