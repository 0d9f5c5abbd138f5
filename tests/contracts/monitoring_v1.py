"""The fields of the Prometheus operator's objects that the manifests use, as JSON schemas.

Written by hand after the operator's own definitions (monitoring.coreos.com/v1, prometheus-operator
0.80.1, example/prometheus-operator-crd), because no package that ships them installs beside these
tests. Stricter than those: a field that is not used is not known here, so that a misspelled one,
which the API server drops in silence, is found.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
DURATION: Schema = {
    "type": "string",
    "pattern": "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?"
    "(([0-9]+)ms)?)$",
    "minLength": 1,
}


def record(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def resource(kind: str, spec: Schema) -> Schema:
    metadata = record(("name",), name=TEXT, namespace=TEXT, labels=TEXTS)
    return record(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "monitoring.coreos.com/v1"},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


RELABELING = record(
    sourceLabels=list_of({**TEXT, "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}),
    targetLabel=TEXT,
    replacement=TEXT,
)
ENDPOINT = record(port=TEXT, interval=DURATION, relabelings=list_of(RELABELING))
RULE = record(
    ("expr",),
    record=TEXT,
    alert=TEXT,
    expr=TEXT,
    labels=TEXTS,
    annotations=TEXTS,
    **{"for": DURATION},
)
GROUP = record(("name",), name={**TEXT, "minLength": 1}, rules=list_of(RULE))

SCHEMAS = {
    "PodMonitor": resource(
        "PodMonitor",
        record(
            ("selector",),
            selector=record(matchLabels=TEXTS),
            podMetricsEndpoints=list_of(ENDPOINT),
        ),
    ),
    "PrometheusRule": resource("PrometheusRule", record(groups=list_of(GROUP))),
}
"""Kind → its schema."""
