"""Compare: two servers, or one server at two times, side by side; such as TP8 against PP8."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from exporter import metric_catalog as catalog
from grafana.compare import means, overlaid, side_by_side
from grafana.frame import Row, dashboard, label_values, query_variable, text_variable

UID: Final = "sglang-pipeline-compare"
_VARIABLES: Final = (
    query_variable("server_a", label_values(catalog.STAGES, "server")),
    query_variable("server_b", label_values(catalog.STAGES, "server")),
    query_variable("model_a", label_values(catalog.INFO, "model", 'server="$server_a"')),
    query_variable("model_b", label_values(catalog.INFO, "model", 'server="$server_b"')),
    text_variable(
        "offset_b",
        "0s",
        "How much earlier B is: 0s for two servers now, 1h or 1d for before and after a change.",
    ),
)


def build() -> Dashboard:
    """The dashboard as Grafana's own types."""
    return dashboard(
        UID,
        "SGLang / Compare",
        "Two servers, or one server at two times, side by side: what did the change bring?",
        _VARIABLES,
        [
            Row("Mean of the time shown", means.panels()),
            Row("Stages side by side", side_by_side.panels()),
            Row("On top of each other", overlaid.panels()),
        ],
    )
