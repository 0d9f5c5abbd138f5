"""Row 4: who works and who only waits: shares beside power."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana.figures import About, Figure, Query
from grafana.limits import loaded_occupancy_steps
from grafana.panels import bar_gauge
from grafana.queries import STAGES, in_order, measured_share, of_stage, state_share
from grafana.tables import table_panel


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_working_now(), 6, 8),
        (_power_now(), 6, 8),
        (_stages_now(), 12, 8),
    ]


def _working_now() -> Panel:
    return bar_gauge(
        Figure(
            title="Working",
            about=About(
                "How much does each stage work now? Share of observed time; beside it the power "
                "that it draws.",
                "high and alike.",
                "full here and low in power: the stage waits, and no evidence told it apart.",
            ),
            queries=[
                Query(
                    in_order(state_share(STAGES, "working", "pp_rank")),
                    "stage {{pp_rank}}",
                    instant=True,
                )
            ],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=loaded_occupancy_steps(),
        )
    )


def _power_now() -> Panel:
    watts = of_stage(STAGES.now(catalog.GPU_POWER_WATTS), STAGES)
    most = of_stage(STAGES.now(catalog.GPU_POWER_LIMIT_WATTS), STAGES)
    return bar_gauge(
        Figure(
            title="Power, of the limit",
            about=About(
                "How much power does each stage draw, of its limit? Mean over its GPUs.",
                "alike; decode alone seldom needs more than half of the limit.",
                "compare with the share at the left: power says who really works.",
            ),
            queries=[
                Query(
                    in_order(f"sum by (pp_rank) ({watts}) / sum by (pp_rank) ({most})"),
                    "stage {{pp_rank}}",
                    instant=True,
                )
            ],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
        )
    )


def _stages_now() -> Panel:
    columns = _columns()
    letters = (f"Value #{chr(ord('A') + at)}" for at in range(len(columns)))
    return table_panel(
        Figure(
            title="Stages now",
            about=About(
                "What does each stage do now, and how well is that known? Measured is the share "
                "of its time that GPM or power told apart; the rest is an upper bound of work. "
                "Decoding and prefilling: requests in the newest batch, one micro-batch and not a "
                "total.",
                "rows alike, measured near 100 %.",
                "the row that differs is the stage to look at; its GPU's page has clocks, "
                "throttling and errors.",
            ),
            queries=[Query(in_order(column), instant=True) for column in columns.values()],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            units={
                "^Power$": "watt",
                "^Temperature$": "celsius",
                "^(Stage|Decoding|Prefilling)$": "short",
            },
        ),
        key="pp_rank",
        columns={"pp_rank": "Stage", **dict(zip(letters, columns, strict=True))},
        bars=("Working", "Waiting", "Idle"),
    )


def _columns() -> dict[str, str]:
    """Heading → expression."""
    watts = of_stage(STAGES.now(catalog.GPU_POWER_WATTS), STAGES)
    celsius = of_stage(STAGES.now(catalog.GPU_TEMPERATURE_CELSIUS), STAGES)
    prefilled = STAGES.now(catalog.STAGE_BATCH_SIZE, mode="prefill")
    return {
        "Working": state_share(STAGES, "working", "pp_rank"),
        "Waiting": state_share(STAGES, "waiting", "pp_rank"),
        "Idle": state_share(STAGES, "idle", "pp_rank"),
        "Measured": measured_share(STAGES, "pp_rank"),
        "Kernel resident": f"max by (pp_rank) ({STAGES.now(catalog.STAGE_GPU_UTILIZATION)})",
        "Power": f"sum by (pp_rank) ({watts})",
        "Temperature": f"max by (pp_rank) ({celsius})",
        "Decoding": f"max by (pp_rank) ({STAGES.now(catalog.STAGE_RUNNING_REQUESTS)})",
        "Prefilling": f"max by (pp_rank) ({prefilled})",
    }
