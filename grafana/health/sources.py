"""Does everything answer, in which version, and what would show more."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana.figures import NONE_SEEN, About, Figure, Query
from grafana.limits import limit
from grafana.panels import stat_panel, status_history
from grafana.queries import EXPORTER, TARGET
from grafana.tables import table_panel


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_targets(), 8, 7),
        (_sources(), 8, 7),
        (_reload(), 8, 7),
        (_what_shows_more(), 12, 7),
        (_builds(), 12, 7),
    ]


def _targets() -> Panel:
    return status_history(
        Figure(
            title="Targets that answer",
            about=About(
                "Does Prometheus reach each target? 1 while it does.",
                "1 everywhere.",
                "the host, its firewall or the exporter is down: every figure of that host is "
                "missing, and its alerts are silent.",
            ),
            queries=[Query(f"min by (job, instance) (up{{{TARGET}}})", "{{instance}} {{job}}")],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("TargetDown"),
            alerts=("TargetDown",),
        ),
        columns=60,
    )


def _sources() -> Panel:
    up = EXPORTER.now(catalog.SOURCE_UP)
    return status_history(
        Figure(
            title="Sources that are read",
            about=About(
                "Is each source read? 1 while it is, 0 while it cannot be.",
                "1 everywhere.",
                "the exporter's log, its page at / and /-/ready name the remedy.",
            ),
            queries=[Query(f"min by (instance, source) ({up})", "{{instance}} {{source}}")],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("ExporterSourceDown"),
            alerts=("ExporterSourceDown",),
        ),
        columns=60,
    )


def _reload() -> Panel:
    loaded = EXPORTER.now(catalog.CONFIG_LAST_RELOAD_SUCCESSFUL)
    return stat_panel(
        Figure(
            title="Newest configuration in force",
            about=About(
                "Is the configuration in force the newest one? 1 if it is, on every exporter.",
                "1.",
                "check-config FILE names every mistake; the one before it stays in force.",
            ),
            queries=[Query(f"min({loaded})", instant=True)],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("ConfigReloadFailed"),
            alerts=("ConfigReloadFailed",),
        ),
        sparkline=False,
    )


def _what_shows_more() -> Panel:
    return table_panel(
        Figure(
            title="What would show more",
            about=About(
                "Which settings of SGLang or of the host would make the figures sharper? Each row "
                "is one that is not in force.",
                "no row.",
                "set it at the next restart of the server; the README says what each brings.",
            ),
            queries=[Query(EXPORTER.now(catalog.RECOMMENDATION), instant=True)],
            unit="string",
            no_data=NONE_SEEN,
        ),
        key="setting",
        columns={"setting": "Setting to switch on", "instance": "Instance"},
    )


def _builds() -> Panel:
    return table_panel(
        Figure(
            title="Versions",
            about=About(
                "Which exporter runs where?",
                "the same version everywhere.",
                "update the old ones: a pipeline over hosts is joined from all.",
            ),
            queries=[Query(EXPORTER.now(catalog.BUILD_INFO), instant=True)],
            unit="string",
        ),
        key="instance",
        columns={"instance": "Instance", "version": "Exporter", "python_version": "Python"},
    )
