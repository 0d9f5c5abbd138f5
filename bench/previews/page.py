"""Lays the panels of a dashboard out by their gridPos, as one HTML page with inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from bench.previews import drawings, tables
from bench.previews.data import Window, read
from bench.previews.reading import DIM, PAGE, PANEL, TEXT, Json
from tests.prometheus_server import Prometheus

WIDTH = 1600
_ROW, _GAP, _HEAD = 38, 8, 32
_DRAW: dict[str, drawings.Draw] = {
    "stat": drawings.stat,
    "timeseries": drawings.time_series,
    "status-history": drawings.status_history,
    "heatmap": drawings.heat_map,
    "table": tables.table,
    "xychart": tables.scatter,
}


def page(
    dashboard: Json, prometheus: Prometheus, window: Window, values: Mapping[str, str], note: str
) -> tuple[str, int]:
    """The page and its height in pixels."""
    body = []
    bottom = 0
    for panel in _opened(dashboard):
        place = panel["gridPos"]
        left = place["x"] / 24 * (WIDTH - 2 * _GAP) + _GAP
        top = place["y"] * _ROW + 48
        width = place["w"] / 24 * (WIDTH - 2 * _GAP) - _GAP
        height = place["h"] * _ROW - _GAP
        bottom = max(bottom, top + height)
        style = f"left:{left:.0f}px;top:{top}px;width:{width:.0f}px;height:{height}px"
        if panel["type"] == "row":
            body.append(f'<div class="row" style="{style}">⌄ {escape(panel["title"])}</div>')
            continue
        inner, high = width - 20, height - _HEAD - 10
        series = read(prometheus, panel, window, values, inner)
        drawing = _DRAW[panel["type"]](panel, series, window, inner, high)
        body.append(
            f'<div class="panel" style="{style}"><h2>{escape(panel["title"])} <i>i</i></h2>'
            f'<svg width="{inner:.0f}" height="{high:.0f}">{drawing}</svg></div>'
        )
    header = f"<header><b>{escape(dashboard['title'])}</b><span>{escape(note)}</span></header>"
    return _HTML.format(header=header, body="".join(body)), bottom + _GAP


def _opened(dashboard: Json) -> Iterator[Json]:
    """Rows and panels, collapsed rows opened."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


_HTML = (
    """<!doctype html><meta charset="utf-8"><style>
body {{ margin:0; background:"""
    + PAGE
    + """; color:"""
    + TEXT
    + """; font-family:Inter,Roboto,"DejaVu Sans",sans-serif }}
header {{ padding:12px 16px; font-size:16px }}
header span {{ margin-left:16px; font-size:12px; color:"""
    + DIM
    + """ }}
.row {{ position:absolute; font-size:15px; font-weight:600; line-height:30px }}
.panel {{ position:absolute; background:"""
    + PANEL
    + """; border:1px solid #24272d; border-radius:3px;
  box-sizing:border-box; padding:0 10px; overflow:hidden }}
h2 {{ font-size:13px; font-weight:500; margin:8px 0 8px }}
h2 i {{ font-size:9px; color:#8e8e9a; border:1px solid #55585f; border-radius:50%;
  padding:0 4px; margin-left:4px }}
svg {{ overflow:visible }}
</style>{header}{body}"""
)
