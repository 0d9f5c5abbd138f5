"""What the page shows at one instant, as JSON: what /api/v1/pipeline says, with what changes and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from exporter.api import Json, pipeline_json
from exporter.collector import ExporterState
from exporter.diagnosis.findings import Verdict
from exporter.page.verdicts import RunningVerdict
from exporter.page.words import figures_sentence, queued, switch_on, waits
from exporter.snapshot import Snapshot

if TYPE_CHECKING:
    from exporter.diagnosis.watch import PipelineKey

VERDICT_HOLDS_SECONDS = 75.0
"""An older one says nothing of now."""


def state_json(
    snapshot: Snapshot,
    state: ExporterState,
    unread: Mapping[str, str],
    verdicts: Mapping[PipelineKey, RunningVerdict],
    timeline: Json,
) -> Json:
    """Everything but the stages over time, which stand in `timeline`."""
    settled = sum(len(pipeline["seconds"]) for pipeline in timeline["pipelines"])
    return pipeline_json(snapshot, state.sources) | {
        "version": state.version,
        "waits_for": list(waits(snapshot, unread, settled or _seen(snapshot))),
        "switch_on": switch_on(state.recommendations),
        "said": [
            _said(snapshot, server.name, pipeline.dp_rank, verdicts)
            for server in snapshot.servers
            for pipeline in server.pipelines
        ],
        "timeline": timeline,
    }


def _seen(snapshot: Snapshot) -> int:
    """Whether any time of a stage was ever seen."""
    return sum(bool(s.seconds) for v in snapshot.servers for p in v.pipelines for s in p.stages)


def _said(
    snapshot: Snapshot, name: str, dp_rank: int, verdicts: Mapping[PipelineKey, RunningVerdict]
) -> Json:
    server = next(server for server in snapshot.servers if server.name == name)
    pipeline = next(each for each in server.pipelines if each.dp_rank == dp_rank)
    said: Json = {
        "server": name,
        "dp_rank": dp_rank,
        "figures": figures_sentence(pipeline, queued(server, dp_rank)),
        "queued": queued(server, dp_rank),
        "verdict": None,
    }
    verdict = verdicts.get((name, dp_rank))
    if verdict is None or snapshot.taken_at - verdict.judged_at > VERDICT_HOLDS_SECONDS:
        return said
    if verdict.verdict is Verdict.CANNOT_TELL and not pipeline.in_flight:
        return said
    return said | {"verdict": asdict(verdict)}
