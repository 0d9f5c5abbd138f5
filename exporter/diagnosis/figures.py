"""What a diagnosis knows of one pipeline over its steady window: numbers with units, or `None`.

`None` means "not known", never zero. A working share exists only where it was measured; by
residency and forward occupancy there is an upper bound (`…_at_most`), and no confident verdict may
rest on it. What is idle by residency is truly idle, and what exceeds the most that waiting can
show was truly work (`…_at_least`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from exporter.pipeline.figures import SlotFigures
from exporter.records import FactValue


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage over the window; shares of its observed time, 0 to 1."""

    pp_rank: int
    gpus: tuple[int, ...] = ()
    measured_ratio: float | None = None
    """Share of the time known by gpm or power, or of a lone rank whose kernels wait for nobody."""
    working_ratio: float | None = None
    """Measured working share; `None` unless nearly all of the time is measured."""
    waiting_ratio: float | None = None
    working_at_most_ratio: float | None = None
    working_at_least_ratio: float | None = None
    """By SM, DRAM and tensor activity, whatever the card's levels."""
    idle_ratio: float | None = None
    """No kernel resident on any of its GPUs."""
    momentary_utilization_ratio: float | None = None
    """A single reading of the polled gauge, where nothing better is known."""
    first_half_working_ratio: float | None = None
    second_half_working_ratio: float | None = None
    """The measured share of each half of the window: a lasting difference shows in both."""
    watts: float | None = None
    working_watts: float | None = None
    """Drawn while it works: mean power less what its known levels draw waiting and idle."""
    sm_ratio: float | None = None
    dram_ratio: float | None = None
    power_limit_share: float | None = None
    """Mean power over the limit."""
    throttled_ratio: float | None = None
    """Share of readings with a throttle reason of heat or power supply; `None` without readings."""
    throttle_reasons: tuple[str, ...] = ()
    lost_seconds: float | None = None
    """Time its GPU sent no sample while the others did, in and out of the window."""
    xids: tuple[int, ...] = ()
    lines: int = 0


@dataclass(frozen=True, slots=True)
class LogFigures:
    """What the batch lines of the window say about the whole server."""

    decode_lines: int = 0
    mean_batch_requests: float | None = None
    """Of a decode line: one micro-batch."""
    graph_ratio: float | None = None
    """Share of decode batches run as a graph."""
    queued_requests: float | None = None
    """Mean of the decode lines."""
    queued_ratio: float | None = None
    """Share of lines with requests waiting."""
    pool_ratio: float | None = None
    """Mean used share of the fullest pool."""
    retracted_requests: int = 0
    tokens_per_second: float | None = None
    """Printed generation throughput, all slots."""
    prefill_ratio: float | None = None
    """Share of time that prefill passes add between decode lines, by least squares."""
    prefill_tokens_per_second: float | None = None
    forward_occupancy_ratio: float | None = None
    silent_seconds: float | None = None
    """Longest time without a line."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One pipeline over its steady window."""

    server: str = "sglang"
    dp_rank: int = 0
    window_seconds: float | None = None
    window_started_at: float | None = None
    window_ended_at: float | None = None
    window_chosen_by: str | None = None
    lines_seen: int | None = None
    """Batch lines of this pipeline, in and out of the window; `None` where there was no log."""
    time_resolution_seconds: float = 0.0
    """How fine the instants of these lines are; 0: finer than anything asked of them."""
    facts: Mapping[str, FactValue] = field(default_factory=dict)
    pp_size: int | None = None
    """Stages of the whole pipeline."""
    local_stages: int | None = None
    """Those that are seen from here."""
    named_stages: int | None = None
    """Highest pp_rank, plus 1, that a line of the window or the map names."""
    foreign_rank_ratio: float | None = None
    """Share of the server's batch lines that were refused for ranks its sizes do not have."""
    concurrency: int | None = None
    """Requests a driver keeps in flight."""
    counted_requests: int | None = None
    """Requests in the slots by their prefill lines since the stages were idle, where no load is
    known."""
    stages: tuple[StageFigures, ...] = ()
    log: LogFigures = field(default_factory=LogFigures)
    slots: SlotFigures = field(default_factory=SlotFigures)
    effective_at_most: float | None = None
    """Most effective micro-batches there can be, where not all of their sizes are seen."""

    measured: bool = False
    """Whether the working share of every stage is measured."""
    occupancy_ratio: float | None = None
    """Mean measured working share of the stages while in flight."""
    occupancy_at_most_ratio: float | None = None
    occupancy_at_least_ratio: float | None = None
    waiting_ratio: float | None = None
    idle_ratio: float | None = None
    """Mean share of stage time without any kernel."""
    highest_working_ratio: float | None = None
    skew_ratio: float | None = None
    balance_ratio: float | None = None
    active_stages_mean: float | None = None
    variance_ratio: float | None = None
    """Variance of the number of working stages over that of independent ones; 1 independent."""
    stopped_ratio: float | None = None
    """Share of the window in which all stages stood still together although requests were there."""
    paused_ratio: float | None = None
    """The same, but the first line after it is a prefill of new requests: the clients paused."""
    longest_stop_seconds: float | None = None
    stopped_outside_seconds: float | None = None
    """Time all stages stood still under a driven load, outside the window."""
    stage_likeness: Mapping[str, float] = field(default_factory=dict)
    """By signal (sm, dram, watts): mean over highest of the stages; needs no levels."""
    likeness_leader: int | None = None
    """The stage that is highest by all of these signals; `None` if they differ."""

    single_stream_tokens_per_second: float | None = None
    """Reference at concurrency 1."""
    scaling_ratio: float | None = None
    """F = X_C / (P X_1): 1 is P single streams' worth, without gain from batching."""
    even_split_gain_ratio: float | None = None
    """Fitted throughput of the best even split over the present one."""

    def as_json(self) -> dict[str, object]:
        """All figures by name; `None` where not known."""
        return asdict(self)

    @property
    def window(self) -> tuple[float, float] | None:
        """Start and end of the window; `None` where there is none."""
        if self.window_started_at is None or self.window_ended_at is None:
            return None
        return self.window_started_at, self.window_ended_at

    @property
    def is_pipeline(self) -> bool:
        """Whether there is more than one stage."""
        return self.pp_size is not None and self.pp_size > 1

    @property
    def requests(self) -> float | None:
        """Requests in all slots together; `None` if not known."""
        if self.slots.running_requests is not None:
            return self.slots.running_requests
        if self.concurrency is None:
            return None
        return max(self.concurrency - (self.log.queued_requests or 0.0), 0.0)
