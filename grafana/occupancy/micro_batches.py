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
        (_sizes(), 9, 8),
        (_slots(), 7, 8),
        (_newest_batch(), 8, 8),
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
                "Does the log show all micro-batches, and how evenly are they filled? Slots there "
                "are, slots that the log can show at this decode_log_interval, and effective "
                "micro-batches.",
                "all lines together, at the number of slots.",
                "seen below slots: --decode-log-interval 41 (or another prime). Effective far "
                "below slots: uneven split or herd.",
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


def _newest_batch() -> Panel:
    running = PIPELINE.now(catalog.STAGE_RUNNING_REQUESTS)
    size = PIPELINE.now(catalog.STAGE_BATCH_SIZE, mode="prefill")
    return time_series(
        Figure(
            title="Requests in the newest batch",
            about=About(
                "How many requests does one micro-batch hold? Of one micro-batch and never "
                "summed: each stage prints the same batches. Highest and lowest over stages.",
                "requests in flight over stages.",
                "all requests in one batch is a herd; 1 or 2 in every batch of a full pipeline is "
                "a split too fine to pay.",
            ),
            queries=[
                Query(f"max({running})", "decode, highest stage"),
                Query(f"min({running})", "decode, lowest stage"),
                Query(f"max({size})", "prefill, highest stage"),
            ],
            unit="short",
            minimum=0,
            colors={
                "^decode, highest": palette.BEST,
                "^decode, lowest": palette.GOOD,
                "^prefill": palette.POOR,
            },
        )
    )
