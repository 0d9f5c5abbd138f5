"""What clients feel, from SGLang's own metrics, where Prometheus scrapes them.

Names are of sglang 0.5.23, srt/observability/metrics_collector.py (`--enable-metrics`). They carry
the model's name but no server's, so two servers of one model show as one.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Panel

from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.panels import time_series
from grafana.queries import RATE_INTERVAL, TARGET

TIME_TO_FIRST_TOKEN: Final = "sglang:time_to_first_token_seconds"  # noqa: S105  # tokens of text
INTER_TOKEN_LATENCY: Final = "sglang:inter_token_latency_seconds"  # noqa: S105  # same
QUANTILES: Final = ((0.5, palette.BEST), (0.95, palette.POOR), (0.99, palette.BAD))
_ABSENT: Final = (
    "Not observable unless SGLang runs with --enable-metrics and Prometheus scrapes it."
)


def time_to_first_token() -> Panel:
    """How long clients wait for the first token."""
    return time_series(
        Figure(
            title="Time to first token",
            about=About(
                "How long do clients wait for the first token? Quantiles of SGLang's own "
                f"histogram. {_ABSENT}",
                "steady, and near the time of one prefill.",
                "a queue or long prefills of others come first: see the panels beside it.",
            ),
            queries=_quantiles(TIME_TO_FIRST_TOKEN),
            unit="s",
            minimum=0,
            colors=_COLORS,
        )
    )


def inter_token_latency() -> Panel:
    """How long clients wait between tokens."""
    return time_series(
        Figure(
            title="Time between tokens",
            about=About(
                "How long do clients wait between two tokens? Quantiles of SGLang's own "
                f"histogram. {_ABSENT}",
                "steady; its high quantile within a few times the middle one.",
                "peaks of the high quantile are decode steps behind prefill chunks or a stall; a "
                "high middle beside low occupancy is a bubble that clients feel.",
            ),
            queries=_quantiles(INTER_TOKEN_LATENCY),
            unit="s",
            minimum=0,
            colors=_COLORS,
        )
    )


def quantile(name: str, share: float, model: str = "$model", offset: str = "") -> str:
    """A quantile of one of SGLang's histograms."""
    buckets = f'{name}_bucket{{{TARGET}, model_name="{model}"}}[{RATE_INTERVAL}]{offset}'
    return f"histogram_quantile({share:g}, sum by (le) (rate({buckets})))"


_COLORS: Final = {f"^p{share * 100:g}$": color for share, color in QUANTILES}


def _quantiles(name: str) -> list[Query]:
    return [Query(quantile(name, share), f"p{share * 100:g}") for share, _ in QUANTILES]
