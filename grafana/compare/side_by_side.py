"""Row 2: the stages of A at the left, those of B at the right."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from grafana.compare.sides import HOW, A, B
from grafana.figures import About
from grafana.pictures import active_stages, stage_time, work_of_stages
from grafana.queries import Scope


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    pairs = (("A", A), ("B", B))
    rows = (_work, _active, _states)
    return [(draw(name, scope), 12, 8) for draw in rows for name, scope in pairs]


def _work(name: str, scope: Scope) -> Panel:
    return work_of_stages(
        f"{name}: work of each stage while in flight",
        About(
            f"Which stage of {name} has work when? Share of a stage's time with work while "
            f"requests were in flight; pale is at most so much. {HOW}",
            "all blue; dark is a quarter or less, as where one herd serves four stages or more.",
            "low rows and columns are bubbles; Pipeline occupancy tells their causes apart.",
        ),
        scope,
        columns=60,
    )


def _active(name: str, scope: Scope) -> Panel:
    return active_stages(
        f"{name}: stages that work at once",
        About(
            f"How many stages of {name} work at the same instant? Share of time by number, of "
            f"one exporter. {HOW}",
            "one bright band at the number of stages.",
            "a band at 1 or 2 is a herd that travels alone.",
        ),
        scope,
        columns=60,
    )


def _states(name: str, scope: Scope) -> Panel:
    return stage_time(
        f"{name}: where stage time goes",
        About(
            f"What do the stages of {name} do with their time, in flight or not? Where no "
            f"evidence tells waiting from work, both are one band. {HOW}",
            "mostly working.",
            "compare the waiting bands: that is what the split costs.",
        ),
        scope,
    )
