"""GPU detail: activity, power, heat, memory and errors of each GPU, and how well it is sampled."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from grafana.frame import GPU_VARIABLE, Row, dashboard
from grafana.gpu import activity, errors_and_samples, identity, memory_and_bus, power_and_heat

UID: Final = "sglang-pipeline-gpu"


def build() -> Dashboard:
    """The dashboard as Grafana's own types."""
    return dashboard(
        UID,
        "SGLang / GPU detail",
        "Activity, power, heat, memory and errors of each GPU, and how well it is sampled.",
        [GPU_VARIABLE],
        [
            Row("Who they are", identity.panels()),
            Row("Activity", activity.panels()),
            Row("Power and heat", power_and_heat.panels()),
            Row("Memory and bus", memory_and_bus.panels()),
            Row("Errors and samples", errors_and_samples.panels()),
        ],
    )
