"""What a panel says: queries, unit, limits, words; and what all kinds of panels have in common.

Every panel has a title, a description, a unit, a text for "nothing known" and the dashboard's
data source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    DashboardFieldConfigSourceOverrides,
    DashboardLink,
    DashboardLinkType,
    DashboardSpecialValueMapOptions,
    DynamicConfigValue,
    FieldColor,
    FieldColorModeId,
    FieldConfig,
    FieldConfigSource,
    MatcherConfig,
    Panel,
    SpecialValueMap,
    SpecialValueMatch,
    ThresholdsConfig,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import Dataquery, PromQueryFormat, QueryEditorMode

from grafana import palette
from grafana.limits import runbook_of

NOT_OBSERVABLE: Final = "not observable"
NONE_SEEN: Final = "none seen"
"""Where series appear when something happens first, so that none is good news."""
DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

_NAN: Final = SpecialValueMap(
    DashboardSpecialValueMapOptions(
        match=SpecialValueMatch.NULL_AND_NAN,
        result=ValueMappingResult(text=NOT_OBSERVABLE, color=palette.GRAY, index=0),
    )
)


def words(texts: Mapping[str, str]) -> ValueMap:
    """Words in place of numbers, such as 1 and 0."""
    return ValueMap({value: ValueMappingResult(text=text) for value, text in texts.items()})


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query and how its series are named."""

    expression: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a panel is for: the text behind its (i)."""

    answers: str
    """The question it answers, with the formula in words."""
    good: str
    """What it looks like when all is well."""
    otherwise: str
    """What to do when it looks different."""

    def text(self) -> str:
        """As Markdown."""
        return f"{self.answers}\n\n**Good:** {self.good}\n\n**Otherwise:** {self.otherwise}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one panel says, apart from how it is drawn."""

    title: str
    about: About
    queries: Sequence[Query]
    unit: str
    decimals: int | None = None
    minimum: float | None = None
    maximum: float | None = None
    thresholds: ThresholdsConfig | None = None
    """Colors by value; without it series have fixed colors or the palette's."""
    colors: Mapping[str, str] = field(default_factory=dict)
    """Regular expression over the series' name → color."""
    units: Mapping[str, str] = field(default_factory=dict)
    """Exceptions from `unit`, by regular expression over the series' or column's name."""
    mappings: Sequence[ValueMapping] = ()
    decimals_of: Mapping[str, int] = field(default_factory=dict)
    """Exceptions from `decimals`, likewise."""
    no_data: str = NOT_OBSERVABLE
    """What stands there when no query has a series."""
    alerts: Sequence[str] = ()
    """Alerts on this figure, without prefix: the panel leads to their runbooks."""


def base_panel(
    kind: str,
    figure: Figure,
    options: object,
    custom: object,
    color: FieldColorModeId | None,
) -> Panel:
    """What all kinds have in common; `color` is `None` where the kind has no such setting."""
    defaults = FieldConfig(
        unit=figure.unit,
        decimals=figure.decimals,
        min_val=figure.minimum,
        max_val=figure.maximum,
        thresholds=figure.thresholds or palette.steps(palette.BEST),
        color=FieldColor(mode=color, fixed_color=palette.BEST) if color else None,
        mappings=[*figure.mappings, _NAN],
        no_value=figure.no_data,
        custom=custom,
    )
    panel = Panel(
        type_val=kind,
        title=figure.title,
        description=figure.about.text(),
        datasource=DATASOURCE,
        targets=[_target(query, chr(ord("A") + at)) for at, query in enumerate(figure.queries)],
        options=options,
        field_config=FieldConfigSource(defaults=defaults, overrides=[]),
        links=[_runbook_link(alert) for alert in figure.alerts] or None,
    )
    for pattern, fixed in figure.colors.items():
        chosen = {"mode": "fixed", "fixedColor": fixed}
        override(panel, "byRegexp", pattern, {"color": chosen})
    for pattern, unit in figure.units.items():
        override(panel, "byRegexp", pattern, {"unit": unit})
    for pattern, decimals in figure.decimals_of.items():
        override(panel, "byRegexp", pattern, {"decimals": decimals})
    return panel


def _target(query: Query, name: str) -> Dataquery:
    return Dataquery(
        datasource=DATASOURCE,
        editor_mode=QueryEditorMode.CODE,
        expr=query.expression,
        format_val=PromQueryFormat.TIME_SERIES,
        instant=query.instant,
        range_val=not query.instant,
        legend_format=query.legend or "__auto",
        ref_id=name,
    )


def override(panel: Panel, matcher: str, name: str, properties: Mapping[str, object]) -> None:
    """Sets properties of the series or columns that a matcher finds."""
    field_config = panel.field_config or FieldConfigSource()
    field_config.overrides = field_config.overrides or []
    field_config.overrides.append(
        DashboardFieldConfigSourceOverrides(
            matcher=MatcherConfig(id_val=matcher, options=name),
            properties=[DynamicConfigValue(id_val=at, value=to) for at, to in properties.items()],
        )
    )


def ask_as(panel: Panel, form: PromQueryFormat) -> None:
    """Changes the form of the answers: one frame of columns, or buckets of a histogram."""
    for target in panel.targets or ():
        if isinstance(target, Dataquery):
            target.format_val = form


def _runbook_link(alert: str) -> DashboardLink:
    return DashboardLink(
        title=f"Runbook: {alert}",
        type_val=DashboardLinkType.LINK,
        url=runbook_of(alert),
        target_blank=True,
    )
