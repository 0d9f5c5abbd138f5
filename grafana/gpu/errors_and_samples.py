"""What the driver reports as wrong, and how well a GPU is sampled."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import NONE_SEEN, About, Figure, Query
from grafana.gpu.names import BY, NAME
from grafana.limits import limit
from grafana.panels import time_series
from grafana.queries import GPUS


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(_xid(), 8, 7), (_missed(), 8, 7), (_sample_age(), 8, 7)]


def _xid() -> Panel:
    return time_series(
        Figure(
            title="XID errors",
            about=About(
                "Did the driver report errors? Count since the exporter's start, by number.",
                "none.",
                "NVIDIA's list of XID errors says what each number means; 79 is a card that fell "
                "off the bus.",
            ),
            queries=[
                Query(
                    f"sum by ({BY}, xid) (increase("
                    f"{GPUS.select(catalog.GPU_XID_ERRORS)}[$__rate_interval]))",
                    "GPU {{gpu}} XID {{xid}}",
                )
            ],
            unit="short",
            no_data=NONE_SEEN,
            minimum=0,
            thresholds=limit("GpuXid"),
            alerts=("GpuXid",),
        )
    )


def _missed() -> Panel:
    missed = GPUS.rate(catalog.GPU_MISSED_SECONDS)
    seen = GPUS.rate(catalog.GPU_OBSERVED_SECONDS)
    by = f"{BY}, signal"
    return time_series(
        Figure(
            title="Time that no sample covers",
            about=About(
                "Can the figures be trusted? Share of time between samples that none covers, by "
                "signal; it counts in no share.",
                "0.",
                "the driver or the exporter stood still: see calls of the driver on the Exporter "
                "health dashboard.",
            ),
            queries=[
                Query(
                    f"sum by ({by}) ({missed}) / (sum by ({by}) ({missed}) + "
                    f"sum by ({by}) ({seen}) > 0)",
                    "GPU {{gpu}} {{signal}}",
                )
            ],
            unit="percentunit",
            minimum=0,
            maximum=1,
            thresholds=limit("SamplesMissed"),
            alerts=("SamplesMissed",),
        )
    )


def _sample_age() -> Panel:
    newest = GPUS.now(catalog.GPU_LAST_SAMPLE_TIMESTAMP)
    return time_series(
        Figure(
            title="Age of the newest sample",
            about=About(
                "Is each GPU still sampled? Time since the newest sample of any signal.",
                "about a second, and the scrape interval on top.",
                "growing without end: the driver hangs, or the GPU is lost.",
            ),
            queries=[Query(f"time() - max by ({BY}) ({newest})", NAME)],
            unit="s",
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )
