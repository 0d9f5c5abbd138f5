"""Row 2: the stages of A at the left, those of B at the right."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from grafana import palette
from grafana.compare.sides import HOW, A, B
from grafana.figures import About, Figure, Query
from grafana.limits import loaded_occupancy_steps
from grafana.panels import heat_map, status_history, time_series
from grafana.queries import (
    MEASURED,
    UPPER_BOUND,
    Scope,
    active_stages_share,
    in_order,
    loaded_share,
    state_share,
)


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    pairs = (("A", A), ("B", B))
    rows = (_work, _active, _states)
    return [(draw(name, scope), 12, 8) for draw in rows for name, scope in pairs]


def _work(name: str, scope: Scope) -> Panel:
    return status_history(
        Figure(
            title=f"{name}: work of each stage while in flight",
            about=About(
                f"Which stage of {name} has work when? Share of a stage's time with work while "
                f"requests were in flight. {HOW}",
                "all blue; dark is a quarter or less, as where one herd serves four stages or more.",
                "low rows and columns are bubbles; Pipeline occupancy tells their causes apart.",
            ),
            queries=[Query(in_order(loaded_share(scope, "pp_rank")), "stage {{pp_rank}}")],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=loaded_occupancy_steps(),
            alerts=("BubbleRatioHigh",),
        ),
        columns=60,
    )


def _active(name: str, scope: Scope) -> Panel:
    return heat_map(
        Figure(
            title=f"{name}: stages that work at once",
            about=About(
                f"How many stages of {name} work at the same instant? Share of time by number, of "
                f"one exporter. {HOW}",
                "one bright band at the number of stages.",
                "a band at 1 or 2 is a herd that travels alone.",
            ),
            queries=[Query(active_stages_share(scope), "{{stages}}")],
            unit="percentunit",
            minimum=0,
            maximum=1,
        ),
        axis="stages at work",
        columns=60,
    )


def _states(name: str, scope: Scope) -> Panel:
    return time_series(
        Figure(
            title=f"{name}: where stage time goes",
            about=About(
                f"What do the stages of {name} do with their time, in flight or not? Where no "
                f"evidence tells waiting from work, both are one band. {HOW}",
                "mostly working.",
                "compare the waiting bands: that is what the split costs.",
            ),
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
            minimum=0,
            maximum=1,
            colors=palette.OF_STATES,
        ),
        stacked=True,
    )
