"""Row 3: A and B on one axis."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from grafana import sglang
from grafana.compare.sides import COLORS, HOW, A, B, both, watts
from grafana.figures import About, Figure
from grafana.panels import time_series
from grafana.queries import throughput


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(panel, 8, 8) for panel in (_lines_throughput(), _lines_first_token(), _lines_power())]


def _lines_throughput() -> Panel:
    return time_series(
        Figure(
            title="Tokens per second over time",
            about=About(
                f"Is the difference steady? {HOW}",
                "two steady lines.",
                "where they cross, the load differed: choose a time when it did not.",
            ),
            queries=both(throughput(A), throughput(B)),
            unit="short",
            minimum=0,
            colors=COLORS,
        )
    )


def _lines_first_token() -> Panel:
    return time_series(
        Figure(
            title="Time to first token, p95",
            about=About(
                "Which one lets clients wait longer? From SGLang's own histogram; not observable "
                f"unless SGLang itself is scraped. {HOW}",
                "B not above A.",
                "more stages cost a longer way through the pipeline for each prefill chunk.",
            ),
            queries=both(
                sglang.quantile(sglang.TIME_TO_FIRST_TOKEN, 0.95, "$model_a"),
                sglang.quantile(sglang.TIME_TO_FIRST_TOKEN, 0.95, "$model_b", B.offset),
            ),
            unit="s",
            minimum=0,
            colors=COLORS,
        )
    )


def _lines_power() -> Panel:
    return time_series(
        Figure(
            title="Power of all GPUs",
            about=About(
                f"Which one makes its GPUs work? Board power of all its GPUs together. {HOW}",
                "the faster one draws more.",
                "the same power for fewer tokens: GPUs wait in kernels or move data.",
            ),
            queries=both(f"sum({watts(A)})", f"sum({watts(B)})"),
            unit="watt",
            minimum=0,
            colors=COLORS,
        )
    )
