"""Row 6: is everything read, and what would show more."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana.figures import NONE_SEEN, About, Figure, Query, words
from grafana.limits import limit
from grafana.panels import stat_panel
from grafana.queries import EXPORTER, PIPELINE
from grafana.tables import table_panel


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(_what_shows_more(), 7, 7), (_sources(), 6, 7), (_configuration(), 11, 7)]


def _what_shows_more() -> Panel:
    setting = EXPORTER.now(catalog.RECOMMENDATION)
    return table_panel(
        Figure(
            title="What would show more",
            about=About(
                "Which settings of SGLang or of the host would make these figures sharper? Each "
                "row is one that is not in force.",
                "no row.",
                "set it at the next restart of the server; README, Settings of SGLang that show "
                "more, says what each brings.",
            ),
            queries=[Query(f"max by (setting) ({setting})", instant=True)],
            unit="short",
            no_data=NONE_SEEN,
            decimals=0,
        ),
        key="setting",
        columns={"setting": "Setting to switch on"},
    )


def _sources() -> Panel:
    return stat_panel(
        Figure(
            title="Sources of the exporter",
            about=About(
                "Is everything read? A source that is down names its remedy in the exporter's log.",
                "all are read.",
                "the exporter's page at / and /-/ready name the remedy; the Exporter health "
                "dashboard has lag, losses and refusals.",
            ),
            queries=[
                Query(
                    f"min by (source) ({EXPORTER.now(catalog.SOURCE_UP)})",
                    "{{source}}",
                    instant=True,
                )
            ],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("ExporterSourceDown"),
            mappings=[words({"1": "is read", "0": "is down"})],
            alerts=("ExporterSourceDown",),
        ),
        sparkline=False,
    )


def _configuration() -> Panel:
    info = PIPELINE.now(catalog.INFO)
    return table_panel(
        Figure(
            title="Configuration of the server",
            about=About(
                "How was the server started? An empty cell is not known.",
                "what you meant to start.",
                "the exporter learns it from the log's server_args line or, with url set, from "
                "/server_info.",
            ),
            queries=[Query(info, instant=True)],
            unit="string",
        ),
        key="server",
        columns={
            "server": "Server",
            "model": "Model",
            "version": "SGLang",
            "pp_size": "PP",
            "tp_size": "TP",
            "pp_async_batch_depth": "Async depth",
            "pp_max_micro_batch_size": "Micro-batch cap",
            "decode_log_interval": "Log interval",
        },
    )
