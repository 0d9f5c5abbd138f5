"""The plain page at `/`: sources, stages and what they do together, from a snapshot."""

from __future__ import annotations

import html

from exporter.pipeline.figures import PipelineFigures, StageFigures
from exporter.records import Method, SourceHealth
from exporter.snapshot import ServerSnapshot, Snapshot, StageSnapshot

KNOWN_BY = {
    Method.GPM: "GPM",
    Method.POWER: "power",
    Method.FORWARD_OCCUPANCY: "SGLang (upper bound)",
    Method.RESIDENCY: "residency (upper bound)",
}

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>SGLang pipeline exporter</title>
<meta name="viewport" content="width=device-width">
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }}
table {{ border-collapse: collapse; margin: .5rem 0 1.5rem }}
th, td {{ padding: .2rem .9rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums }}
th:first-child, td:first-child {{ text-align: left }}
thead th {{ border-bottom: 1px solid }}
td.text {{ text-align: left }}
</style></head><body>
<h1>SGLang pipeline exporter</h1>
<p><a href="/metrics">/metrics</a> · <a href="/api/v1/pipeline">/api/v1/pipeline</a> ·
<a href="/api/v1/timeline?seconds=60">/api/v1/timeline</a> · <a href="/-/ready">/-/ready</a></p>
<h2>Sources</h2>
<table><thead><tr><th>source</th><th>state</th><th>log entries</th><th></th></tr></thead>
<tbody>{sources}</tbody></table>
{servers}
</body></html>
"""


def landing_page(snapshot: Snapshot, healths: tuple[SourceHealth, ...]) -> str:
    """The page as HTML; everything that is not ours is escaped."""
    sources = "".join(
        f"<tr><td>{html.escape(h.name)}</td><td>{'read' if h.up else 'not read'}</td>"
        f"<td>{h.lines or ''}</td><td class=text>{html.escape(h.last_error or '')}</td></tr>"
        for h in healths
    )
    servers = "".join(_server_section(server) for server in snapshot.servers)
    if not servers:
        servers = "<p>No line of an SGLang scheduler yet. Batch lines appear once it serves.</p>"
    return _PAGE.format(sources=sources, servers=servers)


def _server_section(server: ServerSnapshot) -> str:
    figures = {
        (pipeline.dp_rank, stage.pp_rank): stage
        for pipeline in server.pipelines
        for stage in pipeline.stages
    }
    rows = "".join(
        _row(_stage_cells(stage, figures.get((stage.dp_rank, stage.pp_rank))))
        for stage in server.stages
    )
    return (
        f"<h2>{html.escape(server.name)}</h2>"
        + "".join(_pipeline_line(pipeline) for pipeline in server.pipelines)
        + "<table><thead><tr><th>dp / pp rank</th>"
        "<th>running (one micro-batch)</th><th>queued</th><th>tokens/s (all stages)</th>"
        "<th>working</th><th>known by</th><th>kernel resident</th><th>GPU</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _stage_cells(stage: StageSnapshot, figures: StageFigures | None) -> tuple[str, ...]:
    method = None if figures is None else figures.method
    return (
        f"{stage.dp_rank} / {stage.pp_rank}",
        _number(stage.running_reqs),
        _number(stage.queued_reqs),
        _number(stage.generation_tokens_per_second),
        _number(None if figures is None else figures.working_ratio, percent=True),
        "unknown" if method is None else KNOWN_BY[method],
        _number(stage.gpu_utilization_ratio, percent=True),
        ", ".join(map(str, stage.gpus)) or "unknown",
    )


def _row(cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _pipeline_line(pipeline: PipelineFigures) -> str:
    """What the stages do together, in a sentence."""
    slots = pipeline.slots
    effective = "not observable"
    if slots.effective is not None:
        effective = f"{slots.effective:.1f} of {slots.slots or 'unknown'} slots"
    return (
        f"<p>Occupancy {_number(pipeline.occupancy_ratio, percent=True)}, "
        f"bubble {_number(pipeline.bubble_ratio, percent=True)}, "
        f"effective micro-batches {effective}.</p>"
    )


def _number(value: float | None, *, percent: bool = False) -> str:
    if value is None:
        return "unknown"
    return f"{value:.0%}" if percent else f"{value:,.0f}"
