"""Row 4: who works and who only waits: shares beside power."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.limits import loaded_occupancy_steps
from grafana.queries import STAGES, in_order, measured_share, of_stage, state_share
from grafana.tables import table_panel


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [(_stages_now(), 24, 8)]


def _stages_now() -> Panel:
    columns = _columns()
    letters = (f"Value #{chr(ord('A') + at)}" for at in range(len(columns)))
    return table_panel(
        Figure(
            title="Stages now",
            about=About(
                "What does each stage do now, what does it draw, and how well is that known? "
                "Measured is the share of its time that GPM or power told apart; the rest is an "
                "upper bound of work. Decoding and prefilling: requests in the newest batch, one "
                "micro-batch and not a total.",
                "rows alike, measured near 100 %; decode alone seldom needs more than half of the "
                "power limit.",
                "full of work but lower in power than another: the stage waits and nothing told it "
                "apart. The row that differs is the stage to look at: GPU detail has its clocks, "
                "throttling and errors.",
            ),
            queries=[Query(in_order(column), instant=True) for column in columns.values()],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=loaded_occupancy_steps(),
            colors={"^Power, of the limit$": palette.BEST},
            units={
                "^Power$": "watt",
                "^Temperature$": "celsius",
                "^(Stage|Decoding|Prefilling)$": "short",
            },
        ),
        key="pp_rank",
        columns={"pp_rank": "Stage", **dict(zip(letters, columns, strict=True))},
        bars=("Working", "Power, of the limit"),
    )


def _columns() -> dict[str, str]:
    """Heading → expression."""
    watts = of_stage(STAGES.now(catalog.GPU_POWER_WATTS), STAGES)
    most = of_stage(STAGES.now(catalog.GPU_POWER_LIMIT_WATTS), STAGES)
    celsius = of_stage(STAGES.now(catalog.GPU_TEMPERATURE_CELSIUS), STAGES)
    prefilled = STAGES.now(catalog.STAGE_BATCH_SIZE, mode="prefill")
    return {
        "Working": state_share(STAGES, "working", "pp_rank"),
        "Power, of the limit": f"sum by (pp_rank) ({watts}) / sum by (pp_rank) ({most})",
        "Waiting": state_share(STAGES, "waiting", "pp_rank"),
        "Idle": state_share(STAGES, "idle", "pp_rank"),
        "Measured": measured_share(STAGES, "pp_rank"),
        "Kernel resident": f"max by (pp_rank) ({STAGES.now(catalog.STAGE_GPU_UTILIZATION)})",
        "Power": f"sum by (pp_rank) ({watts})",
        "Temperature": f"max by (pp_rank) ({celsius})",
        "Decoding": f"max by (pp_rank) ({STAGES.now(catalog.STAGE_RUNNING_REQUESTS)})",
        "Prefilling": f"max by (pp_rank) ({prefilled})",
    }
