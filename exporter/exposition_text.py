"""Metric families → the text of a scrape, in Prometheus' format 0.0.4 or OpenMetrics 1.0.0. Pure.

prometheus_client escapes every name letter by letter, which is most of a scrape; ours are plain by
the catalog. A test holds the text against that library's own.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString


def text_of(families: Iterable[Metric], *, open_metrics: bool) -> bytes:
    """The families in their order."""
    parts: list[str] = []
    for family in families:
        parts += _family(family, open_metrics=open_metrics)
    if open_metrics:
        parts.append("# EOF\n")
    return "".join(parts).encode()


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
