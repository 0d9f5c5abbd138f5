"""Asks Prometheus what each panel shows: series of a time range, or values of now."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.previews.reading import Json, series_name
from tests.dashboards import substituted
from tests.prometheus_server import Prometheus


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel: its name, labels and (time, value) pairs without NaN."""

    name: str
    query: str
    labels: Mapping[str, str]
    points: list[tuple[float, float]]

    @property
    def last(self) -> float | None:
        """The newest value."""
        return self.points[-1][1] if self.points else None


@dataclass(frozen=True, slots=True)
class Window:
    """The time range of the picture, and the scrape interval that Grafana was told."""

    begin: float
    end: float
    scrape_seconds: float

    def step(self, panel: Json, width: float) -> float:
        """Grafana's interval: the range over the points asked for, not below a scrape."""
        points = panel.get("maxDataPoints") or width
        least = {"1m": 60.0}.get(panel.get("interval", ""), self.scrape_seconds)
        return max((self.end - self.begin) / points, least)


def read(
    prometheus: Prometheus,
    panel: Json,
    window: Window,
    values: Mapping[str, str],
    width: float,
) -> list[Series]:
    """Every series of every query of a panel; NaN is left out, as a gap."""
    step = window.step(panel, width)
    interval = max(step + window.scrape_seconds, 4 * window.scrape_seconds)
    known = {**values, "__rate_interval": f"{interval:.0f}s"}
    found = []
    for target in panel["targets"]:
        expression = substituted(target["expr"], known)
        if target["instant"]:
            answer = prometheus.ask("query", query=expression, time=f"{window.end}")
        else:
            begin = math.ceil(window.begin / step) * step  # Grafana aligns to the step as well
            answer = prometheus.ask(
                "query_range",
                query=expression,
                start=f"{begin}",
                end=f"{window.end}",
                step=f"{step}",
            )
        for series in answer["result"]:
            pairs = series.get("values") or [series["value"]]
            points = [(at, float(value)) for at, value in pairs]
            name = series_name(target["legendFormat"], series["metric"])
            points = [(at, value) for at, value in points if not math.isnan(value)]
            found.append(Series(name, target["refId"], series["metric"], points))
    return found
