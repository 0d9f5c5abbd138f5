"""The snapshot and the recent seconds as JSON, for people with `jq` and for other programs.

A value that is not known is null. Shares are 0 to 1, times are epoch seconds.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from exporter.pipeline.bubbles import TELLS_WAITING
from exporter.pipeline.clock import Second
from exporter.pipeline.figures import PipelineFigures, StageFigures
from exporter.pipeline.grid import CELL_SECONDS, METHODS
from exporter.pipeline.means import second_figures
from exporter.pipeline.stage_cells import UNITS
from exporter.records import SourceHealth
from exporter.snapshot import GpuSnapshot, ServerSnapshot, Snapshot, StageSnapshot

Json = dict[str, Any]


class Past(Protocol):
    """What is remembered of the newest ten minutes."""

    def seconds(self, server: str, dp_rank: int) -> Sequence[Second]:
        """The settled seconds of a pipeline, oldest first."""

    def watts(self, gpu: int, second: int) -> float | None:
        """Mean power of a GPU over an epoch second."""


CELLS: Json = {
    "cell_seconds": CELL_SECONDS,
    "units": UNITS,
    "planes": ["observed", "working", "waiting", "method"],
    "methods": [str(method) for method in METHODS],
    "tells_waiting": [str(method) for method in METHODS if method in TELLS_WAITING],
}
"""How to read the cells of a second: planes one after the other, a byte a cell."""


def pipeline_json(snapshot: Snapshot, sources: Sequence[SourceHealth]) -> Json:
    """The answer of /api/v1/pipeline."""
    return {
        "taken_at": snapshot.taken_at,
        "servers": [_server(server) for server in snapshot.servers],
        "gpus": [_gpu(gpu) for gpu in snapshot.gpus],
        "recommendations": list(snapshot.recommendations),
        "sources": [_source(health) for health in sources],
    }


def _source(health: SourceHealth) -> Json:
    return {
        "source": health.name,
        "up": health.up,
        "lines": health.lines,
        "lag_seconds": health.lag_seconds,
        "gaps": health.gaps,
        "suppressed_messages": health.suppressed_messages,
        "note": health.last_error,
    }


def timeline_json(
    snapshot: Snapshot,
    past: Past,
    since: float,
    until: float | None = None,
    *,
    cells: bool = False,
    after: Mapping[tuple[str, int], int] | None = None,
) -> Json:
    """The answer of /api/v1/timeline: settled seconds of each pipeline, oldest first.

    Those that begin from `since` on, and before `until` where it is given, and later than the
    second `after` which a pipeline is known; with `cells` each in 20 ms, with watts and batches.
    """
    pipelines = []
    for server in snapshot.servers:
        for pipeline in server.pipelines:
            gpus = {s.pp_rank: s.gpus for s in server.stages if s.dp_rank == pipeline.dp_rank}
            key = server.name, pipeline.dp_rank
            first = max(since, after[key] + 1) if after and key in after else since
            seconds = [
                _second(second, past, gpus, cells=cells)
                for second in _between(past.seconds(*key), first, until)
            ]
            pipelines.append({"server": key[0], "dp_rank": key[1], "seconds": seconds})
    return {"since": since, "pipelines": pipelines} | ({"cells": CELLS} if cells else {})


def _between(seconds: Sequence[Second], since: float, until: float | None) -> list[Second]:
    """From the newest backwards: mostly few are wanted of many."""
    found = []
    for second in reversed(seconds):
        if second.second < since:
            break
        if until is None or second.second < until:
            found.append(second)
    return found[::-1]


def _second(second: Second, past: Past, gpus: Mapping[int, Sequence[int]], *, cells: bool) -> Json:
    figures = second_figures(second)
    known: Json = {
        "second": figures.second,
        "working_ratio": _by_rank(figures.working),
        "waiting_ratio": _by_rank(figures.waiting),
        "in_flight_ratio": figures.in_flight_ratio,
    }
    if not cells:
        return known
    known["cells"] = {
        str(pp_rank): b64encode(stage.cells.planes()).decode()
        for pp_rank, stage in second.stages.items()
        if stage.cells is not None
    }
    watts = {
        rank: _sum(past.watts(gpu, second.second) for gpu in used) for rank, used in gpus.items()
    }
    known["watts"] = {str(rank): round(sum_, 1) for rank, sum_ in watts.items() if sum_ is not None}
    known["batch"] = {str(rank): requests for rank, requests in second.batches.items()}
    return known


def _sum(values: Iterable[float | None]) -> float | None:
    """Of all; `None` if one is not known, or there is none."""
    known = list(values)
    return sum(v for v in known if v is not None) if known and None not in known else None


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
        "batch_size": {str(mode.mode): mode.batch_size for mode in stage.modes},
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
