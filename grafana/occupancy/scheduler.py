"""Row 5: queue, KV pool, prefill, graphs, and what clients feel."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette, sglang
from grafana.figures import About, Figure, Query
from grafana.limits import limit
from grafana.panels import time_series
from grafana.queries import PIPELINE


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_queue(), 8, 7),
        (_kv_pool(), 8, 7),
        (_prefill(), 8, 7),
        (_graphs(), 8, 7),
        (sglang.time_to_first_token(), 8, 7),
        (sglang.inter_token_latency(), 8, 7),
    ]


def _queue() -> Panel:
    queue = PIPELINE.now(catalog.STAGE_QUEUED_REQUESTS)
    retracted = PIPELINE.rate(catalog.STAGE_RETRACTED_REQUESTS)
    return time_series(
        Figure(
            title="Queue and retractions",
            about=About(
                "Do requests wait? The whole server's queue, as the stages print it (highest, "
                "never summed), and requests thrown back per second because KV space ran out.",
                "0, or short peaks.",
                "a queue beside bubbles is a fault of the scheduler, a queue beside a full KV "
                "pool is a lack of memory.",
            ),
            queries=[
                Query(f"max({queue})", "queued requests"),
                Query(f"max({retracted})", "retracted per second"),
            ],
            unit="short",
            minimum=0,
            colors={"^queued": palette.BEST, "^retracted": palette.BAD},
            alerts=("QueueWithIdleStages", "PipelineStalled"),
        )
    )


def _kv_pool() -> Panel:
    usage = PIPELINE.now(catalog.STAGE_TOKEN_USAGE)
    return time_series(
        Figure(
            title="KV pool in use",
            about=About(
                "Is there room for more requests? Used share of the fullest stage's pool.",
                "below 90 %.",
                "with a queue or retractions: fewer requests, a larger --mem-fraction-static, or "
                "shorter contexts.",
            ),
            queries=[Query(f"max by (pool) ({usage})", "{{pool}}")],
            unit="percentunit",
            minimum=0,
            maximum=1,
            thresholds=limit("KvPoolExhausted"),
            alerts=("KvPoolExhausted",),
        )
    )


def _prefill() -> Panel:
    tokens = PIPELINE.rate(catalog.STAGE_PREFILL_TOKENS)
    return time_series(
        Figure(
            title="Prompt tokens per second",
            about=About(
                "How much prefill work is there, and how much does the prefix cache save? Tokens "
                "computed and tokens found, of the stage that printed most.",
                "what the traffic brings.",
                "large amounts beside slow decode: prefill chunks hold decode up; a smaller "
                "--chunked-prefill-size shortens each.",
            ),
            queries=[Query(f"max by (origin) ({tokens})", "{{origin}}")],
            unit="short",
            minimum=0,
            colors={"^computed$": palette.BEST, "^cached$": palette.POOR},
        )
    )


def _graphs() -> Panel:
    graph = PIPELINE.rate(catalog.STAGE_GRAPH_BATCHES)
    lines = PIPELINE.rate(catalog.STAGE_BATCHES)
    return time_series(
        Figure(
            title="Batches that ran as a graph",
            about=About(
                "Do batches run as captured graphs? Share of batch lines whose flag says so, by "
                "mode; absent where the version prints none.",
                "decode near 100 %; prefill may be anything.",
                "decode below: --disable-cuda-graph is set, or batches are larger than the largest "
                "captured size; kernels are then launched one by one and the GPU idles between.",
            ),
            queries=[
                Query(
                    f"sum by (mode) ({graph}) / (sum by (mode) ({lines}) > 0)",
                    "{{mode}}",
                )
            ],
            unit="percentunit",
            minimum=0,
            maximum=1,
            thresholds=limit("DecodeWithoutGraph"),
            colors={"^decode$": palette.BEST, "^prefill$": palette.GRAY},
            alerts=("DecodeWithoutGraph",),
        )
    )
