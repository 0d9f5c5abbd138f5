"""Exporter health: is everything read, without loss and without lag, and at what cost."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana.frame import Row, dashboard
from grafana.health import driver, log, process, sources

UID: Final = "sglang-pipeline-exporter"


def build() -> Dashboard:
    """The dashboard as Grafana's own types."""
    return dashboard(
        UID,
        "SGLang / Exporter health",
        "Is everything read, without loss and without lag, and what does it cost?",
        [],
        [
            Row("Is everything read", sources.panels()),
            Row("The log", log.panels()),
            Row("The driver", driver.panels()),
            Row("The process", process.panels()),
        ],
    )
