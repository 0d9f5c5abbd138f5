"""What the pipeline model knows at one instant: the collector, pages and the API read nothing else.

`None` and missing keys mean "not known": no series is shown for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.pipeline.figures import PipelineFigures
from exporter.records import FactValue, Mode, Refusal, Signal


@dataclass(frozen=True, slots=True)
class ModeSnapshot:
    """Batch lines of one stage and mode."""

    mode: Mode
    batches: int
    bucket_counts: tuple[int, ...]
    """Lines per bucket of `BATCH_SIZE_BUCKETS`, not cumulated; the last entry is +Inf."""
    size_sum: int
    batch_size: int | None
    graph_batches: int | None


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """One pipeline stage of one data-parallel replica."""

    dp_rank: int
    pp_rank: int
    modes: tuple[ModeSnapshot, ...]
    computed_tokens: int
    cached_tokens: int
    retracted_requests: int
    watchdog_timeouts: int
    running_reqs: int | None
    queued_reqs: int | None
    token_usage_ratios: Mapping[str, float]
    generation_tokens_per_second: float | None
    forward_occupancy_ratio: float | None
    forward_idle_occupancy_ratio: float | None
    accept_length: float | None
    last_batch_at: float | None
    gpu_utilization_ratio: float | None
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One SGLang server."""

    name: str
    facts: Mapping[str, FactValue]
    stages: tuple[StageSnapshot, ...]
    pipelines: tuple[PipelineFigures, ...]
    """By dp_rank: working shares, bubbles, slots."""
    unverified_lines: int
    mapped_by: str | None
    """How stages were matched with GPUs; `None` while they are not."""


@dataclass(frozen=True, slots=True)
class GpuRank:
    """The rank that runs on a GPU."""

    server: str
    dp_rank: int
    pp_rank: int
    tp_rank: int


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One GPU. Integrals are seconds (share x time), by signal."""

    gpu: int
    uuid: str
    model: str | None
    pci_bus_id: str | None
    ranks: tuple[GpuRank, ...]
    up: bool | None
    """`None` for a GPU that a stage map names and nobody has seen."""
    down_reason: str | None
    utilization_ratio: float | None
    resident_seconds: float | None
    sm_active_seconds: float | None
    dram_active_seconds: float | None
    observed_seconds: Mapping[Signal, float]
    missed_seconds: Mapping[Signal, float]
    power_watts: float | None
    power_limit_watts: float | None
    energy_joules: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: float | None
    sm_clock_hertz: float | None
    pcie_transmit_bytes: int | None
    pcie_receive_bytes: int | None
    throttled_seconds: Mapping[str, float]
    xid_errors: Mapping[int, int]
    last_sample_at: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything, at `taken_at` (epoch seconds of the clock the records carry)."""

    taken_at: float
    servers: tuple[ServerSnapshot, ...]
    gpus: tuple[GpuSnapshot, ...]
    refused_lines: Mapping[Refusal, int]
    unknown_fields: int
    recommendations: tuple[str, ...]
