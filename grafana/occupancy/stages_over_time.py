"""Row 2: which stage has work when, how many at once, and where the time goes."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana.figures import About, Figure, Query
from grafana.panels import status_history
from grafana.pictures import active_stages, stage_time, work_of_stages
from grafana.queries import PIPELINE, STAGES, in_order, of_stage


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_work_of_each_stage(), 24, 9),
        (_active_stages(), 12, 8),
        (_power_of_each_stage(), 12, 8),
        (_where_time_goes(), 24, 7),
    ]


def _work_of_each_stage() -> Panel:
    return work_of_stages(
        "Work of each stage while in flight",
        About(
            "Which stage has work when? Each cell is the share of a stage's time with work "
            "while requests were in flight; time without requests has no cell. Pale and marked *at "
            "most*: a kernel was there, but nothing tells whether it worked or waited.",
            "all blue; dark is a quarter or less, as where one herd serves four stages or more.",
            "all stages low all the time: a herd or too few micro-batches (compare the panel "
            "below). One blue row among low ones: that stage is slow and the others wait. "
            "Low columns: the whole pipeline stalls. Diagonals: long prefill chunks travel.",
        ),
        STAGES,
    )


def _active_stages() -> Panel:
    return active_stages(
        "Stages that work at once",
        About(
            "How many stages work at the same instant? Share of time by number of working "
            "stages. Of one exporter: where a pipeline spans hosts, pick an instance. Within "
            "0.2 s windows stages are taken as independent: the mean is exact, the band is "
            "somewhat wider than the truth.",
            "one bright band at the number of stages.",
            "a band at 1 or 2 is a herd that travels alone. Two bands, at 0 and at the top, "
            "are stalls of the whole pipeline. A band in the middle: as many micro-batches.",
        ),
        PIPELINE,
    )


def _power_of_each_stage() -> Panel:
    watts = of_stage(PIPELINE.now(catalog.GPU_POWER_WATTS), PIPELINE)
    return status_history(
        Figure(
            title="Power of each stage, relative to the highest",
            about=About(
                "Does a stage work harder than the others? Board power of each stage's GPUs over "
                "that of the highest stage: a witness that needs no learned levels, where a "
                "kernel that only waits counts as resident.",
                "all rows alike.",
                "one dark blue row: that stage sets the pace; the pale ones wait for it although their "
                "GPUs read as busy. One pale row among blue ones: a throttled or idle card.",
            ),
            queries=[
                Query(
                    in_order(
                        f"avg by (pp_rank) ({watts}) "
                        f"/ on () group_left () max(avg by (pp_rank) ({watts}))"
                    ),
                    "stage {{pp_rank}}",
                )
            ],
            unit="percentunit",
            decimals=0,
            minimum=0.5,
            maximum=1,
            alerts=("StageSkewHigh",),
        ),
        columns=60,
    )


def _where_time_goes() -> Panel:
    return stage_time(
        "Where stage time goes",
        About(
            "What do the stages do with their time, in flight or not? Mean over all stages. "
            "Waiting: a kernel is resident but does no work, such as an NCCL receive. Where "
            "no evidence tells it from work, both are one band: an upper bound of work.",
            "mostly working.",
            "waiting points to another stage or to few micro-batches, idle to the host or to "
            "missing requests. A wide untold band: see what would show more.",
        ),
        PIPELINE,
    )
