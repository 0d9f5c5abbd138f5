"""What can be wrong with a pipelined server, as numbers the simulator can play.

All costs are invented, but chosen near one story: 32 clients on a model that fills eight 96 GB
cards, which is fast when the micro-batches are even and slow when all sit in one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

STAGES = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """How long one stage works on one pass, and how long its result travels to the next."""

    decode_base_seconds: float = 0.0003
    decode_request_seconds: float = 0.00102
    """Per request: a mixture of experts reads more weights the more requests there are."""
    prefill_base_seconds: float = 0.002
    prefill_token_seconds: float = 4e-6
    hop_seconds: float = 0.00005
    hop_bytes_per_second: float = 5e10
    host_seconds: float = 0.0
    """Idle before each pass although its input is there: scheduler and launch work."""
    working_share: float = 1.0
    """Share of a pass in which a kernel runs; below 1 where launches cannot keep up."""
    jitter_ratio: float = 0.05
    stage_factors: tuple[float, ...] = (1.0,) * STAGES

    def decode_seconds(self, requests: int) -> float:
        """Service time of a decode pass at a stage of factor 1."""
        return self.decode_base_seconds + self.decode_request_seconds * requests

    def prefill_seconds(self, tokens: int) -> float:
        """Service time of a prefill pass at a stage of factor 1."""
        return self.prefill_base_seconds + self.prefill_token_seconds * tokens


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Clients that send their next request when the last is answered."""

    concurrency: int = 32
    prompt_tokens: int = 400
    output_tokens: int = 512
    spread_ratio: float = 0.5
    """Lengths are uniform within this share around their mean."""
    think_seconds: float = 0.004


@dataclass(frozen=True, slots=True)
class Waves:
    """Bursts of equal requests; group i of a burst reaches the queue before the i-th next slot.

    Groups are how unequal micro-batches arise on a real server: what waits when a slot's turn
    comes joins it, and stays for life.
    """

    groups: tuple[int, ...]
    prompt_tokens: int = 200
    output_tokens: int = 4096
    pause_seconds: float = 0.5


Load = ClosedLoop | Waves


@dataclass(frozen=True, slots=True)
class Window:
    """A state that comes back: from `first_seconds` on, every `period_seconds`, for `seconds`."""

    first_seconds: float
    seconds: float
    period_seconds: float

    def end_if_inside(self, elapsed: float) -> float | None:
        """End of the occurrence that holds this instant; `None` outside all of them."""
        into = elapsed - self.first_seconds
        if into < 0:
            return None
        into %= self.period_seconds
        return elapsed - into + self.seconds if into < self.seconds else None


@dataclass(frozen=True, slots=True)
class GpuFault:
    """What is wrong with one card, as far as the driver shows it."""

    gpu: int
    throttle_reason: str | None = None
    clock_ratio: float = 1.0
    extra_celsius: float = 0.0
    lost: Window | None = None
    """When the driver answers GPU_IS_LOST."""
    xid: int | None = None
    """Reported at the start of each loss."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One behavior of the whole server; every field is a setting or a cost a real one has."""

    name: str
    description: str
    """One line for `--help`."""
    loads: tuple[Load, ...] = (ClosedLoop(),)
    cost: Cost = field(default_factory=Cost)
    pp_async_batch_depth: int = 0
    pp_max_micro_batch_size: int = 4
    max_running_requests: int = 256
    chunked_prefill_size: int = 8192
    kv_tokens: int = 310_000
    decode_log_interval: int = 41
    log_level: str = "info"
    graph: bool = True
    device_timer: bool = False
    """SGLANG_ENABLE_METRICS_DEVICE_TIMER: lines end in `fwd occupancy`."""
    stall: Window | None = None
    """When no stage starts a pass."""
    fault: GpuFault | None = None
    gpm: bool = True
    power_ring: bool = True

    @property
    def slots(self) -> int:
        """Micro-batches that can be under way (`pp_loop_size`)."""
        return STAGES + self.pp_async_batch_depth


def _factors(stage: int, factor: float) -> tuple[float, ...]:
    return tuple(factor if each == stage else 1.0 for each in range(STAGES))


# Reading the weights costs, a further request hardly: splitting batches does not pay.
_DENSE = Cost(decode_base_seconds=0.004, decode_request_seconds=0.00008)
# Long contexts: attention to each request takes its time. A pass is longer than a power sample, so
# that what a card draws tells work from waiting.
_LONG_CONTEXT = Cost(decode_base_seconds=0.002, decode_request_seconds=0.03)
_LOST = Window(first_seconds=20.0, seconds=20.0, period_seconds=180.0)

_ALL = (
    Scenario("healthy", "32 requests in 8 even micro-batches; every stage works over 90 %."),
    Scenario(
        "thundering_herd",
        "32 requests in one micro-batch that travels alone through 8 stages.",
        loads=(ClosedLoop(prompt_tokens=200),),
        cost=Cost(decode_request_seconds=0.002),
        pp_max_micro_batch_size=256,
        decode_log_interval=11,
    ),
    Scenario(
        "uneven_split",
        "32 requests in micro-batches of 12, 7, 4, 3, 2, 2, 1 and 1.",
        loads=(Waves((12, 7, 4, 3, 2, 2, 1, 1)),),
        cost=replace(_LONG_CONTEXT, decode_request_seconds=0.006),
        pp_max_micro_batch_size=32,
        decode_log_interval=11,
    ),
    Scenario(
        "over_split",
        "A full pipeline of 16 micro-batches of 2, too small to pay for reading the weights.",
        cost=_DENSE,
        pp_async_batch_depth=8,
        pp_max_micro_batch_size=2,
    ),
    Scenario(
        "stage_imbalance",
        "The last stage takes 1.55 times as long (extra layer, lm_head); the others wait for it.",
        cost=replace(_LONG_CONTEXT, stage_factors=_factors(STAGES - 1, 1.55)),
        decode_log_interval=11,
    ),
    Scenario(
        "global_stall",
        "All stages stop together for 2 of every 4 seconds.",
        stall=Window(first_seconds=2.0, seconds=2.0, period_seconds=4.0),
    ),
    Scenario(
        "host_bound",
        "The scheduler's CPU work leaves every stage idle before each pass.",
        cost=Cost(host_seconds=0.005),
    ),
    Scenario(
        "prefill_interference",
        "Prompts of 16,000 tokens: decode waits behind prefill chunks.",
        loads=(
            ClosedLoop(concurrency=28),
            ClosedLoop(concurrency=4, prompt_tokens=16_000, output_tokens=16, think_seconds=2.0),
        ),
        cost=Cost(prefill_token_seconds=1.2e-5),
    ),
    Scenario(
        "client_limited",
        "4 requests are too few for 8 stages, however they are split.",
        loads=(ClosedLoop(concurrency=4),),
        cost=replace(_LONG_CONTEXT, decode_request_seconds=0.08),
        pp_max_micro_batch_size=1,
        decode_log_interval=11,
    ),
    Scenario(
        "kv_limited",
        "The KV pool is full: requests queue and are retracted.",
        loads=(ClosedLoop(concurrency=64, prompt_tokens=600, output_tokens=900),),
        pp_max_micro_batch_size=8,
        kv_tokens=32_000,
    ),
    Scenario(
        "graph_off",
        "Decode without CUDA graphs: kernels run in a fifth of each pass.",
        cost=Cost(decode_base_seconds=0.018, working_share=0.2),
        graph=False,
        device_timer=True,
    ),
    Scenario(
        "transfer_bound",
        "Hidden states crawl from stage to stage: long transfers, short passes.",
        loads=(ClosedLoop(prompt_tokens=1000),),
        cost=replace(_LONG_CONTEXT, decode_request_seconds=0.02, hop_seconds=0.15),
        decode_log_interval=11,
    ),
    Scenario(
        "gpu_fault",
        "GPU 5 throttles at 92 degrees and is 1.8 times slower.",
        cost=replace(_LONG_CONTEXT, stage_factors=_factors(5, 1.8)),
        fault=GpuFault(5, "sw_thermal_slowdown", clock_ratio=0.55, extra_celsius=34.0),
        decode_log_interval=11,
    ),
    Scenario(
        "cannot_tell",
        "Log level warning, no GPM, no power samples: kernels are resident, nothing says why.",
        log_level="warning",
        gpm=False,
        power_ring=False,
    ),
    Scenario("idle", "A started server without requests: silence after the warm-up.", loads=()),
    Scenario(
        "aliased",
        "Interval 40 with 8 micro-batches: the log shows one of 8 unequal ones for ever.",
        # 8000 decode passes a slot: the count stays a multiple of the interval from wave to wave.
        loads=(Waves((12, 6, 4, 3, 3, 2, 1, 1), output_tokens=8001),),
        cost=_DENSE,
        pp_max_micro_batch_size=32,
        decode_log_interval=40,
    ),
    Scenario(
        "gpu_lost",
        "GPU 3 falls off the bus for 20 seconds of every 3 minutes; the pipeline stands still.",
        stall=_LOST,
        fault=GpuFault(3, lost=_LOST, xid=79),
    ),
)

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}
"""By the name that `demo --scenario` takes: a verdict, or idle, aliased, gpu_lost."""
