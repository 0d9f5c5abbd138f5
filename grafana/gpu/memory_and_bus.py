"""What a GPU holds and what it sends to others."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.gpu.names import BY, NAME
from grafana.panels import time_series
from grafana.queries import GPUS


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(_memory(), 8, 7), (_pcie("sent"), 8, 7), (_pcie("received"), 8, 7)]


def _memory() -> Panel:
    used = GPUS.now(catalog.GPU_MEMORY_USED_BYTES)
    return time_series(
        Figure(
            title="Memory in use",
            about=About(
                "How full is each GPU? SGLang takes its pool at the start, so this says nothing "
                "about requests; the KV pool does.",
                "alike, and constant after the start.",
                "growth while it serves is a leak; one lower: another layer split.",
            ),
            queries=[Query(f"max by ({BY}) ({used})", NAME)],
            unit="bytes",
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )


def _pcie(way: str) -> Panel:
    key = catalog.GPU_PCIE_TRANSMIT_BYTES if way == "sent" else catalog.GPU_PCIE_RECEIVE_BYTES
    return time_series(
        Figure(
            title=f"PCIe, {way}",
            about=About(
                f"How much does each GPU have {way} over PCIe per second? Hidden states between "
                "stages go this way where there is no NVLink.",
                "far below what the link can carry.",
                "near the link's limit the stages wait for transfers: smaller prefill chunks, or "
                "stages that share a switch.",
            ),
            queries=[Query(f"sum by ({BY}) ({GPUS.rate(key)})", NAME)],
            unit="Bps",
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )
