"""Metric families → the text of a scrape, in Prometheus' format 0.0.4 or OpenMetrics 1.0.0. Pure.

prometheus_client escapes every name letter by letter, which is most of a scrape; ours are plain by
the catalog. A test holds the text against that library's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString


class Collector(Protocol):
    """Whoever has families."""

    def collect(self) -> Iterable[Metric]:
        """All of them."""


def exposition(collector: Collector, accept: str) -> tuple[bytes, str]:
    """The text and its content type, in the format that an Accept header asks for."""
    _, content_type = choose_encoder(accept)
    open_metrics = content_type.startswith("application/openmetrics-text")
    parts: list[str] = []
    for family in collector.collect():
        parts += _family(family, open_metrics=open_metrics)
    if open_metrics:
        parts.append("# EOF\n")
    return "".join(parts).encode(), content_type


def _family(family: Metric, *, open_metrics: bool) -> Iterable[str]:
    name = family.name
    if family.type == "counter" and not open_metrics:
        name += "_total"
    told = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
    if open_metrics:
        told = told.replace('"', '\\"')
    yield f"# HELP {name} {told}\n# TYPE {name} {family.type}\n"
    for sample in family.samples:
        labels = sample.labels
        value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]  # the library's own
        if labels:
            pairs = ",".join([f'{key}="{_escaped(labels[key])}"' for key in sorted(labels)])
            yield f"{sample.name}{{{pairs}}} {value}\n"
        else:
            yield f"{sample.name} {value}\n"


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
