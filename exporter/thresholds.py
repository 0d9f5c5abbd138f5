"""When a figure is a fault: one threshold an alert, each with its reason and where that is from.

Alerting rules repeat these numbers because operators read and edit them; tests hold the two
together. Dashboards color by them, and a verdict is given by the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ALERT_PREFIX = "SglangPipeline"


class Severity(StrEnum):
    """What an alert asks for."""

    CRITICAL = "critical"
    """Page: requests get no answer, or wait although GPU time is unused."""
    WARNING = "warning"
    """Look at it today: a cause, or capacity that is paid for and not used."""
    INFO = "info"
    """Nothing is wrong with the server, but something about it cannot be seen."""


class Fires(StrEnum):
    """On which side of its value an alert fires, as PromQL writes it."""

    ABOVE = ">"
    AT_OR_ABOVE = ">="
    BELOW = "<"
    AT_OR_BELOW = "<="
    EQUAL = "=="


@dataclass(frozen=True, slots=True)
class Threshold:
    """One alert's number.

    Attributes:
        metric: The metric or recording rule that is compared.
        value: The number it is compared with, in `unit`.
        unit: `ratio` (0 to 1), `seconds`, `events`, `lines`, `micro-batches`, `requests`, `state`.
        window_seconds: Time the figure covers; 0 for a momentary one.
        for_seconds: How long it must hold. Twice the window or more, except for counted events.
        reason: Why this number; with its source.
        gates: Further numbers of the same expression, by what they mean: without them an idle
            or a drained server would alert.
    """

    metric: str
    fires: Fires
    value: float
    unit: str
    window_seconds: int
    for_seconds: int
    severity: Severity
    reason: str
    gates: Mapping[str, float] = field(default_factory=dict)


LEAST_INFLIGHT_RATIO = 0.5
"""Share of a window with requests in flight, below which its shares speak of too little."""
LEAST_BATCH_REQUESTS = 2.0
"""Mean requests of a batch from which splitting could fill another micro-batch. With one request
a batch there is nothing to split: too few clients are no fault of the server."""
LEAST_MEASURED_RATIO = 0.9
"""Share of a stage's time that must be known by gpm or power before stages are compared: by
residency a waiting stage looks like a working one."""
LEAST_WORKING_RATIO = 0.1
"""Stages that work less on average say nothing about their differences (definition of skew)."""
HIGH_BUBBLE_RATIO = 0.4
"""Share of stage time lost in flight from which it is a fault of its own."""
FULL_POOL_RATIO = 0.9
"""Used share of a KV pool from which it keeps requests waiting."""

_MINUTE = 60
_CRITICAL, _WARNING, _INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO

THRESHOLDS: dict[str, Threshold] = {
    # --- the pipeline does its work badly ---
    "StageSkewHigh": Threshold(
        "pipeline:sglang_pipeline_stage_skew:ratio_rate5m",
        Fires.AT_OR_ABOVE,
        0.25,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "One slow stage of eight that leaves the others a quarter of their time has a load balance "
        "(mean over highest) of 0.78; POP's efficiency metrics call 0.8 and more acceptable.",
        {"in flight": LEAST_INFLIGHT_RATIO, "measured": LEAST_MEASURED_RATIO},
    ),
    "BubbleRatioHigh": Threshold(
        "pipeline:sglang_pipeline_bubble:ratio_rate5m",
        Fires.AT_OR_ABOVE,
        HIGH_BUBBLE_RATIO,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "Twice the 0.2 that POP's efficiency metrics accept as lost. M equal micro-batches in P "
        "stages leave 1 - M/P, and batches of two requests could be twice as many micro-batches.",
        {"in flight": LEAST_INFLIGHT_RATIO, "batch": LEAST_BATCH_REQUESTS},
    ),
    "ThunderingHerd": Threshold(
        "pipeline:sglang_pipeline_effective_microbatches:max",
        Fires.AT_OR_BELOW,
        1.5,
        "micro-batches",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "The verdict's own bound: at most 1.5 effective micro-batches, or a quarter of the stages "
        "where that is more, while the bubble is high.",
        {
            "stages to a micro-batch": 4.0,
            "bubble": HIGH_BUBBLE_RATIO,
            "in flight": LEAST_INFLIGHT_RATIO,
            "batch": LEAST_BATCH_REQUESTS,
        },
    ),
    "PipelineStalled": Threshold(
        "pipeline:sglang_pipeline_occupancy:ratio_rate1m",
        Fires.BELOW,
        0.05,
        "ratio",
        1 * _MINUTE,
        2 * _MINUTE,
        _CRITICAL,
        "No line and no work for 3 minutes while requests wait: earlier than SGLang's own watchdog, "
        "which ends the scheduler after 300 s (watchdog_timeout).",
    ),
    "StageSilent": Threshold(
        "stage:sglang_pipeline_stage_batches:increase5m",
        Fires.EQUAL,
        0.0,
        "lines",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "Every stage prints the lines of all micro-batches, so a stage without one while others "
        "print five, or while its GPU is measured to work, is not heard.",
        {
            "lines of others": 5.0,
            "working": LEAST_WORKING_RATIO,
            "measured": LEAST_MEASURED_RATIO,
        },
    ),
    "QueueWithIdleStages": Threshold(
        "pipeline:sglang_pipeline_bubble:ratio_rate5m",
        Fires.AT_OR_ABOVE,
        0.3,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _CRITICAL,
        "Users wait in the queue while GPU time is unused and the pool has room; 0.2 is what POP still accepts as lost, "
        "and one stage 1.5 times slower leaves 0.29.",
        {"in flight": LEAST_INFLIGHT_RATIO, "full pool": FULL_POOL_RATIO},
    ),
    "MicrobatchesNotObservable": Threshold(
        "pipeline:sglang_pipeline_microbatch_slots_observable:max",
        Fires.BELOW,
        1.0,
        "ratio",
        0,
        15 * _MINUTE,
        _INFO,
        "The log shows A / gcd(A, decode_log_interval) of A filled slots: with SGLang's default of "
        "40 and 8 filled slots the same one for ever (the value is the share of slots shown).",
    ),
    "DecodeWithoutGraph": Threshold(
        "pipeline_mode:sglang_pipeline_stage_graph_batches:ratio_rate5m",
        Fires.BELOW,
        0.5,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "Most decode batches are launched kernel by kernel; measured on an H200, kernels then ran "
        "in 16 to 23 % of the time.",
    ),
    "KvPoolExhausted": Threshold(
        "pipeline_pool:sglang_pipeline_stage_token_usage:ratio_max",
        Fires.AT_OR_ABOVE,
        FULL_POOL_RATIO,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "A pool this full, with requests queued or thrown back, bounds the batches; it is where "
        "the verdict kv_limited begins.",
    ),
    # --- GPUs ---
    "GpuLost": Threshold(
        "sglang_pipeline_gpu_up",
        Fires.EQUAL,
        0.0,
        "state",
        5 * _MINUTE,
        1 * _MINUTE,
        _CRITICAL,
        "The driver did not answer for the GPU within the last 5 minutes; a pipeline cannot go on "
        "without one of its stages, and a card off the bus does not come back by itself.",
    ),
    "GpuXid": Threshold(
        "sglang_pipeline_gpu_xid_errors_total",
        Fires.ABOVE,
        0.0,
        "events",
        10 * _MINUTE,
        0,
        _WARNING,
        "The driver reports an XID only for an error; it stands for 10 minutes so that it is seen.",
    ),
    "GpuThrottled": Threshold(
        "sglang_pipeline_gpu_throttled_seconds_total",
        Fires.AT_OR_ABOVE,
        0.1,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "Heat or the power supply holds the clock down for a tenth of the time, and the slowest "
        "stage sets the pace of all; a software power cap is a card's normal work and not counted.",
    ),
    # --- what is seen of it ---
    "ExporterSourceDown": Threshold(
        "sglang_pipeline_exporter_source_up",
        Fires.EQUAL,
        0.0,
        "state",
        0,
        5 * _MINUTE,
        _WARNING,
        "A source is opened again within a minute; after 5 it needs what its message asks for.",
    ),
    "ConfigReloadFailed": Threshold(
        "sglang_pipeline_exporter_config_last_reload_successful",
        Fires.EQUAL,
        0.0,
        "state",
        0,
        5 * _MINUTE,
        _WARNING,
        "A file that is being edited may be wrong for a moment; what stays wrong is not in force, and "
        "an exporter started anew with it would not start.",
    ),
    "JournalLagging": Threshold(
        "sglang_pipeline_exporter_journal_lag_seconds",
        Fires.AT_OR_ABOVE,
        10.0,
        "seconds",
        1 * _MINUTE,
        5 * _MINUTE,
        _WARNING,
        "Lines more than a few seconds late no longer meet the GPU windows of their time (in flight "
        "bridges 5 s), and at 30 s they are stale when they arrive.",
    ),
    "JournalLosingLines": Threshold(
        "sglang_pipeline_exporter_journal_suppressed_messages_total",
        Fires.ABOVE,
        0.0,
        "events",
        10 * _MINUTE,
        0,
        _WARNING,
        "Lost lines make counters too low and passes over the slots wrong; journald's default drops "
        "beyond 10,000 messages in 30 s.",
    ),
    "LinesRejected": Threshold(
        "sglang_pipeline_exporter_rejected_lines_total",
        Fires.AT_OR_ABOVE,
        0.2,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "A fifth of the lines that look like SGLang's are refused: a new format, a pipe that hides "
        "the processes, or somebody who forges lines; a few a minute are what prompts can cause.",
        {"lines": 10.0},
    ),
    "SamplesMissed": Threshold(
        "sglang_pipeline_gpu_missed_seconds_total",
        Fires.AT_OR_ABOVE,
        0.05,
        "ratio",
        5 * _MINUTE,
        10 * _MINUTE,
        _WARNING,
        "The rings are drained without loss every second or two; a twentieth of the time missed means "
        "that the driver or this process stands still.",
    ),
    "TargetDown": Threshold(
        "up",
        Fires.EQUAL,
        0.0,
        "state",
        0,
        3 * _MINUTE,
        _WARNING,
        "Longer than a restart; every other alert of that host is silent meanwhile.",
    ),
}
"""By alert name without `ALERT_PREFIX`."""
