"""Which rank runs on which GPU, and whether the driver answers for it."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana.figures import About, Figure, Query
from grafana.gpu.names import BY, NAME
from grafana.limits import limit
from grafana.panels import status_history
from grafana.queries import GPUS, in_order
from grafana.tables import table_panel


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(_who(), 16, 9), (_up(), 8, 9)]


def _who() -> Panel:
    return table_panel(
        Figure(
            title="GPUs and their ranks",
            about=About(
                "Which rank runs on which GPU?",
                "every GPU of the server has its stage.",
                "empty ranks: no scheduler process is known to run there; README, Which GPU is "
                "which stage.",
            ),
            queries=[
                Query(GPUS.now(catalog.GPU_INFO), instant=True),
                Query(f"max by (uuid) ({GPUS.now(catalog.GPU_MEMORY_TOTAL_BYTES)})", instant=True),
                Query(f"max by (uuid) ({GPUS.now(catalog.GPU_POWER_LIMIT_WATTS)})", instant=True),
            ],
            unit="string",
            units={"^Memory$": "bytes", "^Power limit$": "watt"},
        ),
        key="uuid",
        columns={
            "instance": "Instance",
            "gpu": "GPU",
            "model": "Model",
            "server": "Server",
            "dp_rank": "DP",
            "pp_rank": "Stage",
            "tp_rank": "TP",
            "Value #B": "Memory",
            "Value #C": "Power limit",
            "pci_bus_id": "PCI",
            "uuid": "UUID",
        },
    )


def _up() -> Panel:
    return status_history(
        Figure(
            title="The driver answers",
            about=About(
                "Does the driver answer for each GPU? 1 while it does.",
                "1 everywhere.",
                "a lost card keeps its last figures absent, not zero; look for XID errors below.",
            ),
            queries=[Query(in_order(f"min by ({BY}) ({GPUS.now(catalog.GPU_UP)})", "gpu"), NAME)],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("GpuLost"),
            alerts=("GpuLost",),
        ),
        columns=60,
    )
