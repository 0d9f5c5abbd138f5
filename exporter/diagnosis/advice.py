"""A diagnosis → what to do: SGLang's flags as the server's version knows them. Pure.

Names and versions of flags: SGLang's ServerArgs of 0.4.6.post2 to 0.5.23.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from exporter.diagnosis.figures import Figures
from exporter.diagnosis.findings import Missing, Verdict
from exporter.diagnosis.stage_hypotheses import slowest_stage
from exporter.diagnosis.verdict import Diagnosis
from exporter.pipeline.micro_batches import coprime_interval

Release = tuple[int, ...]

_PP_MAX_MICRO_BATCH_SIZE: Release = (0, 5, 3, 1)
_ASYNC_DEPTH: Release = (0, 5, 7)
_DYNAMIC_CHUNKING: Release = (0, 5, 7)
_DEVICE_TIMER_LINES: Release = (0, 5, 11)
_CUDA_GRAPH_CONFIG: Release = (0, 5, 14)


def release_of(figures: Figures) -> Release | None:
    """The server's version as numbers (`0.5.3.post1` → 0, 5, 3, 1); `None` if not known."""
    version = figures.facts.get("version")
    match = (
        re.match(r"(\d+)\.(\d+)\.(\d+)(?:\.post(\d+))?", version)
        if isinstance(version, str)
        else None
    )
    return tuple(int(part or 0) for part in match.groups()) if match else None


def knows(figures: Figures, since: Release) -> bool:
    """Whether the server's version has what came with a release; an unknown version is a new one."""
    release = release_of(figures)
    return release is None or release >= since


def advice(diagnosis: Diagnosis) -> list[str]:
    """What to try, the verdict's own first; then what would show more."""
    figures = diagnosis.figures
    found = []
    for verdict in (diagnosis.verdict, *diagnosis.also):
        remedy = _REMEDIES.get(verdict)
        if remedy is not None:
            found += remedy(figures)
    for missing in diagnosis.missing:
        found += _SHOWS[missing](figures)
    return list(dict.fromkeys(found))


# --- remedies ----------------------------------------------------------------------------------


def _micro_batch_cap(figures: Figures) -> list[str]:
    flag = (
        "--pp-max-micro-batch-size"
        if knows(figures, _PP_MAX_MICRO_BATCH_SIZE)
        else "--max-micro-batch-size"
    )
    requests, stages = figures.requests, figures.pp_size or 1
    if not requests:
        return [f"{flag}: requests in flight over {stages} stages, so that no slot takes them all"]
    size = max(math.ceil(round(requests) / stages), 1)
    default = "max_running_requests over the stages, often hundreds"
    return [
        f"{flag} {size}: {requests:.0f} requests over {stages} stages; a slot takes what waits when "
        f"its turn comes, up to this cap (default: {default}). Try it live: diagnose --url … "
        f"--experiment pp_max_micro_batch_size={size}"
    ]


def _larger_batches(figures: Figures) -> list[str]:
    depth = figures.facts.get("pp_async_batch_depth")
    found = []
    if knows(figures, _ASYNC_DEPTH) and isinstance(depth, int) and depth > 0:
        found.append(
            f"--pp-async-batch-depth 0: {depth} slots more than stages make micro-batches smaller"
        )
    return found + _micro_batch_cap(figures)


def _layer_partition(figures: Figures) -> list[str]:
    slow = slowest_stage(figures)
    rank = figures.likeness_leader if slow is None else slow.pp_rank
    which = "the slow stage" if rank is None else f"stage {rank}"
    why = (
        "; the last stage has lm_head and sampling besides its layers, and the default split gives "
        "left-over layers to the last stages"
        if rank is not None and rank == (figures.pp_size or 0) - 1
        else "; if its layers are no more than the others', look at its card"
    )
    return [f"SGLANG_PP_LAYER_PARTITION=a,b,…: fewer layers for {which}{why}"]


def _stall(figures: Figures) -> list[str]:
    return [
        "look at what the scheduler does while no stage has a kernel (py-spy dump on its process): "
        "compiling or capturing at first use, garbage collection, a blocked client connection"
    ]


def _host(figures: Figures) -> list[str]:
    found = ["give the scheduler processes cores of their own and the host's full clock"]
    return _graphs(figures) + found if figures.facts.get("disable_cuda_graph") is True else found


def _graphs(figures: Figures) -> list[str]:
    if figures.facts.get("disable_cuda_graph") is True:
        return ["start without --disable-cuda-graph"]
    if knows(figures, _CUDA_GRAPH_CONFIG):
        return ["cuda_graph_config: capture the batch sizes that decode runs at"]
    return [
        "--cuda-graph-max-bs: at least the largest micro-batch; larger ones run without a graph"
    ]


def _prefill(figures: Figures) -> list[str]:
    found = ["--chunked-prefill-size: smaller chunks hold decode up for less time each"]
    if figures.is_pipeline and knows(figures, _DYNAMIC_CHUNKING):
        found.append("--enable-dynamic-chunking: chunks that take equal time on every stage")
    return [
        *found,
        "prefill on servers of its own (disaggregation_mode) takes it off this pipeline",
    ]


def _clients(figures: Figures) -> list[str]:
    return [
        f"send at least {figures.pp_size} requests at a time: fewer cannot fill the stages, "
        "however they are split"
    ]


def _pool(figures: Figures) -> list[str]:
    return [
        "--max-running-requests: no more than the KV pool holds, so that nothing is thrown back and "
        "computed again; or more memory for the pool, or shorter contexts"
    ]


def _transfer(figures: Figures) -> list[str]:
    found = ["look at the links between the stages' GPUs (nvidia-smi topo -m; NCCL_DEBUG=INFO)"]
    if knows(figures, _ASYNC_DEPTH):
        depth = max((figures.pp_size or 2) // 2, 1)
        found.append(
            f"--pp-async-batch-depth {depth}: more micro-batches under way hide the hand-overs"
        )
    return found


def _card(figures: Figures) -> list[str]:
    bad = [s for s in figures.stages if s.lost_seconds or s.xids or (s.throttled_ratio or 0) > 0]
    slow = slowest_stage(figures)
    bad = bad or ([slow] if slow is not None else [])
    gpus = ", ".join(str(gpu) for stage in bad for gpu in stage.gpus)
    return [f"look at GPU {gpus}: nvidia-smi -q -d PERFORMANCE,TEMPERATURE; the kernel log for Xid"]


_REMEDIES: dict[Verdict, Callable[[Figures], list[str]]] = {
    Verdict.THUNDERING_HERD: _micro_batch_cap,
    Verdict.UNEVEN_SPLIT: _micro_batch_cap,
    Verdict.OVER_SPLIT: _larger_batches,
    Verdict.STAGE_IMBALANCE: _layer_partition,
    Verdict.GLOBAL_STALL: _stall,
    Verdict.HOST_BOUND: _host,
    Verdict.PREFILL_INTERFERENCE: _prefill,
    Verdict.CLIENT_LIMITED: _clients,
    Verdict.KV_LIMITED: _pool,
    Verdict.GRAPH_OFF: _graphs,
    Verdict.TRANSFER_BOUND: _transfer,
    Verdict.GPU_FAULT: _card,
}


# --- what would show more ----------------------------------------------------------------------


def _show_slots(figures: Figures) -> list[str]:
    interval = figures.slots.suggested_interval
    found = []
    if interval is None and figures.facts.get("decode_log_interval") is None:
        interval = coprime_interval(figures.slots.slots or figures.pp_size or 1)
    if interval is not None:
        found.append(
            f"--decode-log-interval {interval}: a prime above the number of slots shows them all; "
            "the present one shows some for ever"
        )
    if figures.concurrency is None:
        found.append("a load of known concurrency tells how many micro-batches hold it")
    return found


def _show_working(figures: Figures) -> list[str]:
    found = [
        "GPM (Hopper and newer) or the 20 ms power ring, with some idle time at first, from which "
        "the levels of idle and waiting are learned"
    ]
    if knows(figures, _DEVICE_TIMER_LINES):
        found.append("SGLANG_ENABLE_METRICS_DEVICE_TIMER=1: lines end in `fwd occupancy`")
    return found


_SHOWS: dict[Missing, Callable[[Figures], list[str]]] = {
    Missing.LOAD: lambda figures: [
        f"diagnose --url URL --sweep 1,{figures.concurrency or 32}: a steady load of known "
        "concurrency, 30 s of warm-up and 60 s more, and a single stream beside it"
    ],
    Missing.LINES: lambda _: [
        "is this the log of the server? `systemctl list-units 'sglang*'` names its unit; batch "
        "lines look like `[2026-11-30 12:00:00 PP3] Decode batch, #running-req: 8, …`",
        "--log-level info: the batch lines are not printed above it",
    ],
    Missing.SLOTS: _show_slots,
    Missing.WORKING: _show_working,
    Missing.GPUS: lambda _: ["run on the host of the GPUs, with NVIDIA's driver library"],
    Missing.THROTTLING: lambda _: [
        "nvidia-smi -q -d PERFORMANCE on the slow stage's GPU: heat or power may hold it down"
    ],
    Missing.STAGES: lambda _: ["diagnose on every node: this one sees its own stages alone"],
    Missing.GRAPHS: lambda _: ["a version from 0.4.6.post4 on prints `cuda graph` on decode lines"],
    Missing.PREFILL: lambda figures: (
        []
        if figures.time_resolution_seconds
        else ["a longer load: the share of prefill shows in differing gaps"]
    ),
    Missing.TIMES: lambda _: [
        "SGLANG_LOG_MS=1 stamps milliseconds (from 0.5.6 on); an export of the journal has them in "
        "any case: journalctl -u UNIT -o json --all"
    ],
    Missing.CONCURRENCY: lambda _: [
        "--concurrency N beside --log, if it is known what the clients kept in flight"
    ],
    Missing.ARGUMENTS: lambda _: [
        "the log from the server's start on: its line `server_args=` has pp_size and "
        "decode_log_interval (an export of the journal: with --all)"
    ],
}
