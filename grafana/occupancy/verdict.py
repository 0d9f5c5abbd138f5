"""Row 1: six figures that say whether the pipeline is well."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.limits import limit, measured_steps
from grafana.panels import stat_panel
from grafana.queries import (
    PIPELINE,
    bubble_share,
    loaded_share,
    measured_share,
    or_unknown,
    throughput,
)


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_loaded_occupancy(), 4, 5),
        (_measured(), 3, 5),
        (_bubble(), 3, 5),
        (_filled_micro_batches(), 4, 5),
        (_balance(), 4, 5),
        (_throughput(), 3, 5),
        (_gain(), 3, 5),
    ]


def _loaded_occupancy() -> Panel:
    return stat_panel(
        Figure(
            title="Loaded occupancy",
            about=About(
                "How full is the pipeline while it has requests? Stage time with work over stage "
                "time in flight; time without requests counts nowhere.",
                "above 70 %. M equal micro-batches in P stages cannot give more than M / P.",
                "look below which stages miss their work: all alike (few or unequal micro-batches, "
                "the host), all but one (a slow stage), all at once (a stall).",
            ),
            queries=[Query(or_unknown(loaded_share(PIPELINE)))],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("BubbleRatioHigh", "QueueWithIdleStages", complement=True),
        )
    )


def _bubble() -> Panel:
    return stat_panel(
        Figure(
            title="Bubble",
            about=About(
                "How much stage time is lost while requests are in flight? Idle stage time over "
                "total stage time (not over useful time, as some papers write it).",
                "below 30 %; below 10 % under steady load.",
                "the runbook tells the causes apart; with a queue beside it users wait for nothing.",
            ),
            queries=[Query(or_unknown(bubble_share(PIPELINE)))],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("BubbleRatioHigh", "QueueWithIdleStages"),
            alerts=("BubbleRatioHigh", "QueueWithIdleStages"),
        )
    )


def _filled_micro_batches() -> Panel:
    return stat_panel(
        Figure(
            title="Effective micro-batches",
            about=About(
                "Into how many micro-batches of equal size are the requests split? "
                "(sum b)² / sum b² over the slots, beside the number of slots there are.",
                "as many as there are stages.",
                "near 1 a herd travels through the stages and leaves the others empty: lower "
                "--pp-max-micro-batch-size. Not observable: the log hides slots, see what would "
                "show more, at the bottom.",
            ),
            queries=[
                Query(
                    or_unknown(f"max({PIPELINE.now(catalog.EFFECTIVE_MICROBATCHES)})"), "effective"
                ),
                Query(or_unknown(f"max({PIPELINE.now(catalog.MICROBATCH_SLOTS)})"), "slots"),
            ],
            unit="short",
            decimals=1,
            minimum=0,
            thresholds=limit("ThunderingHerd"),
            colors={"slots": palette.GRAY},
            decimals_of={"slots": 0},
            alerts=("ThunderingHerd", "MicrobatchesNotObservable"),
        ),
        sparkline=False,
    )


def _balance() -> Panel:
    return stat_panel(
        Figure(
            title="Balance and skew of stages",
            about=About(
                "Is one stage slower than the others? Balance is the mean over the highest working "
                "share, skew the highest less the lowest, over 30 s.",
                "balance near 100 %, skew below 25 points. A herd does not show here: every "
                "micro-batch visits every stage.",
                "find the stage below, then its layers (SGLANG_PP_LAYER_PARTITION), clock and "
                "temperature. By residency all stages look alike: trust power then.",
            ),
            queries=[
                Query(or_unknown(f"min({PIPELINE.now(catalog.BALANCE)})"), "balance"),
                Query(or_unknown(f"max({PIPELINE.now(catalog.STAGE_SKEW)})"), "skew"),
            ],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("StageSkewHigh"),
            colors={"balance": palette.GRAY},
            alerts=("StageSkewHigh",),
        ),
        sparkline=False,
    )


def _throughput() -> Panel:
    return stat_panel(
        Figure(
            title="Tokens per second",
            about=About(
                "How many tokens does the server generate per second, over all micro-batches? As "
                "SGLang prints it; every stage prints the same total, so it is not summed.",
                "what the same hardware gave before; the Compare dashboard holds it against a "
                "baseline.",
                "read the occupancy first: a full pipeline that is slow is split too finely.",
            ),
            queries=[Query(or_unknown(throughput(PIPELINE)))],
            unit="short",
            decimals=0,
            minimum=0,
        )
    )


def _gain() -> Panel:
    return stat_panel(
        Figure(
            title="Predicted gain, times",
            about=About(
                "How much faster would the best even split be? Its throughput over the present one, "
                "by a fit of stage time to batch size.",
                "near 1: nothing to win by splitting differently.",
                "above 1.1, set --pp-max-micro-batch-size to requests over stages. Not observable "
                "until two different loads were seen.",
            ),
            queries=[Query(or_unknown(f"max({PIPELINE.now(catalog.PREDICTED_GAIN)})"))],
            unit="short",
            decimals=2,
            minimum=0,
        )
    )


def _measured() -> Panel:
    return stat_panel(
        Figure(
            title="Measured",
            about=About(
                "How far can these figures be trusted? Share of the stages' time that GPM or power "
                "divided into working and waiting. In the rest a kernel that waits counts as work.",
                "above 90 %.",
                "occupancy and balance are upper bounds, and stages look more alike than they are: "
                "compare their power. Levels are learned once a stage is seen idle or waiting "
                "alone; what would show more stands at the bottom.",
            ),
            queries=[Query(or_unknown(measured_share(PIPELINE)))],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=measured_steps(),
        )
    )
