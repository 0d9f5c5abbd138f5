"""What every dashboard has: variables, annotations, links, rows of panels on a grid of 24."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import (
    AnnotationContainer,
    AnnotationQuery,
    Dashboard,
    DashboardCursorSync,
    DashboardDashboardTemplating,
    DashboardDashboardTime,
    DashboardLink,
    DashboardLinkType,
    GridPos,
    Panel,
    RowPanel,
    TimePickerConfig,
    VariableHide,
    VariableModel,
    VariableOption,
    VariableRefresh,
    VariableSort,
    VariableType,
)
from grafana_foundation_sdk.models.prometheus import Dataquery

from exporter import metric_catalog as catalog
from exporter.thresholds import ALERT_PREFIX
from grafana import palette
from grafana.figures import DATASOURCE
from grafana.links import RUNBOOKS, SOURCE
from grafana.queries import TARGET

TAG: Final = "sglang-pipeline"
SCHEMA_VERSION: Final = 41
"""Grafana 11.6 and newer; older ones show it as well, newer ones bring it up to date."""
COLUMNS: Final = 24
_SERIES_OF_A_TARGET: Final = "sglang_pipeline_exporter_build_info|sglang:num_requests_total"


@dataclass(frozen=True, slots=True)
class Row:
    """Panels side by side, each with its width and height; a new line begins at 24 columns."""

    title: str
    panels: Sequence[tuple[Panel, int, int]]
    collapsed: bool = False


def dashboard(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[VariableModel],
    rows: Sequence[Row],
) -> Dashboard:
    """A dashboard that Grafana takes by provisioning and by hand alike."""
    return Dashboard(
        uid=uid,
        title=title,
        description=description,
        tags=[TAG],
        editable=False,
        graph_tooltip=DashboardCursorSync.CROSSHAIR,
        time=DashboardDashboardTime(from_val="now-15m", to="now"),
        timepicker=TimePickerConfig(refresh_intervals=["5s", "10s", "30s", "1m", "5m"]),
        refresh="10s",
        schema_version=SCHEMA_VERSION,
        version=1,
        panels=list(_placed(rows)),
        templating=DashboardDashboardTemplating(list_val=[*TARGET_VARIABLES, *variables]),
        annotations=AnnotationContainer(list_val=_annotations()),
        links=_links(),
    )


# --- variables ---------------------------------------------------------------------------------


def query_variable(
    name: str, query: str, *, multi: bool = False, description: str = ""
) -> VariableModel:
    """A variable with the values of a label; `multi` brings All, which matches anything."""
    return VariableModel(
        type_val=VariableType.QUERY,
        name=name,
        label=name,
        description=description or None,
        query={"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        definition=query,
        datasource=DATASOURCE,
        current=VariableOption(text=["All"], value=["$__all"]) if multi else None,
        multi=multi,
        include_all=multi,
        all_value=".+" if multi else None,
        refresh=VariableRefresh.ON_TIME_RANGE_CHANGED,
        sort=VariableSort.NATURAL_ASC,
    )


def label_values(key: str, label: str, *matchers: str) -> str:
    """The query of a variable: values of a label of a catalog metric.

    Raises:
        KeyError: The metric has no such label.
    """
    spec = catalog.CATALOG[key]
    if label not in spec.labels:
        raise KeyError(f"{spec.name} has no label {label}")
    return f"label_values({spec.name}{{{', '.join((TARGET, *matchers))}}}, {label})"


TARGET_VARIABLES: Final = (
    VariableModel(
        type_val=VariableType.DATASOURCE,
        name="datasource",
        label="Data Source",
        query="prometheus",
        refresh=VariableRefresh.ON_DASHBOARD_LOAD,
    ),
    query_variable(
        "job",
        f'label_values({{__name__=~"{_SERIES_OF_A_TARGET}"}}, job)',
        multi=True,
        description="Scrape jobs of the exporters, and of SGLang where it is scraped itself.",
    ),
    query_variable(
        "instance",
        f'label_values({{__name__=~"{_SERIES_OF_A_TARGET}", job=~"$job"}}, instance)',
        multi=True,
    ),
)
PIPELINE_VARIABLES: Final = (
    query_variable("server", label_values(catalog.STAGES, "server")),
    query_variable("dp_rank", label_values(catalog.STAGES, "dp_rank", 'server="$server"')),
    query_variable(
        "model",
        label_values(catalog.INFO, "model", 'server="$server"'),
        description="Finds the server's own metrics, which know no server name.",
    ),
    query_variable(
        "pp_rank",
        label_values(catalog.STAGE_SECONDS, "pp_rank", 'server="$server"', 'dp_rank="$dp_rank"'),
        multi=True,
        description="Stages shown one by one; figures of the whole pipeline always hold all.",
    ),
)
GPU_VARIABLE: Final = query_variable("gpu", label_values(catalog.GPU_INFO, "gpu"), multi=True)


def text_variable(name: str, value: str, description: str) -> VariableModel:
    """A variable that is typed in."""
    return VariableModel(
        type_val=VariableType.TEXTBOX,
        name=name,
        label=name,
        description=description,
        query=value,
        current=VariableOption(text=value, value=value),
        hide=VariableHide.DONT_HIDE,
    )


# --- annotations and links ---------------------------------------------------------------------


def _annotations() -> list[AnnotationQuery]:
    info = f"{catalog.CATALOG[catalog.INFO].name}{{{TARGET}}}"
    ranks = f'{catalog.CATALOG[catalog.GPU_INFO].name}{{{TARGET}, pp_rank!=""}}'
    here, before = (f"count by (server, dp_rank) ({ranks}{ago})" for ago in ("", " offset 1m"))
    return [
        AnnotationQuery(
            name="Annotations & Alerts",
            datasource=DataSourceRef(type_val="grafana", uid="-- Grafana --"),
            enable=True,
            hide=True,
            icon_color=palette.BEST,
            type_val="dashboard",
            built_in=1,
        ),
        _annotation(
            "Firing alerts",
            palette.BAD,
            f'ALERTS{{alertname=~"{ALERT_PREFIX}.+", alertstate="firing"}}',
            "{{alertname}}",
            "{{server}} {{instance}} {{severity}}",
        ),
        _annotation(
            "Server started",
            palette.GREEN,
            f"{here} unless {before}",
            "Server started: {{server}}",
            "Its ranks appeared on the GPUs.",
        ),
        _annotation(
            "Configuration changed",
            palette.PINK,
            f"{info} unless {info} offset 1m",
            "Configuration of {{server}}",
            "pp {{pp_size}}, tp {{tp_size}}, async depth {{pp_async_batch_depth}}, "
            "log interval {{decode_log_interval}}, "
            "micro-batch cap {{pp_max_micro_batch_size}}, SGLang {{version}}",
        ),
    ]


def _annotation(name: str, color: str, expression: str, title: str, text: str) -> AnnotationQuery:
    return AnnotationQuery(
        name=name,
        datasource=DATASOURCE,
        enable=True,
        icon_color=color,
        expr=expression,
        target=Dataquery(datasource=DATASOURCE, expr=expression, ref_id="Anno"),
        title_format=title,
        text_format=text,
        step="15s",
        use_value_for_time=False,
    )


def _links() -> list[DashboardLink]:
    return [
        DashboardLink(
            title="Pipeline dashboards",
            type_val=DashboardLinkType.DASHBOARDS,
            icon="external link",
            tags=[TAG],
            as_dropdown=False,
            include_vars=True,
            keep_time=True,
        ),
        DashboardLink(
            title="Runbooks",
            type_val=DashboardLinkType.LINK,
            icon="doc",
            url=RUNBOOKS,
            target_blank=True,
        ),
        DashboardLink(
            title="Source",
            type_val=DashboardLinkType.LINK,
            icon="info",
            url=SOURCE,
            target_blank=True,
        ),
    ]


# --- layout ------------------------------------------------------------------------------------


def _placed(rows: Sequence[Row]) -> Iterator[Panel | RowPanel]:
    """Every row's header and panels with their place; panels of a collapsed row go into it."""
    y = 0
    number = 0
    for row in rows:
        number += 1
        header = RowPanel(
            collapsed=row.collapsed,
            title=row.title,
            grid_pos=GridPos(h=1, w=COLUMNS, x=0, y=y),
            id_val=number,
            panels=[],
        )
        y += 1
        x = line = 0
        inside: list[Panel] = []
        for panel, width, height in row.panels:
            if x + width > COLUMNS:
                x, y, line = 0, y + line, 0
            number += 1
            panel.id_val = number
            panel.grid_pos = GridPos(h=height, w=width, x=x, y=y)
            x, line = x + width, max(line, height)
            inside.append(panel)
        if row.collapsed:
            header.panels = inside
        else:
            y += line
        yield header
        if not row.collapsed:
            yield from inside
