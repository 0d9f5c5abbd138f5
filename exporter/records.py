"""The records that cross a boundary: what sources emit and the pipeline model folds.

Frozen, typed, without behavior. `None` always means "not known"; it never means zero.
Those made for every line are tuples: a frozen dataclass takes three times as long to make.
Instants end in `_at` and are wall-clock epoch seconds (the driver's and journald's common
unit), so that GPU windows and log lines join.

Log word → field → metric (SGLang 0.5.23, `srt/observability/metrics_reporter.py`):

    #running-req               running_reqs                      stage_running_requests
    #new-seq                   new_seqs                          stage_batch_size{mode="prefill"}
    #new-token / #cached-token new_tokens / cached_tokens        stage_prefill_tokens_total
    #queue-req                 queued_reqs                       stage_queued_requests
    token usage, full …, swa … token_usage_ratios                stage_token_usage_ratio
    gen throughput (token/s)   gen_throughput_tokens_per_second  stage_generation_tokens_per_second
    cuda graph (cpu, npu, …)   graph                             stage_graph_batches_total
    accept len                 accept_length                     stage_accept_length
    fwd occupancy              forward_occupancy_ratio           stage_forward_occupancy_ratio
    fwd+idle occupancy         forward_idle_occupancy_ratio      stage_forward_idle_occupancy_ratio
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Mode(StrEnum):
    """What a batch line speaks of."""

    DECODE = "decode"
    PREFILL = "prefill"


class Signal(StrEnum):
    """A GPU signal that is integrated over time."""

    UTILIZATION = "utilization"
    POWER = "power"
    GPM = "gpm"


class Refusal(StrEnum):
    """Why a line that looks like SGLang's was not counted (label `reason`)."""

    NOT_WHOLE = "not_whole"  # journald or a container runtime cut it
    GLUED = "glued"  # a batch line that does not start at the first column
    MALFORMED = "malformed"  # the header matches, the rest does not
    NOT_SCHEDULER = "not_scheduler"  # the process that wrote it is no sglang::scheduler
    RANK_MISMATCH = "rank_mismatch"  # ranks in the text differ from the process title's
    RANK_OUT_OF_BOUNDS = "rank_out_of_bounds"
    VALUE_OUT_OF_BOUNDS = "value_out_of_bounds"
    UNVERIFIABLE = "unverifiable"  # its process is unknown, while this server's processes are known
    NOT_MAIN = "not_main"  # server_args= or "fired up" from a scheduler or a helper process
    REPEATED_ARGS = (
        "repeated_args"  # a second server_args= of the same launch, or one after "fired up"
    )
    LATE = "late"  # older than what was already folded


# --- the log -----------------------------------------------------------------------------------


class LogLine(NamedTuple):
    """One whole log entry, exactly as delivered, before anybody judged it."""

    server: str
    logged_at: float
    message: str
    pid: int | None = None
    title: str | None = None
    """The command line of the process that wrote it, from a trusted place (journald's `_CMDLINE`).
    `None`: cannot be known here (files, containers, recordings without one)."""
    launch: str | None = None
    """Names one launch of the server (systemd invocation id). `None` where there is no such thing."""
    facts_only: bool = False
    """Read while looking back for the running server's facts: its batches were counted before or
    happened before the exporter's first start, so it counts in no series."""


class Batch(NamedTuple):
    """One accepted Prefill or Decode line of a scheduler process.

    `running_reqs` of a decode line is the size of one micro-batch, not of the pipeline;
    `queued_reqs`, throughput and token usage speak of the whole server.
    """

    server: str
    logged_at: float
    mode: Mode
    dp_rank: int
    pp_rank: int
    tp_rank: int
    pid: int | None
    running_reqs: int | None
    queued_reqs: int | None = None
    new_seqs: int | None = None
    new_tokens: int | None = None
    cached_tokens: int | None = None
    pending_tokens: int | None = None
    retracted_reqs: int | None = None
    token_usage_ratios: Mapping[str, float] = MappingProxyType({})
    """By pool: kv, full, swa, mamba."""
    gen_throughput_tokens_per_second: float | None = None
    graph: bool | None = None
    accept_length: float | None = None
    forward_occupancy_ratio: float | None = None
    forward_idle_occupancy_ratio: float | None = None
    forward_iteration: int | None = None
    unknown_fields: int = 0
    verified: bool = False
    """Whether the process that wrote it is known to be a scheduler."""


FactValue = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of a server's configuration: allow-listed arguments only, never a key.

    Later facts of the same launch add to earlier ones. `new_launch` starts the server anew:
    stages, their PIDs and GPUs of the launch before are gone.
    """

    server: str
    known_at: float
    facts: Mapping[str, FactValue]
    origin: str
    """server_args, capacity_line, server_info, configuration, recording."""
    new_launch: bool = False


class EventKind(StrEnum):
    """What else a server says about itself."""

    FIRED_UP = "fired_up"
    RETRACTION = "retraction"
    SCHEDULER_EXCEPTION = "scheduler_exception"
    WATCHDOG = "watchdog"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An accepted line that is no batch; ranks are `None` for the main process."""

    server: str
    happened_at: float
    kind: EventKind
    dp_rank: int | None = None
    pp_rank: int | None = None
    tp_rank: int | None = None
    pid: int | None = None
    count: int | None = None
    """Retracted requests, for RETRACTION."""


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that looked like SGLang's and was refused; its text is not kept."""

    server: str
    logged_at: float
    reason: Refusal


# --- GPUs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Who a GPU is; emitted when it is first seen and when it comes back."""

    gpu: int
    uuid: str
    model: str | None = None
    pci_bus_id: str | None = None
    power_limit_watts: float | None = None
    multiprocessors: int | None = None


@dataclass(frozen=True, slots=True)
class RingSamples:
    """New samples of one of the driver's rings, oldest first: (taken_at, value) pairs.

    Each value holds for the `nominal_seconds` that end at its own instant. Values: kernel-resident
    share 0 to 1 (UTILIZATION), watts (POWER). Check: `nvidia-smi dmon`, though that shows the polled
    gauge, not the ring.
    """

    gpu: int
    signal: Signal
    nominal_seconds: float
    samples: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class GpmWindow:
    """Activity between two GPM samples of one GPU, each a share 0 to 1 of the window."""

    gpu: int
    started_at: float
    ended_at: float
    sm_ratio: float | None = None
    occupancy_ratio: float | None = None
    dram_ratio: float | None = None
    tensor_ratio: float | None = None
    graphics_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuGauges:
    """Momentary readings of one GPU; `None` where the driver does not answer them.

    `energy_joules`, `pcie_transmit_bytes`, `pcie_receive_bytes` count since the driver was loaded.
    """

    gpu: int
    read_at: float
    polled_utilization_ratio: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    sm_clock_hertz: float | None = None
    pcie_transmit_bytes: int | None = None
    pcie_receive_bytes: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU stopped answering (`up` false, with the driver's word) or came back."""

    gpu: int
    changed_at: float
    up: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class XidError:
    """The driver reported an XID for a GPU."""

    gpu: int
    happened_at: float
    xid: int


class Method(StrEnum):
    """What a working share was measured by, best first (label `method`)."""

    GPM = "gpm"
    POWER = "power"
    FORWARD_OCCUPANCY = "forward_occupancy"
    RESIDENCY = "residency"


@dataclass(frozen=True, slots=True)
class ActivityWindow:
    """How one GPU spent a stretch of time: shares 0 to 1 that add up to one with idle.

    `waiting_ratio` is `None` by residency and forward occupancy, where working is an upper bound.
    """

    gpu: int
    started_at: float
    ended_at: float
    working_ratio: float
    waiting_ratio: float | None
    method: Method


# --- who runs where ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A compute process on a GPU, with its title (`/proc/PID/cmdline`) where it can be read."""

    gpu: int
    pid: int
    title: str | None
    memory_bytes: int | None = None
    parent_pid: int | None = None
    """The process that started it: all schedulers of one server have the same."""


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    """All compute processes on all answering GPUs at one instant."""

    seen_at: float
    gpus: tuple[int, ...]
    """The GPUs that answered; a GPU not named here says nothing about its processes."""
    processes: tuple[GpuProcess, ...]


@dataclass(frozen=True, slots=True)
class StageGpu:
    """One rank of a server and the GPU it runs on."""

    dp_rank: int
    pp_rank: int
    tp_rank: int
    gpu: int
    uuid: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class StageMap:
    """Which GPU each rank of a server runs on; replaces the map before it."""

    server: str
    mapped_at: float
    stages: tuple[StageGpu, ...]
    origin: str
    """configuration, process_title, formula, recording."""


# --- what only recordings and load drivers know ------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActivityLevel:
    """What a GPU reads in one state; `None` where it was not learned."""

    watts: float | None = None
    sm_ratio: float | None = None
    dram_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuLevels:
    """What had been learned of a GPU's own idle, waiting and working levels."""

    gpu: int
    idle: ActivityLevel | None = None
    waiting: ActivityLevel | None = None
    working: ActivityLevel | None = None


class LoadPhase(StrEnum):
    """Edge of a driven load."""

    START = "start"
    END = "end"


@dataclass(frozen=True, slots=True)
class LoadEvent:
    """A driven load starts or ends; what it achieved stands in the end."""

    happened_at: float
    phase: LoadPhase
    concurrency: int | None = None
    """Requests kept in flight."""
    output_tokens: int | None = None
    seconds: float | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class ThroughputReference:
    """Output tokens per second measured at some concurrency, usually a single stream."""

    concurrency: int
    output_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class ServerRemoved:
    """A server is watched no more, or something else now has its name: all of it is forgotten."""

    server: str
    removed_at: float


@dataclass(frozen=True, slots=True)
class GpusRemoved:
    """GPUs are read no more: all of them are forgotten."""

    removed_at: float


Record = (
    LogLine
    | Batch
    | ServerFacts
    | ServerEvent
    | RefusedLine
    | GpuIdentity
    | RingSamples
    | GpmWindow
    | GpuGauges
    | GpuState
    | XidError
    | GpuProcesses
    | StageMap
    | GpuLevels
    | LoadEvent
    | ThroughputReference
    | ServerRemoved
    | GpusRemoved
)


# --- what a source says about itself -----------------------------------------------------------


@dataclass(slots=True)
class SourceHealth:
    """Counters a source keeps about its own work; read at scrape time, written by the source alone."""

    name: str
    """Label `source`: journal:SERVER, files:SERVER, stdin:SERVER, server:SERVER, nvml, recording."""
    up: bool = False
    last_error: str | None = None
    """What went wrong and the remedy, for the log and the landing page; never log text."""
    lines: int = 0
    """Entries read, whatever they hold."""
    gaps: int = 0
    suppressed_messages: int = 0
    lag_seconds: float | None = None
    read_refusals: dict[Refusal, int] = field(default_factory=dict)
    """Lines the source itself refused before they became records (not whole, glued)."""


@dataclass(slots=True)
class DriverHealth:
    """What the NVML source counts about the driver; same rules as `SourceHealth`."""

    call_counts: dict[str, int] = field(default_factory=dict)
    call_seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[tuple[str, str], int] = field(default_factory=dict)
    """By (call, code name)."""
    samples: dict[Signal, int] = field(default_factory=dict)


@dataclass(slots=True)
class ConfigHealth:
    """How the newest attempt to load the configuration went; read at scrape time."""

    newest_in_force: bool = True
    loaded_at: float | None = None
    """When the configuration in force was loaded, epoch seconds; `None`: there is none."""


class SourceUnavailableError(Exception):
    """A source cannot be read now: what was attempted, what the system answered, what to do."""


class FatalSourceError(Exception):
    """Only a new process helps (driver and library versions differ): say why and exit non-zero."""
