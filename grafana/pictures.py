"""Pictures of one pipeline that more than one dashboard shows."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.limits import loaded_occupancy_steps
from grafana.panels import heat_map, status_history, time_series
from grafana.queries import (
    MEASURED,
    UPPER_BOUND,
    Scope,
    active_stages_share,
    loaded_share_of_stages,
    state_share,
)


def work_of_stages(title: str, about: About, scope: Scope, *, columns: int = 90) -> Panel:
    """Stages by time: the share of each that is work while in flight, pale where it may be less."""
    return status_history(
        Figure(
            title=title,
            about=about,
            queries=[Query(loaded_share_of_stages(scope), "stage {{pp_rank}}{{upper_bound}}")],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=loaded_occupancy_steps(),
            colors={"at most$": palette.UNTOLD},
            alerts=("BubbleRatioHigh",),
        ),
        columns=columns,
    )


def active_stages(title: str, about: About, scope: Scope, *, columns: int = 90) -> Panel:
    """How many stages work at once: a herd is a band at the bottom."""
    return heat_map(
        Figure(
            title=title,
            about=about,
            queries=[Query(active_stages_share(scope), "{{stages}}")],
            unit="percentunit",
            minimum=0,
            maximum=1,
        ),
        axis="stages at work",
        columns=columns,
    )


def stage_time(title: str, about: About, scope: Scope) -> Panel:
    """What stages do with their time, in four bands."""
    return time_series(
        Figure(
            title=title,
            about=about,
            queries=[
                Query(state_share(scope, "working", method=MEASURED), "working"),
                Query(
                    state_share(scope, "working", method=UPPER_BOUND),
                    "working or waiting, not told apart",
                ),
                Query(state_share(scope, "waiting"), "waiting"),
                Query(state_share(scope, "idle"), "idle"),
            ],
            unit="percentunit",
            decimals=1,
            minimum=0,
            maximum=1,
            colors=palette.OF_STATES,
        ),
        stacked=True,
    )
