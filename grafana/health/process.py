"""What the exporter itself costs."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.panels import time_series
from grafana.queries import RATE_INTERVAL, TARGET


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(_processor(), 8, 7), (_memory(), 8, 7), (_files(), 8, 7)]


def _processor() -> Panel:
    spent = f"rate(process_cpu_seconds_total{{{TARGET}}}[{RATE_INTERVAL}])"
    return _of_process(
        "Processor time",
        f"sum by (instance) ({spent})",
        "percentunit",
        About(
            "What does the exporter cost? Share of one core.",
            "a few percent.",
            "near 100 %: too many lines a second; a larger --decode-log-interval helps.",
        ),
    )


def _memory() -> Panel:
    return _of_process(
        "Memory",
        f"sum by (instance) (process_resident_memory_bytes{{{TARGET}}})",
        "bytes",
        About(
            "How much memory does it hold?",
            "constant, below 150 MB.",
            "growth without end is a fault: please report it.",
        ),
    )


def _files() -> Panel:
    return _of_process(
        "Open files",
        f"sum by (instance) (process_open_fds{{{TARGET}}})",
        "short",
        About(
            "Does it keep files open that it no longer needs?",
            "constant; journals that rotate come and go.",
            "growth without end is a fault: please report it.",
        ),
    )


def _of_process(title: str, expression: str, unit: str, about: About) -> Panel:
    return time_series(
        Figure(
            title=title,
            about=about,
            queries=[Query(expression, "{{instance}}")],
            unit=unit,
            minimum=0,
            colors={".": palette.BEST},
        )
    )
