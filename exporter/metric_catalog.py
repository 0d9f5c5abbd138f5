"""Every metric this exporter can show: name, type, labels, meaning.

The one place where a metric name is written. The collector builds families only from these
specs; docs, dashboards and rules are held to them by tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "sglang_pipeline_"


class MetricType(StrEnum):
    """Prometheus metric types in use."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Group(StrEnum):
    """Headings of the documentation, in its order."""

    STAGE_LOG = "Per stage, from the log"
    STAGE_GPU = "Per stage, from its GPUs"
    PIPELINE = "Per pipeline"
    GPU = "Per GPU"
    EXPORTER = "About the exporter itself"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family. `name` is the exposed name, with `_total` for counters."""

    name: str
    type: MetricType
    labels: tuple[str, ...]
    help: str
    group: Group


_STAGE = ("server", "dp_rank", "pp_rank")
_GPU = ("gpu", "uuid")
_G, _C, _H, _S = MetricType.GAUGE, MetricType.COUNTER, MetricType.HISTOGRAM, MetricType.SUMMARY

BATCH_SIZE_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

CATALOG: dict[str, MetricSpec] = {}


def _add(group: Group, kind: MetricType, key: str, labels: tuple[str, ...], meaning: str) -> str:
    """Enters one metric and returns its key, the name without prefix."""
    CATALOG[key] = MetricSpec(PREFIX + key, kind, labels, meaning, group)
    return key


# --- per stage, from the log ---
_log = Group.STAGE_LOG
STAGE_RUNNING_REQUESTS = _add(
    _log,
    _G,
    "stage_running_requests",
    _STAGE,
    "Requests in the newest batch line of the stage: one micro-batch, not the pipeline's total. "
    "Absent when the line is stale.",
)
STAGE_BATCH_SIZE = _add(
    _log,
    _G,
    "stage_batch_size",
    (*_STAGE, "mode"),
    "Requests in the newest batch of that mode (decode: running, prefill: new). Absent when stale.",
)
STAGE_BATCH_REQUESTS = _add(
    _log,
    _H,
    "stage_batch_requests",
    (*_STAGE, "mode"),
    "Requests of each batch line. Decode lines are printed once per decode_log_interval batches, "
    "so this samples batches, it does not count them.",
)
STAGE_QUEUED_REQUESTS = _add(
    _log,
    _G,
    "stage_queued_requests",
    _STAGE,
    "Requests in the whole server's waiting queue, as this stage printed it; do not sum over "
    "stages. A value above 0 stays until a later line or the end of the process.",
)
STAGE_TOKEN_USAGE = _add(
    _log,
    _G,
    "stage_token_usage_ratio",
    (*_STAGE, "pool"),
    "Used share of the stage's whole KV pool (kv, full, swa or mamba), not of one micro-batch.",
)
STAGE_GENERATION_TOKENS_PER_SECOND = _add(
    _log,
    _G,
    "stage_generation_tokens_per_second",
    _STAGE,
    "Generated tokens per second over all micro-batches, as printed; every stage prints the same "
    "total, so do not sum over stages.",
)
STAGE_BATCHES = _add(
    _log,
    _C,
    "stage_batches_total",
    (*_STAGE, "mode"),
    "Batch lines accepted. A decode line stands for decode_log_interval batches.",
)
STAGE_GRAPH_BATCHES = _add(
    _log,
    _C,
    "stage_graph_batches_total",
    (*_STAGE, "mode"),
    "Batch lines of batches that ran as a captured graph (CUDA, CPU or NPU). Absent until a line "
    "of that mode prints the flag.",
)
STAGE_PREFILL_TOKENS = _add(
    _log,
    _C,
    "stage_prefill_tokens_total",
    (*_STAGE, "origin"),
    "Prompt tokens of prefill batches: computed, or found in the prefix cache.",
)
STAGE_RETRACTED_REQUESTS = _add(
    _log,
    _C,
    "stage_retracted_requests_total",
    _STAGE,
    "Requests thrown back into the queue because the KV pool was full.",
)
STAGE_WATCHDOG_TIMEOUTS = _add(
    _log,
    _C,
    "stage_watchdog_timeouts_total",
    _STAGE,
    "Times the scheduler's own watchdog said that it stands still (after 300 s by default). SGLang "
    "then ends the server, unless the watchdog is soft.",
)
STAGE_FORWARD_OCCUPANCY = _add(
    _log,
    _G,
    "stage_forward_occupancy_ratio",
    _STAGE,
    "SGLang's own `fwd occupancy`. It counts launch gaps as work: an upper bound, not GPU work. "
    "Absent unless the server's device timer is on.",
)
STAGE_FORWARD_IDLE_OCCUPANCY = _add(
    _log,
    _G,
    "stage_forward_idle_occupancy_ratio",
    _STAGE,
    "SGLang's own `fwd+idle occupancy`: forward time plus scheduler idle time, as a share of time.",
)
STAGE_ACCEPT_LENGTH = _add(
    _log,
    _G,
    "stage_accept_length",
    _STAGE,
    "Tokens accepted per step with speculative decoding. Absent without it.",
)
STAGE_LAST_BATCH_TIMESTAMP = _add(
    _log,
    _G,
    "stage_last_batch_timestamp_seconds",
    _STAGE,
    "When the stage's newest batch line was logged, as seconds since 1970.",
)

# --- per stage, from its GPUs ---
STAGE_GPU_UTILIZATION = _add(
    Group.STAGE_GPU,
    _G,
    "stage_gpu_utilization_ratio",
    _STAGE,
    "Share of the last complete second in which a kernel was resident on the stage's GPU (the "
    "highest of its ranks). A waiting NCCL receive is resident too: an upper bound on work.",
)

STAGE_WORKING = _add(
    Group.STAGE_GPU,
    _G,
    "stage_working_ratio",
    (*_STAGE, "method"),
    "Share of the last complete second in which the stage worked. By residency and "
    "forward_occupancy an upper bound: waiting counts as work.",
)
STAGE_SECONDS = _add(
    Group.STAGE_GPU,
    _C,
    "stage_seconds_total",
    (*_STAGE, "state", "method"),
    "Observed time of the stage by state: working, waiting (a kernel is resident but does no work) "
    "or idle. At any instant the time goes to one method; the sum is the observed time.",
)
STAGE_BUBBLE_SECONDS = _add(
    Group.STAGE_GPU,
    _C,
    "stage_bubble_seconds_total",
    _STAGE,
    "Time in which the stage did not work while its pipeline was in flight. Silence after the last "
    "evidence of a request counts nowhere.",
)
STAGE_INFLIGHT_SECONDS = _add(
    Group.STAGE_GPU,
    _C,
    "stage_inflight_seconds_total",
    _STAGE,
    "Observed time of the stage while its pipeline was in flight: the denominator of its bubble.",
)

# --- per pipeline ---
_pipe = Group.PIPELINE
_PIPELINE = ("server", "dp_rank")
INFO_FACTS = (
    "pp_size",
    "tp_size",
    "dp_size",
    "nnodes",
    "pp_async_batch_depth",
    "decode_log_interval",
    "max_running_requests",
    "pp_max_micro_batch_size",
    "version",
)
"""Facts that are labels of `info`, beside the model."""
INFO = _add(
    _pipe,
    _G,
    "info",
    (*_PIPELINE, "model", *INFO_FACTS),
    "Always 1. What is known of the server's configuration; a label is empty where it is not known.",
)
STAGES = _add(
    _pipe,
    _G,
    "stages",
    _PIPELINE,
    "Pipeline stages this exporter should see: those of its own host. Smaller than pp_size when "
    "the pipeline spans hosts.",
)
OCCUPANCY = _add(
    _pipe,
    _G,
    "occupancy_ratio",
    _PIPELINE,
    "Mean working share of the stages in the last complete second, idle load included.",
)
BUBBLE = _add(
    _pipe,
    _G,
    "bubble_ratio",
    _PIPELINE,
    "Share of stage time without work in the last complete second, while in flight. Absent while "
    "nothing is known to be in flight.",
)
ACTIVE_STAGES_SECONDS = _add(
    _pipe,
    _C,
    "active_stages_seconds_total",
    (*_PIPELINE, "stages"),
    "Time by number of stages that worked at once. Exact in its mean; its shape is as fine as "
    "active_stages_window_seconds.",
)
ACTIVE_STAGES_WINDOW_SECONDS = _add(
    _pipe,
    _G,
    "active_stages_window_seconds",
    _PIPELINE,
    "Resolution of active_stages_seconds_total: within a window stages are taken as independent.",
)
STAGE_SKEW = _add(
    _pipe,
    _G,
    "stage_skew_ratio",
    _PIPELINE,
    "Highest less lowest working share of the stages over 30 seconds. Finds uneven layers and slow "
    "GPUs; a herd of requests does not show in it. Absent below a mean of 10 %.",
)
BALANCE = _add(
    _pipe,
    _G,
    "balance_ratio",
    _PIPELINE,
    "Mean over highest working share of the stages over 30 seconds: 1 is even. Absent below a mean "
    "of 10 %.",
)
INFLIGHT_SECONDS = _add(
    _pipe,
    _C,
    "inflight_seconds_total",
    _PIPELINE,
    "Time in which the server is known to have had a request. May lag by 5 seconds.",
)
MICROBATCH_SLOTS = _add(
    _pipe,
    _G,
    "microbatch_slots",
    _PIPELINE,
    "Slots that micro-batches circulate in: pp_size + pp_async_batch_depth.",
)
MICROBATCH_SLOTS_OBSERVABLE = _add(
    _pipe,
    _G,
    "microbatch_slots_observable",
    _PIPELINE,
    "Slots the log can show at this decode_log_interval; where the number of filled slots is not "
    "known, the fewest it may be. Below the number of filled slots the log hides some for ever.",
)
EFFECTIVE_MICROBATCHES = _add(
    _pipe,
    _G,
    "effective_microbatches",
    _PIPELINE,
    "Micro-batches of equal size that would be as uneven: (sum b)^2 / sum b^2 over 30 seconds. 1 is "
    "a herd. Absent where the log does not show all slots.",
)
PREDICTED_GAIN = _add(
    _pipe,
    _G,
    "predicted_gain_ratio",
    _PIPELINE,
    "Throughput of the best even split over the present one, by a fit of stage time to batch size. "
    "Absent until two different loads allow the fit.",
)

# --- per GPU ---
_gpu = Group.GPU
GPU_INFO = _add(
    _gpu,
    _G,
    "gpu_info",
    (*_GPU, "model", "pci_bus_id", "server", "dp_rank", "pp_rank", "tp_rank"),
    "Always 1. Who the GPU is and which rank runs on it; server and ranks are empty when no rank "
    "is known to run there.",
)
GPU_UP = _add(
    _gpu,
    _G,
    "gpu_up",
    _GPU,
    "1 while the driver answers for this GPU, 0 while it does not.",
)
GPU_UTILIZATION = _add(
    _gpu,
    _G,
    "gpu_utilization_ratio",
    _GPU,
    "Share of the last complete second in which a kernel was resident. Where the driver keeps no "
    "utilization ring this is the polled gauge, which aliases, and no resident seconds are counted.",
)
GPU_RESIDENT_SECONDS = _add(
    _gpu,
    _C,
    "gpu_resident_seconds_total",
    _GPU,
    "Time with a kernel resident, integrated from the driver's ring. Divide its rate by that of "
    "observed seconds with signal utilization.",
)
GPU_SM_ACTIVE_SECONDS = _add(
    _gpu,
    _C,
    "gpu_sm_active_seconds_total",
    _GPU,
    "SM activity integrated over time (GPM). Absent where the GPU has no GPM.",
)
GPU_DRAM_ACTIVE_SECONDS = _add(
    _gpu,
    _C,
    "gpu_dram_active_seconds_total",
    _GPU,
    "DRAM activity integrated over time (GPM). Absent where the GPU has no GPM.",
)
GPU_OBSERVED_SECONDS = _add(
    _gpu,
    _C,
    "gpu_observed_seconds_total",
    (*_GPU, "signal"),
    "Time covered by samples of a signal: the denominator of the integrated shares.",
)
GPU_MISSED_SECONDS = _add(
    _gpu,
    _C,
    "gpu_missed_seconds_total",
    (*_GPU, "signal"),
    "Time between samples that no sample covers. It counts in no share.",
)
GPU_POWER_WATTS = _add(
    _gpu,
    _G,
    "gpu_power_watts",
    _GPU,
    "Board power, mean of the last complete second of the power ring, else the driver's gauge.",
)
GPU_POWER_LIMIT_WATTS = _add(
    _gpu,
    _G,
    "gpu_power_limit_watts",
    _GPU,
    "Power limit in force.",
)
GPU_ENERGY_JOULES = _add(
    _gpu,
    _C,
    "gpu_energy_joules_total",
    _GPU,
    "Energy used since the driver was loaded: its counter, read once a minute and carried on between "
    "by the power samples; without those, its counter as read every 10 seconds.",
)
GPU_MEMORY_USED_BYTES = _add(_gpu, _G, "gpu_memory_used_bytes", _GPU, "Device memory in use.")
GPU_MEMORY_TOTAL_BYTES = _add(_gpu, _G, "gpu_memory_total_bytes", _GPU, "Device memory.")
GPU_TEMPERATURE_CELSIUS = _add(_gpu, _G, "gpu_temperature_celsius", _GPU, "Core temperature.")
GPU_SM_CLOCK_HERTZ = _add(_gpu, _G, "gpu_sm_clock_hertz", _GPU, "SM clock.")
GPU_PCIE_TRANSMIT_BYTES = _add(
    _gpu,
    _C,
    "gpu_pcie_transmit_bytes_total",
    _GPU,
    "Bytes the GPU sent over PCIe, from the driver's cumulative counter, read every 10 seconds.",
)
GPU_PCIE_RECEIVE_BYTES = _add(
    _gpu,
    _C,
    "gpu_pcie_receive_bytes_total",
    _GPU,
    "Bytes the GPU received over PCIe, from the driver's cumulative counter, read every 10 seconds.",
)
GPU_THROTTLED_SECONDS = _add(
    _gpu,
    _C,
    "gpu_throttled_seconds_total",
    (*_GPU, "reason"),
    "Time the driver named this reason for a reduced clock, sampled every 2 seconds. A reason "
    "appears when first seen.",
)
GPU_XID_ERRORS = _add(
    _gpu,
    _C,
    "gpu_xid_errors_total",
    (*_GPU, "xid"),
    "XID errors the driver reported. An XID appears when first seen; some are never reported, see "
    "gpu_up.",
)
GPU_LAST_SAMPLE_TIMESTAMP = _add(
    _gpu,
    _G,
    "gpu_last_sample_timestamp_seconds",
    _GPU,
    "When the newest sample of any signal was taken, as seconds since 1970.",
)

# --- about the exporter itself ---
_self = Group.EXPORTER
BUILD_INFO = _add(
    _self,
    _G,
    "exporter_build_info",
    ("version", "python_version"),
    "Always 1.",
)
SOURCE_UP = _add(
    _self,
    _G,
    "exporter_source_up",
    ("source",),
    "1 while the source is read, 0 while it cannot be (the log and the landing page say why).",
)
JOURNAL_LINES = _add(
    _self,
    _C,
    "exporter_journal_lines_total",
    (),
    "Log entries read after the unit match, whatever they hold.",
)
UNVERIFIED_LINES = _add(
    _self,
    _C,
    "exporter_unverified_lines_total",
    ("source",),
    "Accepted batch lines whose process could not be known (files, containers, pipes).",
)
RECOMMENDATION = _add(
    _self,
    _G,
    "exporter_recommendation",
    ("setting",),
    "1: this setting of SGLang or of the host would show more. Absent otherwise.",
)
JOURNAL_GAPS = _add(
    _self,
    _C,
    "exporter_journal_gaps_total",
    (),
    "Times log entries were lost before they could be read: a vanished cursor, a corrupt file.",
)
JOURNAL_SUPPRESSED_MESSAGES = _add(
    _self,
    _C,
    "exporter_journal_suppressed_messages_total",
    (),
    "Messages journald says it dropped by its rate limit.",
)
JOURNAL_LAG_SECONDS = _add(
    _self,
    _G,
    "exporter_journal_lag_seconds",
    (),
    "Age of the newest entry when it was read: how far behind the exporter is. Absent before the "
    "first entry.",
)
REJECTED_LINES = _add(
    _self,
    _C,
    "exporter_rejected_lines_total",
    ("reason",),
    "Lines that look like SGLang's and were refused. They changed no other series.",
)
UNKNOWN_FIELDS = _add(
    _self,
    _C,
    "exporter_unknown_fields_total",
    (),
    "Fields of accepted batch lines that this version does not know and ignored.",
)
CRASHES = _add(
    _self,
    _C,
    "exporter_crashes_total",
    ("source",),
    "Exceptions nobody foresaw, by the source, or the exporter's own task, that met one and went on "
    "or was begun again: a bug to report. A source that cannot be read is none.",
)
NVML_CALL_SECONDS = _add(
    _self,
    _S,
    "exporter_nvml_call_seconds",
    ("call",),
    "Wall time spent in calls of the driver's library.",
)
NVML_ERRORS = _add(
    _self,
    _C,
    "exporter_nvml_errors_total",
    ("call", "code"),
    "Calls of the driver's library that failed. NOT_SUPPORTED is counted once a probe.",
)
SAMPLES = _add(
    _self,
    _C,
    "exporter_samples_total",
    ("signal",),
    "Samples of GPU signals read from the driver.",
)
CONFIG_LAST_RELOAD_SUCCESSFUL = _add(
    _self,
    _G,
    "exporter_config_last_reload_successful",
    (),
    "1 if the configuration in force is the newest one, 0 if the newest one was refused; the web "
    "configuration and its certificates count, too.",
)
CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP = _add(
    _self,
    _G,
    "exporter_config_last_reload_success_timestamp_seconds",
    (),
    "When the configuration in force was loaded, as seconds since 1970. A file that is read again "
    "and says the same does not count.",
)
HTTP_REFUSED = _add(
    _self,
    _C,
    "exporter_http_refused_total",
    ("reason",),
    "Connections and requests refused by a limit or as malformed. Wrong paths, methods and "
    "parameters are answered, not counted.",
)
