"""Row 3: how large the micro-batches are, and whether the log shows them all."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.panels import heat_map, time_series
from grafana.queries import PIPELINE


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_sizes(), 14, 8),
        (_slots(), 10, 8),
    ]


def _sizes() -> Panel:
    buckets = PIPELINE.rate(catalog.STAGE_BATCH_REQUESTS, "_bucket", mode="decode")
    return heat_map(
        Figure(
            title="Sizes of decode batches",
            about=About(
                "How large are the micro-batches that the log shows? Batch lines per second by "
                "number of requests, mean over stages.",
                "one band, at requests over stages.",
                "bands far apart are unequal micro-batches: the largest sets the pace. With an "
                "interval that hides slots this shows one slot only.",
            ),
            queries=[Query(f"avg by (le) ({buckets})", "{{le}}")],
            unit="short",
            minimum=0,
        ),
        axis="requests",
        buckets=True,
    )


def _slots() -> Panel:
    return time_series(
        Figure(
            title="Slots filled, and slots seen",
            about=About(
                "How evenly are the slots filled, and does the log show all that are filled? Slots "
                "there are, those that the log can show at this decode_log_interval, and effective "
                "micro-batches.",
                "all lines together, at the number of slots.",
                "effective far below slots: uneven split or herd. Seen low and effective absent: "
                "the log hides slots, --decode-log-interval 41 (or another prime) shows them.",
            ),
            queries=[
                Query(f"max({PIPELINE.now(catalog.MICROBATCH_SLOTS)})", "slots"),
                Query(f"max({PIPELINE.now(catalog.MICROBATCH_SLOTS_OBSERVABLE)})", "slots seen"),
                Query(f"max({PIPELINE.now(catalog.EFFECTIVE_MICROBATCHES)})", "effective"),
            ],
            unit="short",
            minimum=0,
            colors={
                "^slots$": palette.GRAY,
                "^slots seen$": palette.POOR,
                "^effective$": palette.BEST,
            },
            alerts=("ThunderingHerd", "MicrobatchesNotObservable"),
        )
    )
