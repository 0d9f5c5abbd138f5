"""Reads the committed dashboards, and asks a Prometheus what their panels would show."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.prometheus_server import Prometheus

FOLDER = Path(__file__).parents[1] / "grafana" / "dashboards"

Json = dict[str, Any]


def dashboards() -> list[Json]:
    """Every committed dashboard, by file name."""
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]


def panels_of(dashboard: Json) -> Iterator[Json]:
    """Its panels, those inside collapsed rows too; not the rows."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def variables_of(dashboard: Json) -> dict[str, Json]:
    """Its variables by name."""
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of one panel."""

    dashboard: str
    panel: str
    name: str
    expression: str
    instant: bool
    legend: str

    def __str__(self) -> str:
        words = f"{self.dashboard.removeprefix('sglang-pipeline-')} {self.panel} {self.name}"
        return re.sub(r"[^a-z0-9]+", "_", words.lower())


def queries_of(dashboard: Json) -> list[PanelQuery]:
    """Every query of every panel."""
    return [
        PanelQuery(
            dashboard["uid"],
            panel["title"],
            target["refId"],
            target["expr"],
            target["instant"],
            target["legendFormat"],
        )
        for panel in panels_of(dashboard)
        for target in panel["targets"]
    ]


def substituted(text: str, values: Mapping[str, str]) -> str:
    """Replaces `$name` by its value; `$1` of label_replace stays, as in Grafana.

    Raises:
        KeyError: A variable has no value.
    """
    return re.sub(r"\$([a-z_]\w*)", lambda found: values[found[1]], text)


def instant_values(
    prometheus: Prometheus, query: PanelQuery, values: Mapping[str, str]
) -> list[tuple[dict[str, str], float]]:
    """What the query gives now; NaN is no data, it stands for "not observable"."""
    found = prometheus.query(substituted(query.expression, values))
    return [(labels, value) for labels, value in found if not math.isnan(value)]
