"""How the GPU driver answers."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana.figures import NONE_SEEN, About, Figure, Query
from grafana.panels import time_series
from grafana.queries import EXPORTER


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(_calls(), 8, 7), (_errors(), 8, 7), (_samples(), 8, 7)]


def _calls() -> Panel:
    spent, calls = (EXPORTER.rate(catalog.NVML_CALL_SECONDS, part) for part in ("_sum", "_count"))
    return time_series(
        Figure(
            title="Time of a call to the driver",
            about=About(
                "Does the driver answer quickly? Mean time of a call, by function.",
                "milliseconds.",
                "seconds: the driver hangs, often before a card is lost; samples are missed "
                "meanwhile and counted so.",
            ),
            queries=[Query(f"sum by (call) ({spent}) / (sum by (call) ({calls}) > 0)", "{{call}}")],
            unit="s",
            minimum=0,
        )
    )


def _errors() -> Panel:
    return time_series(
        Figure(
            title="Calls of the driver that failed",
            about=About(
                "Which calls fail, per second? NOT_SUPPORTED counts once a probe.",
                "none after the start.",
                "GPU_IS_LOST: see the GPU's page. Others: NVML's manual names each code.",
            ),
            queries=[
                Query(
                    f"sum by (call, code) ({EXPORTER.rate(catalog.NVML_ERRORS)})",
                    "{{call}} {{code}}",
                )
            ],
            unit="short",
            no_data=NONE_SEEN,
            minimum=0,
        )
    )


def _samples() -> Panel:
    return time_series(
        Figure(
            title="Samples read from the driver",
            about=About(
                "How finely are the GPUs seen? Samples per second by signal, over all GPUs.",
                "constant; on an H200 5 a GPU for utilization and 50 for power.",
                "a signal without samples is not supported by the card, or the driver hangs.",
            ),
            queries=[Query(f"sum by (signal) ({EXPORTER.rate(catalog.SAMPLES)})", "{{signal}}")],
            unit="short",
            minimum=0,
            alerts=("SamplesMissed",),
        )
    )
