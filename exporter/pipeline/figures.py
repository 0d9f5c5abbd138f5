"""What is known of one pipeline at one instant; what the clocks and slot observers hand out.

`None` means "not known" or "not observable"; no series is shown for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from exporter.records import Method


class StageState(StrEnum):
    """How a stage spends its time (label `state`)."""

    WORKING = "working"
    WAITING = "waiting"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage of a pipeline as its GPUs show it."""

    pp_rank: int
    seconds: Mapping[tuple[StageState, Method], float]
    """Observed time, integrated; their sum is the observed time. A method that cannot tell waiting
    has none."""
    bubble_seconds: float
    """Not working while the pipeline was in flight."""
    inflight_seconds: float
    """Observed while the pipeline was in flight: the denominator of bubble_seconds."""
    working_ratio: float | None
    """Working share of the last complete second."""
    waiting_ratio: float | None
    method: Method | None
    """What most of that second is known by."""
    mean_working_ratio: float | None
    """Working share of the last 30 seconds."""
    rank_spread_ratio: float | None
    """Highest less lowest working share of the tensor-parallel ranks, last 30 seconds."""


@dataclass(frozen=True, slots=True)
class Variance:
    """Why the stages' working shares differ, over the last 30 seconds.

    Law of total variance: persistent (between the stages' means: layers, GPUs) plus temporal (of
    each stage over time: bursts), at the resolution of the windows.
    """

    persistent: float
    temporal: float
    persistent_share: float | None
    """Persistent of both; `None` where nothing varies."""
    active_ratio: float | None
    """Variance of the number of working stages over that of independent stages: about 1
    independent, far below 1 one batch travels, far above 1 all stop together. `None` if windows are
    too long to show it, or above 95 % or below 5 % occupancy."""
    active_ratio_at_least: float | None
    """Lower bound of the same, which holds for windows of any length."""


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """How the requests are spread over the micro-batch slots."""

    slots: int | None = None
    """pp_size + pp_async_batch_depth."""
    observable: int | None = None
    """Slots the log can show: with A active ones and a line every D batches, A / gcd(A, D). If A is
    not known: all of them if D is coprime to every possible A, else the fewest of any A."""
    aliased: bool | None = None
    """Whether the log interval hides slots (A known), or may hide some (A not known)."""
    active: int | None = None
    """Slots that hold requests."""
    active_from: str | None = None
    """The evidence for `active`."""
    active_at_least: int | None = None
    """Lower bound: that many stages worked at the same time on the average."""
    sizes: tuple[int, ...] | None = None
    """Requests in each active slot, newest pass, in ring order."""
    effective: float | None = None
    """(Σb)² / Σb² of a pass, mean of the last 30 seconds."""
    size_variation: float | None = None
    """Standard deviation over mean of the slot sizes, empty slots included."""
    fairness: float | None = None
    """Jain's index over all slots: effective / slots."""
    running_requests: float | None = None
    """Requests in all slots, mean of the last 30 seconds."""
    suggested_interval: int | None = None
    """A decode_log_interval that hides no slot; `None` where the present one hides none."""
    reason: str | None = None
    """Why something above is not observable."""


@dataclass(frozen=True, slots=True)
class SecondFigures:
    """One second of a pipeline, for a timeline; shares by pp_rank, stages not seen left out."""

    second: int
    working: Mapping[int, float]
    waiting: Mapping[int, float]
    in_flight_ratio: float | None
    """Share of the second in flight; `None` while that is not decided."""


@dataclass(frozen=True, slots=True)
class PipelineFigures:
    """One pipeline of a server (one dp_rank): the stages this exporter sees."""

    dp_rank: int
    stages: tuple[StageFigures, ...]
    expected_stages: int | None
    """Stages that should be seen on this node; whole-pipeline shares need them all."""
    observed_seconds: float
    """Time in which all of them were seen: the sum of `active_stages_seconds`."""
    active_stages_seconds: tuple[float, ...]
    """Time with 0, 1, … stages working; empty before all stages were seen."""
    active_stages_window_seconds: float | None
    """The resolution of that: the longest windows any stage is seen through."""
    inflight_seconds: float
    """Time known to be in flight, seen by GPUs or not."""
    in_flight: bool
    occupancy_ratio: float | None
    """Mean working share of the stages, last complete second, idle load included."""
    bubble_ratio: float | None
    """Share not working of the in-flight stage time of the last second in flight."""
    inflight_occupancy_ratio: float | None
    """Mean working share of the stages while in flight, last 30 seconds."""
    skew_ratio: float | None
    """Highest less lowest mean working share of the stages, last 30 seconds."""
    balance_ratio: float | None
    """Mean over highest, last 30 seconds."""
    active_stages_mean: float | None
    """Mean number of working stages while in flight, last 30 seconds."""
    variance: Variance | None
    slots: SlotFigures
    predicted_gain_ratio: float | None
    """Throughput of the best even split over the present one; `None` until it can be fitted."""
    late_seconds: float
    """GPU time whose windows came too late to count."""
