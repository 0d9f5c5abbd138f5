"""Message texts as SGLang 0.5.23 prints them; nothing here knows why.

Sources: srt/observability/metrics_reporter.py (batch lines), srt/entrypoints/http_server.py and
srt/managers/scheduler.py (the rest). The prefix holds local time and, for a scheduler, its ranks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from exporter.simulator.pipeline import DecodeResult, PrefillResult, Retraction
from exporter.simulator.scenarios import STAGES, Scenario

VERSION = "0.5.23"
API_KEY = "demo-key-not-for-metrics"
"""Stands in the server_args= line, as a real key does; it must come out nowhere."""
PORT = 30000
MODEL = "/srv/models/demo-moe-590b"
MAIN_TITLE = f"/srv/sglang/bin/python -m sglang.launch_server --model-path {MODEL} --pp-size 8"
SPAWN_TITLE = "/srv/sglang/bin/python -c from multiprocessing.spawn import spawn_main"
"""A scheduler's command line before it names itself."""


def scheduler_title(pp_rank: int) -> str:
    """Process title of a stage with one tensor-parallel rank."""
    return f"sglang::scheduler_PP{pp_rank}"


def stamped(at: float, message: str, pp_rank: int | None = None) -> str:
    """The message with the bracket in front; no rank for the main process."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"[{stamp}] {message}" if pp_rank is None else f"[{stamp} PP{pp_rank}] {message}"


def prefill_batch(result: PrefillResult, kv_tokens: int, *, graph: bool, throughput: float) -> str:
    """The Prefill line, printed after the batch's output came back."""
    usage = result.used_tokens / kv_tokens
    return (
        f"Prefill batch, #new-seq: {result.new_seqs}, #new-token: {result.new_tokens}, "
        f"#cached-token: 0, token usage: {usage:.2f}, #running-req: {result.running_reqs}, "
        f"#queue-req: {result.queued_reqs}, #pending-token: {result.pending_tokens}, "
        f"cuda graph: {graph}, input throughput (token/s): {throughput:.2f}"
    )


def decode_batch(result: DecodeResult, kv_tokens: int, *, graph: bool, throughput: float) -> str:
    """The Decode line; `#running-req` is one micro-batch, the rest is the whole server."""
    usage = result.used_tokens / kv_tokens
    return (
        f"Decode batch, #running-req: {result.running_reqs}, #token: {result.used_tokens}, "
        f"token usage: {usage:.2f}, cuda graph: {graph}, "
        f"gen throughput (token/s): {throughput:.2f}, #queue-req: {result.queued_reqs}"
    )


def occupancy_suffix(share: float) -> str:
    """What the device timer adds; a stage that is never idle prints the same number twice."""
    percent = 100.0 * min(max(share, 0.0), 1.0)
    return f", fwd occupancy: {percent:.2f}%, fwd+idle occupancy: {percent:.2f}%"


def retraction(event: Retraction) -> str:
    """Printed by every rank, as a warning."""
    return (
        f"KV cache pool is full. Retract requests. #retracted_reqs: {event.retracted_reqs}, "
        f"#new_tokens_gained: {event.gained_tokens}, "
        f"#new_token_ratio: {event.ratio_before:.4f} -> {event.ratio_after:.4f}"
    )


def access(port: int, request: str, status: str = "200 OK") -> str:
    """Uvicorn's access line."""
    return f'INFO:     127.0.0.1:{port} - "{request} HTTP/1.1" {status}'


def server_args(scenario: Scenario) -> str:
    """The line with all arguments, among them the API key in clear."""
    arguments: Mapping[str, object] = {
        "model_path": MODEL,
        "tokenizer_path": MODEL,
        "tokenizer_mode": "auto",
        "skip_tokenizer_init": False,
        "load_format": "auto",
        "trust_remote_code": True,
        "context_length": None,
        "host": "127.0.0.1",
        "port": PORT,
        "dtype": "auto",
        "quantization": None,
        "kv_cache_dtype": "auto",
        "mem_fraction_static": 0.92,
        "max_running_requests": scenario.max_running_requests,
        "max_total_tokens": None,
        "chunked_prefill_size": scenario.chunked_prefill_size,
        "max_prefill_tokens": 16384,
        "schedule_policy": "fcfs",
        "page_size": 1,
        "disable_overlap_schedule": True,
        "nnodes": 1,
        "node_rank": 0,
        "tp_size": 1,
        "pp_size": STAGES,
        "pp_max_micro_batch_size": scenario.pp_max_micro_batch_size,
        "pp_async_batch_depth": scenario.pp_async_batch_depth,
        "dp_size": 1,
        "ep_size": 1,
        "enable_dp_attention": False,
        "device": "cuda",
        "base_gpu_id": 0,
        "gpu_id_step": 1,
        "random_seed": 322628307,
        "watchdog_timeout": 300,
        "sleep_on_idle": False,
        "api_key": API_KEY,
        "admin_api_key": API_KEY,
        "served_model_name": "demo-moe-590b",
        "log_level": scenario.log_level,
        "log_requests": False,
        "enable_metrics": False,
        "decode_log_interval": scenario.decode_log_interval,
        "disable_cuda_graph": not scenario.graph,
        "speculative_algorithm": None,
        "disaggregation_mode": "null",
    }
    return f"server_args={dict(arguments)!r}"


def stage_startup(pp_rank: int, scenario: Scenario) -> Sequence[tuple[float, str]]:
    """What a stage prints while it starts: (seconds before "fired up", message)."""
    weights, free = 73.75 + 0.31 * (pp_rank == STAGES - 1), 94.97
    kv_gigabytes = scenario.kv_tokens * 36_864 / 2**30
    left = free - weights - kv_gigabytes
    lines = [
        (41.0, "Init parallel begin."),
        (39.5, f"Init parallel ends. elapsed={1.4 + 0.01 * pp_rank:.2f} s"),
        (39.4, f"Load weight begin. avail mem={free:.2f} GB"),
        (
            11.0,
            f"Load weight end. elapsed=28.{pp_rank}0 s, type=DeepseekV3ForCausalLM, "
            f"avail mem={free - weights:.2f} GB, mem usage={weights:.2f} GB.",
        ),
        (
            10.0,
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {scenario.kv_tokens}, "
            f"K size: {kv_gigabytes / 2:.2f} GB, V size: {kv_gigabytes / 2:.2f} GB",
        ),
        (9.9, f"Memory pool end. avail mem={left:.2f} GB"),
    ]
    if scenario.graph:
        lines += [
            (9.5, f"Capture cuda graph begin. This can take a while. avail mem={left:.2f} GB"),
            (3.5, f"Capture cuda graph end. Time elapsed: 6.0{pp_rank} s. mem usage=0.42 GB."),
        ]
    lines.append(
        (
            3.0,
            f"max_total_num_tokens={scenario.kv_tokens}, "
            f"chunked_prefill_size={scenario.chunked_prefill_size}, max_prefill_tokens=16384, "
            f"max_running_requests={scenario.max_running_requests}, context_len=131072, "
            f"available_gpu_mem={left - 0.42:.2f} GB",
        )
    )
    return lines
