"""Pipeline occupancy: the dashboard to open first; which stage idles when, and why."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana.frame import PIPELINE_VARIABLES, Row, dashboard
from grafana.occupancy import (
    gpu_and_power,
    health,
    micro_batches,
    scheduler,
    stages_over_time,
    verdict,
)

UID: Final = "sglang-pipeline-occupancy"


def build() -> Dashboard:
    """The dashboard as Grafana's own types."""
    return dashboard(
        UID,
        "SGLang / Pipeline occupancy",
        "What each pipeline stage of an SGLang server does, and where its bubbles come from.",
        PIPELINE_VARIABLES,
        [
            Row("Verdict", verdict.panels()),
            Row("Stages over time", stages_over_time.panels()),
            Row("Micro-batches", micro_batches.panels()),
            Row("GPU and power", gpu_and_power.panels()),
            Row("Scheduler", scheduler.panels()),
            Row("Exporter health, and what would show more", health.panels(), collapsed=True),
        ],
    )
