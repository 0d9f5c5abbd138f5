"""The snapshot and the recent seconds as JSON, for people with `jq` and for other programs.

A value that is not known is null. Shares are 0 to 1, times are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from exporter.pipeline.figures import PipelineFigures, SecondFigures, StageFigures
from exporter.snapshot import GpuSnapshot, ServerSnapshot, Snapshot, StageSnapshot

Json = dict[str, Any]


def pipeline_json(snapshot: Snapshot) -> Json:
    """The answer of /api/v1/pipeline."""
    return {
        "taken_at": snapshot.taken_at,
        "servers": [_server(server) for server in snapshot.servers],
        "gpus": [_gpu(gpu) for gpu in snapshot.gpus],
        "recommendations": list(snapshot.recommendations),
    }


def timeline_json(
    timelines: Mapping[tuple[str, int], Sequence[SecondFigures]], since: float
) -> Json:
    """The answer of /api/v1/timeline: settled seconds of each pipeline, oldest first."""
    return {
        "since": since,
        "pipelines": [
            {
                "server": server,
                "dp_rank": dp_rank,
                "seconds": [
                    {
                        "second": second.second,
                        "working_ratio": _by_rank(second.working),
                        "waiting_ratio": _by_rank(second.waiting),
                        "in_flight_ratio": second.in_flight_ratio,
                    }
                    for second in seconds
                ],
            }
            for (server, dp_rank), seconds in timelines.items()
        ],
    }


def _by_rank(shares: Mapping[int, float]) -> dict[str, float]:
    return {str(pp_rank): round(share, 4) for pp_rank, share in sorted(shares.items())}


def _server(server: ServerSnapshot) -> Json:
    return {
        "server": server.name,
        "facts": dict(server.facts),
        "stages_mapped_by": server.mapped_by,
        "pipelines": [
            _pipeline(pipeline, [s for s in server.stages if s.dp_rank == pipeline.dp_rank])
            for pipeline in server.pipelines
        ],
    }


def _pipeline(pipeline: PipelineFigures, stages: Sequence[StageSnapshot]) -> Json:
    figures = {stage.pp_rank: stage for stage in pipeline.stages}
    return {
        "dp_rank": pipeline.dp_rank,
        "in_flight": pipeline.in_flight,
        "stages_expected": pipeline.expected_stages,
        "occupancy_ratio": pipeline.occupancy_ratio,
        "inflight_occupancy_ratio": pipeline.inflight_occupancy_ratio,
        "bubble_ratio": pipeline.bubble_ratio,
        "stage_skew_ratio": pipeline.skew_ratio,
        "balance_ratio": pipeline.balance_ratio,
        "inflight_seconds": pipeline.inflight_seconds,
        "observed_seconds": pipeline.observed_seconds,
        "active_stages_seconds": list(pipeline.active_stages_seconds),
        "active_stages_window_seconds": pipeline.active_stages_window_seconds,
        "active_stages_mean": pipeline.active_stages_mean,
        "variance": None if pipeline.variance is None else asdict(pipeline.variance),
        "slots": asdict(pipeline.slots),
        "predicted_gain_ratio": pipeline.predicted_gain_ratio,
        "stages": [_stage(stage, figures.get(stage.pp_rank)) for stage in stages],
    }


def _stage(stage: StageSnapshot, figures: StageFigures | None) -> Json:
    known: Json = {
        "pp_rank": stage.pp_rank,
        "gpus": list(stage.gpus),
        "running_reqs": stage.running_reqs,
        "queued_reqs": stage.queued_reqs,
        "token_usage_ratio": dict(stage.token_usage_ratios),
        "generation_tokens_per_second": stage.generation_tokens_per_second,
        "forward_occupancy_ratio": stage.forward_occupancy_ratio,
        "last_batch_at": stage.last_batch_at,
        "gpu_utilization_ratio": stage.gpu_utilization_ratio,
    }
    if figures is not None:
        known |= {
            "working_ratio": figures.working_ratio,
            "waiting_ratio": figures.waiting_ratio,
            "method": figures.method,
            "mean_working_ratio": figures.mean_working_ratio,
            "rank_spread_ratio": figures.rank_spread_ratio,
            "seconds": [
                {"state": state, "method": method, "seconds": seconds}
                for (state, method), seconds in figures.seconds.items()
            ],
            "bubble_seconds": figures.bubble_seconds,
            "inflight_seconds": figures.inflight_seconds,
        }
    return known


def _gpu(gpu: GpuSnapshot) -> Json:
    return {
        "gpu": gpu.gpu,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "up": gpu.up,
        "down_reason": gpu.down_reason,
        "ranks": [asdict(rank) for rank in gpu.ranks],
        "utilization_ratio": gpu.utilization_ratio,
        "power_watts": gpu.power_watts,
        "power_limit_watts": gpu.power_limit_watts,
        "temperature_celsius": gpu.temperature_celsius,
        "memory_used_bytes": gpu.memory_used_bytes,
        "last_sample_at": gpu.last_sample_at,
    }
