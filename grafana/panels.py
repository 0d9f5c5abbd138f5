"""How a figure is drawn: one function a kind of panel."""

from __future__ import annotations

from grafana_foundation_sdk.models import (
    common,
    heatmap,
    stat,
    statushistory,
    timeseries,
)
from grafana_foundation_sdk.models.dashboard import FieldColorModeId, Panel
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana import palette
from grafana.figures import Figure, ask_as, base_panel


def time_series(figure: Figure, *, stacked: bool = False) -> Panel:
    """Lines, or areas on top of each other, with a table of mean and maximum below."""
    custom = common.GraphFieldConfig(
        draw_style=common.GraphDrawStyle.LINE,
        line_interpolation=common.LineInterpolation.LINEAR,
        line_width=0 if stacked else 2,
        fill_opacity=75 if stacked else 5,
        show_points=common.VisibilityMode.NEVER,
        span_nulls=False,
        axis_soft_min=0,
        stacking=common.StackingConfig(
            mode=common.StackingMode.NORMAL if stacked else common.StackingMode.NONE
        ),
        thresholds_style=common.GraphThresholdsStyleConfig(
            mode=common.GraphThresholdsStyleMode.DASHED
            if figure.thresholds
            else common.GraphThresholdsStyleMode.OFF
        ),
    )
    options = timeseries.Options(
        legend=legend_options(["mean", "max"]),
        tooltip=common.VizTooltipOptions(
            mode=common.TooltipDisplayMode.MULTI, sort=common.SortOrder.DESCENDING
        ),
    )
    return base_panel("timeseries", figure, options, custom, FieldColorModeId.PALETTE_CLASSIC)


def stat_panel(figure: Figure, *, calculation: str = "last", sparkline: bool = True) -> Panel:
    """One number (or a few), colored by its thresholds, over a line of its past."""
    options = stat.Options(
        graph_mode=common.BigValueGraphMode.AREA if sparkline else common.BigValueGraphMode.NONE,
        color_mode=common.BigValueColorMode.VALUE,
        justify_mode=common.BigValueJustifyMode.AUTO,
        text_mode=common.BigValueTextMode.AUTO,
        reduce_options=_reduce(calculation),
        orientation=common.VizOrientation.AUTO,
    )
    return base_panel("stat", figure, options, None, FieldColorModeId.THRESHOLDS)


def status_history(figure: Figure, *, columns: int = 90) -> Panel:
    """Rows of cells: one row a series, one cell a step of time, colored by value; no merging."""
    options = statushistory.Options(
        row_height=0.92,
        col_width=1.0,
        show_value=common.VisibilityMode.NEVER,
        legend=legend_options([]),
        tooltip=common.VizTooltipOptions(mode=common.TooltipDisplayMode.SINGLE),
    )
    custom = statushistory.FieldConfig(fill_opacity=100, line_width=0)
    panel = base_panel("status-history", figure, options, custom, _by_value(figure))
    panel.max_data_points = columns
    return panel


def heat_map(figure: Figure, *, axis: str, buckets: bool = False, columns: int = 90) -> Panel:
    """Cells of time and size, the brighter the more; `buckets` for a histogram with `le`."""
    color = heatmap.HeatmapColorOptions(
        mode=heatmap.HeatmapColorMode.SCHEME,
        scheme=palette.HEATMAP_SCHEME,
        fill=palette.BEST,
        scale=heatmap.HeatmapColorScale.EXPONENTIAL,
        exponent=0.5,
        steps=64,
        reverse=False,
        min_val=figure.minimum,
        max_val=figure.maximum,
    )
    options = heatmap.Options(
        calculate=False,
        color=color,
        cell_gap=1,
        cell_values=heatmap.CellValues(unit=figure.unit),
        filter_values=heatmap.FilterValueRange(le=0.005 if not buckets else 1e-9),
        rows_frame=heatmap.RowsHeatmapOptions(
            value=figure.title,
            layout=common.HeatmapCellLayout.LE if buckets else common.HeatmapCellLayout.UNKNOWN,
        ),
        show_value=common.VisibilityMode.NEVER,
        y_axis=heatmap.YAxisConfig(
            axis_placement=common.AxisPlacement.LEFT, axis_label=axis, unit="short", reverse=False
        ),
        legend=heatmap.HeatmapLegend(show=True),
        tooltip=heatmap.HeatmapTooltip(
            mode=common.TooltipDisplayMode.SINGLE, y_histogram=True, show_color_scale=True
        ),
        exemplars=heatmap.ExemplarConfig(color=palette.BAD),
    )
    panel = base_panel("heatmap", figure, options, heatmap.FieldConfig(), None)
    panel.max_data_points = columns
    if buckets:
        ask_as(panel, PromQueryFormat.HEATMAP)
    return panel


def _by_value(figure: Figure) -> FieldColorModeId:
    if figure.thresholds:
        return FieldColorModeId.THRESHOLDS
    return FieldColorModeId.CONTINUOUS_YL_BL  # its low end differs from a cell that is not there


def _reduce(calculation: str) -> common.ReduceDataOptions:
    return common.ReduceDataOptions(values=False, calcs=[calculation], fields="")


def legend_options(calculations: list[str], *, shown: bool = True) -> common.VizLegendOptions:
    """Names below the panel, with calculations as a table of one line a series."""
    return common.VizLegendOptions(
        display_mode=common.LegendDisplayMode.TABLE
        if calculations
        else common.LegendDisplayMode.LIST,
        placement=common.LegendPlacement.BOTTOM,
        show_legend=shown,
        calcs=calculations,
    )
