"""Figures → what the page says in words: a sentence, what is waited for, what to switch on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from exporter.pipeline.bubbles import TELLS_WAITING
from exporter.pipeline.figures import PipelineFigures, SlotFigures
from exporter.snapshot import ServerSnapshot, Snapshot

SWITCH_ON: Mapping[str, tuple[str, str]] = {
    "decode_log_interval": (
        "--decode-log-interval 41",
        "all micro-batches: the present interval may show the same few for ever",
    ),
    "SGLANG_LOG_FORWARD_ITERS": (
        "SGLANG_LOG_FORWARD_ITERS=1",
        "which lines of different stages speak of the same micro-batch",
    ),
    "SGLANG_ENABLE_METRICS_DEVICE_TIMER": (
        "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1",
        "SGLang's own forward occupancy, to hold against the GPU's",
    ),
    "LogRateLimitIntervalSec": (
        "LogRateLimitIntervalSec=0 in the unit",
        "lines that journald drops on a fast server",
    ),
    "nvidia_persistence_mode": (
        "nvidia-smi -pm 1",
        "sample rings without gaps: the driver stays loaded between two looks",
    ),
}
"""By the name of the recommendation: what to set, and what it shows."""


def figures_sentence(pipeline: PipelineFigures, queued: int | None) -> str:
    """What the figures say, where no verdict does; unknown ones are left out."""
    parts = [part for part in (_work(pipeline), _slots(pipeline.slots)) if part]
    if queued:
        parts.append(f"{queued} request{'s wait' if queued > 1 else ' waits'} in the queue")
    if not parts:
        return "Nothing is known of what the stages do yet."
    return "; ".join(parts)[:1].upper() + "; ".join(parts)[1:] + "."


def _work(pipeline: PipelineFigures) -> str:
    known = [stage for stage in pipeline.stages if stage.working_ratio is not None]
    if pipeline.occupancy_ratio is None:
        if not known:
            return ""
        return f"{len(known)} of {pipeline.expected_stages or '?'} stages are seen"
    idle = "" if pipeline.in_flight else ", no request is in flight"
    share = f"{100 * pipeline.occupancy_ratio:.0f} %"
    if all(stage.method in TELLS_WAITING for stage in known):
        return f"the stages work {share} of the time{idle}"
    return f"the stages work at most {share} of the time{idle}"


def _slots(slots: SlotFigures) -> str:
    if slots.effective is None:
        return ""
    held = "the requests"
    if slots.running_requests is not None:
        count = round(slots.running_requests)
        held = "1 request" if count == 1 else f"{count} requests"
    verb = "sits" if held == "1 request" else "sit"
    return f"{held} {verb} in {slots.effective:.1f} of {slots.slots or '?'} micro-batches"


def waits(snapshot: Snapshot, unread: Mapping[str, str], settled: int) -> Iterator[str]:
    """What is not there yet and why; `settled`: seconds of any pipeline that can be shown."""
    for name, reason in unread.items():
        yield f"{name}: {reason}"
    if not snapshot.servers:
        yield "the first line of an SGLang scheduler: batch lines come once it serves requests"
        return
    if settled:
        return
    if not any(gpu.last_sample_at is not None for gpu in snapshot.gpus):
        yield "the first sample of a GPU: without NVML the log alone is shown"
    elif not any(stage.gpus for server in snapshot.servers for stage in server.stages):
        yield (
            "a match of stages and GPUs: by scheduler processes on the GPUs, or `stages` in the "
            "configuration"
        )
    else:
        yield (
            "the first complete second of all GPUs: up to 32 s after the start, while it is learned "
            "what each card draws when it waits"
        )


def queued(server: ServerSnapshot, dp_rank: int) -> int | None:
    """The longest waiting queue that a stage of the pipeline told; `None` if none did."""
    told = [s.queued_reqs for s in server.stages if s.dp_rank == dp_rank]
    return max((each for each in told if each is not None), default=None)


def switch_on(recommendations: Sequence[str]) -> list[dict[str, str]]:
    """What to set to see more, each with what it shows."""
    return [
        {"setting": SWITCH_ON[name][0], "shows": SWITCH_ON[name][1]}
        for name in recommendations
        if name in SWITCH_ON
    ]
