"""Figures of many queries in one frame: tables, and one value against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.models import common, table, xychart
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig, FieldColorModeId, Panel
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.figures import Figure, ask_as, base_panel, override
from grafana.panels import legend_options


def scatter(figure: Figure, *, x: str, y: str, key: str) -> Panel:
    """Points, one a value of the label `key`, from two instant queries: `x` against `y`."""
    options = xychart.Options(
        mapping=xychart.SeriesMapping.MANUAL,
        legend=legend_options([], shown=False),
        tooltip=common.VizTooltipOptions(mode=common.TooltipDisplayMode.SINGLE),
        series=[
            xychart.XYSeriesConfig(
                name=xychart.XychartXYSeriesConfigName(fixed=figure.title),
                x=xychart.XychartXYSeriesConfigX(matcher=_column(x)),
                y=xychart.XychartXYSeriesConfigY(matcher=_column(y)),
                frame=xychart.XychartXYSeriesConfigFrame(
                    matcher=xychart.MatcherConfig(id_val="byIndex", options=0)
                ),
            )
        ],
    )
    custom = xychart.FieldConfig(
        show=xychart.XYShowMode.POINTS,
        point_size=xychart.XychartFieldConfigPointSize(fixed=12),
        point_shape=xychart.PointShape.CIRCLE,
        fill_opacity=80,
    )
    panel = base_panel("xychart", figure, options, custom, FieldColorModeId.FIXED)
    _as_table(panel, key, {"Value #A": x, "Value #B": y, key: key})
    return panel


def table_panel(
    figure: Figure, *, key: str, columns: Mapping[str, str], bars: Sequence[str] = ()
) -> Panel:
    """A row a value of the label `key`, from instant queries joined by it.

    Args:
        figure: Its queries are columns `Value #A`, `Value #B`, … in their order.
        key: The label that the queries share.
        columns: Column (a label, or `Value #A`) → heading, in the order shown; others are hidden.
        bars: Headings of shares that are drawn as LCD bars, colored by the figure's thresholds.
    """
    options = table.Options(
        show_header=True, cell_height=common.TableCellHeight.SM, footer=common.TableFooterOptions()
    )
    custom = common.TableFieldOptions(align=common.FieldTextAlignment.AUTO)
    panel = base_panel("table", figure, options, custom, FieldColorModeId.THRESHOLDS)
    _as_table(panel, key, columns)
    for heading in bars:
        cell = {"type": "gauge", "mode": "lcd", "valueDisplayMode": "text"}
        override(panel, "byName", heading, {"custom.cellOptions": cell, "custom.minWidth": 200})
    return panel


def _as_table(panel: Panel, key: str, columns: Mapping[str, str]) -> None:
    """One frame from many queries: joined by a label, then named, ordered and cut."""
    ask_as(panel, PromQueryFormat.TABLE)
    order = {column: at for at, column in enumerate(columns)}
    panel.transformations = [
        DataTransformerConfig(id_val="joinByField", options={"byField": key, "mode": "outer"}),
        DataTransformerConfig(
            id_val="filterFieldsByName", options={"include": {"names": list(columns)}}
        ),
        DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": key}]}),
        DataTransformerConfig(
            id_val="organize",
            options={"indexByName": order, "renameByName": dict(columns), "excludeByName": {}},
        ),
    ]


def _column(name: str) -> xychart.MatcherConfig:
    return xychart.MatcherConfig(id_val="byName", options=name)
