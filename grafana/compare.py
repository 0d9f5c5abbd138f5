"""Compare: two servers, or one server at two times, side by side; such as TP8 against PP8."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from exporter import metric_catalog as catalog
from grafana import palette, sglang
from grafana.figures import About, Figure, Query
from grafana.frame import Row, dashboard, label_values, query_variable, text_variable
from grafana.limits import loaded_occupancy_steps
from grafana.panels import heat_map, stat_panel, status_history, time_series
from grafana.queries import (
    MEASURED,
    UPPER_BOUND,
    Scope,
    active_stages_share,
    in_order,
    loaded_share,
    of_stage,
    state_share,
    throughput,
)

UID: Final = "sglang-pipeline-compare"
A: Final = Scope({"server": 'server="$server_a"'})
B: Final = Scope({"server": 'server="$server_b"'}, offset=" offset $offset_b")
_COLORS: Final = {"^A": palette.BEST, "^B": palette.POOR}
_HOW: Final = "A is server_a; B is server_b, offset_b earlier."

_VARIABLES: Final = (
    query_variable("server_a", label_values(catalog.STAGES, "server")),
    query_variable("server_b", label_values(catalog.STAGES, "server")),
    query_variable("model_a", label_values(catalog.INFO, "model", 'server="$server_a"')),
    query_variable("model_b", label_values(catalog.INFO, "model", 'server="$server_b"')),
    text_variable(
        "offset_b",
        "0s",
        "How much earlier B is: 0s for two servers now, 1h or 1d for before and after a change.",
    ),
)


def build() -> Dashboard:
    """The dashboard as Grafana's own types."""
    return dashboard(
        UID,
        "SGLang / Compare",
        "Two servers, or one server at two times, side by side: what did the change bring?",
        _VARIABLES,
        [
            Row("Mean of the time shown", [(panel, 4, 5) for panel in _means()]),
            Row("Stages side by side", _side_by_side()),
            Row("On top of each other", _overlaid()),
        ],
    )


def _both(expression_a: str, expression_b: str) -> list[Query]:
    return [Query(expression_a, "A"), Query(expression_b, "B")]


# --- means -------------------------------------------------------------------------------------


def _means() -> list[Panel]:
    return [
        _mean_throughput(),
        _ratio(),
        _mean_occupancy(),
        _mean_micro_batches(),
        _mean_latency(),
        _mean_efficiency(),
    ]


def _mean(figure: Figure) -> Panel:
    return stat_panel(figure, calculation="mean")


def _mean_throughput() -> Panel:
    return _mean(
        Figure(
            title="Tokens per second",
            about=About(
                f"Which one generates more? As SGLang prints it. {_HOW}",
                "B not below A, under the same load.",
                "make sure that both had the same requests in flight, then read the stages below.",
            ),
            queries=_both(throughput(A), throughput(B)),
            unit="short",
            decimals=0,
            minimum=0,
            colors=_COLORS,
        )
    )


def _ratio() -> Panel:
    return _mean(
        Figure(
            title="Throughput of B over A, times",
            about=About(
                f"By how much is B faster? 1 is equal. {_HOW}",
                "above 1 if B is the change you made.",
                "below 1, the occupancy and the micro-batches beside it say whether B lost it to "
                "bubbles or to batches too small to pay.",
            ),
            queries=[Query(f"{throughput(B)} / ({throughput(A)} > 0)", "B over A")],
            unit="short",
            decimals=2,
            minimum=0,
        )
    )


def _mean_occupancy() -> Panel:
    return _mean(
        Figure(
            title="Loaded occupancy",
            about=About(
                "Which one loses less stage time while it has requests? Stage time with work over "
                f"stage time in flight. One tensor-parallel server is one stage. {_HOW}",
                "above 70 % on both.",
                "the one with more bubbles: open its Pipeline occupancy.",
            ),
            queries=_both(loaded_share(A), loaded_share(B)),
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            colors=_COLORS,
        )
    )


def _mean_micro_batches() -> Panel:
    a, b = (f"max({scope.now(catalog.EFFECTIVE_MICROBATCHES)})" for scope in (A, B))
    return _mean(
        Figure(
            title="Effective micro-batches",
            about=About(
                f"Which one splits its requests into more equal micro-batches? {_HOW}",
                "as many as there are stages.",
                "near 1 is a herd. Not observable: the log hides slots.",
            ),
            queries=_both(a, b),
            unit="short",
            decimals=1,
            minimum=0,
            colors=_COLORS,
        )
    )


def _mean_latency() -> Panel:
    return _mean(
        Figure(
            title="Time between tokens, middle",
            about=About(
                "Which one answers a single client faster? Middle of SGLang's own histogram; not "
                f"observable unless SGLang itself is scraped. {_HOW}",
                "B not above A.",
                "lower throughput with shorter times is a smaller batch, not a fault.",
            ),
            queries=_both(
                sglang.quantile(sglang.INTER_TOKEN_LATENCY, 0.5, "$model_a"),
                sglang.quantile(sglang.INTER_TOKEN_LATENCY, 0.5, "$model_b", B.offset),
            ),
            unit="s",
            minimum=0,
            colors=_COLORS,
        )
    )


def _mean_efficiency() -> Panel:
    a, b = (f"{throughput(scope)} / sum({_watts(scope)})" for scope in (A, B))
    return _mean(
        Figure(
            title="Tokens per joule",
            about=About(
                "Which one gives more tokens for its energy? Tokens per second over the power of "
                f"all its GPUs. {_HOW}",
                "B not below A.",
                "GPUs that wait draw a third to half of their working power: bubbles cost energy.",
            ),
            queries=_both(a, b),
            unit="short",
            decimals=2,
            minimum=0,
            colors=_COLORS,
        )
    )


def _watts(scope: Scope) -> str:
    return of_stage(scope.now(catalog.GPU_POWER_WATTS), scope)


# --- side by side ------------------------------------------------------------------------------


def _side_by_side() -> list[tuple[Panel, int, int]]:
    pairs = (("A", A), ("B", B))
    rows = (_work, _active, _states)
    return [(draw(name, scope), 12, 8) for draw in rows for name, scope in pairs]


def _work(name: str, scope: Scope) -> Panel:
    return status_history(
        Figure(
            title=f"{name}: work of each stage while in flight",
            about=About(
                f"Which stage of {name} has work when? Share of a stage's time with work while "
                f"requests were in flight. {_HOW}",
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
                f"one exporter. {_HOW}",
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
                f"evidence tells waiting from work, both are one band. {_HOW}",
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


# --- on top of each other ----------------------------------------------------------------------


def _overlaid() -> list[tuple[Panel, int, int]]:
    return [(panel, 8, 8) for panel in (_lines_throughput(), _lines_first_token(), _lines_power())]


def _lines_throughput() -> Panel:
    return time_series(
        Figure(
            title="Tokens per second over time",
            about=About(
                f"Is the difference steady? {_HOW}",
                "two steady lines.",
                "where they cross, the load differed: choose a time when it did not.",
            ),
            queries=_both(throughput(A), throughput(B)),
            unit="short",
            minimum=0,
            colors=_COLORS,
        )
    )


def _lines_first_token() -> Panel:
    return time_series(
        Figure(
            title="Time to first token, p95",
            about=About(
                "Which one lets clients wait longer? From SGLang's own histogram; not observable "
                f"unless SGLang itself is scraped. {_HOW}",
                "B not above A.",
                "more stages cost a longer way through the pipeline for each prefill chunk.",
            ),
            queries=_both(
                sglang.quantile(sglang.TIME_TO_FIRST_TOKEN, 0.95, "$model_a"),
                sglang.quantile(sglang.TIME_TO_FIRST_TOKEN, 0.95, "$model_b", B.offset),
            ),
            unit="s",
            minimum=0,
            colors=_COLORS,
        )
    )


def _lines_power() -> Panel:
    return time_series(
        Figure(
            title="Power of all GPUs",
            about=About(
                f"Which one makes its GPUs work? Board power of all its GPUs together. {_HOW}",
                "the faster one draws more.",
                "the same power for fewer tokens: GPUs wait in kernels or move data.",
            ),
            queries=_both(f"sum({_watts(A)})", f"sum({_watts(B)})"),
            unit="watt",
            minimum=0,
            colors=_COLORS,
        )
    )
