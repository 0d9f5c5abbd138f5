"""Row 1: six figures as means over the time shown."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import sglang
from grafana.compare.sides import COLORS, HOW, A, B, both, watts
from grafana.figures import About, Figure, Query
from grafana.panels import stat_panel
from grafana.queries import loaded_share, throughput


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    figures = (
        _mean_throughput(),
        _ratio(),
        _mean_occupancy(),
        _mean_micro_batches(),
        _mean_latency(),
        _mean_efficiency(),
    )
    return [(panel, 4, 5) for panel in figures]


def _mean(figure: Figure) -> Panel:
    return stat_panel(figure, calculation="mean")


def _mean_throughput() -> Panel:
    return _mean(
        Figure(
            title="Tokens per second",
            about=About(
                f"Which one generates more? As SGLang prints it. {HOW}",
                "B not below A, under the same load.",
                "make sure that both had the same requests in flight, then read the stages below.",
            ),
            queries=both(throughput(A), throughput(B)),
            unit="short",
            decimals=0,
            minimum=0,
            colors=COLORS,
        )
    )


def _ratio() -> Panel:
    return _mean(
        Figure(
            title="Throughput of B over A, times",
            about=About(
                f"By how much is B faster? 1 is equal. {HOW}",
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
                f"stage time in flight. One tensor-parallel server is one stage. {HOW}",
                "above 70 % on both.",
                "the one with more bubbles: open its Pipeline occupancy.",
            ),
            queries=both(loaded_share(A), loaded_share(B)),
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
            colors=COLORS,
        )
    )


def _mean_micro_batches() -> Panel:
    a, b = (f"max({scope.now(catalog.EFFECTIVE_MICROBATCHES)})" for scope in (A, B))
    return _mean(
        Figure(
            title="Effective micro-batches",
            about=About(
                f"Which one splits its requests into more equal micro-batches? {HOW}",
                "as many as there are stages.",
                "near 1 is a herd. Not observable: the log hides slots.",
            ),
            queries=both(a, b),
            unit="short",
            decimals=1,
            minimum=0,
            colors=COLORS,
        )
    )


def _mean_latency() -> Panel:
    return _mean(
        Figure(
            title="Time between tokens, middle",
            about=About(
                "Which one answers a single client faster? Middle of SGLang's own histogram; not "
                f"observable unless SGLang itself is scraped. {HOW}",
                "B not above A.",
                "lower throughput with shorter times is a smaller batch, not a fault.",
            ),
            queries=both(
                sglang.quantile(sglang.INTER_TOKEN_LATENCY, 0.5, "$model_a"),
                sglang.quantile(sglang.INTER_TOKEN_LATENCY, 0.5, "$model_b", B.offset),
            ),
            unit="s",
            minimum=0,
            colors=COLORS,
        )
    )


def _mean_efficiency() -> Panel:
    a, b = (f"{throughput(scope)} / sum({watts(scope)})" for scope in (A, B))
    return _mean(
        Figure(
            title="Tokens per joule",
            about=About(
                "Which one gives more tokens for its energy? Tokens per second over the power of "
                f"all its GPUs. {HOW}",
                "B not below A.",
                "GPUs that wait draw a third to half of their working power: bubbles cost energy.",
            ),
            queries=both(a, b),
            unit="short",
            decimals=2,
            minimum=0,
            colors=COLORS,
        )
    )
