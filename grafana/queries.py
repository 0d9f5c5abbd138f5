"""PromQL from the catalog: names and labels come from the specs, never from memory.

The scrape interval may be 1 s or 15 s: shares are rates of counters over `$__rate_interval`, which
Grafana keeps at four scrapes or more. Where nothing is known an expression has no sample, and
Grafana shows "not observable".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from exporter import metric_catalog as catalog
from exporter.thresholds import LEAST_MEASURED_RATIO, THRESHOLDS

RATE_INTERVAL: Final = "$__rate_interval"
RANGE: Final = "$__range"
TARGET: Final = 'job=~"$job", instance=~"$instance"'
"""What every selector holds, for exporters and for SGLang's own metrics alike."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which series a dashboard speaks of: label → matcher with a variable, and from when."""

    matchers: dict[str, str] = field(default_factory=dict)
    target: str = TARGET
    offset: str = ""

    def select(self, key: str, part: str = "", **labels: str) -> str:
        """A selector of one catalog metric.

        Args:
            key: Name in the catalog, without prefix.
            part: `_bucket`, `_sum` or `_count` of a histogram or summary.
            labels: Equality matchers; a value that begins with `=~` or `!=` brings its operator.

        Raises:
            KeyError: The catalog has no such metric, or the metric no such label.
        """
        spec = catalog.CATALOG[key]
        for label in labels:
            if label not in (*spec.labels, "le"):
                raise KeyError(f"{spec.name} has no label {label}")
        own = [text for label, text in self.matchers.items() if label in spec.labels]
        given = [_matcher(label, value) for label, value in labels.items()]
        return f"{spec.name}{part}{{{', '.join((self.target, *own, *given))}}}"

    def now(self, key: str, **labels: str) -> str:
        """The value at each instant of the graph."""
        return self.select(key, **labels) + self.offset

    def rate(self, key: str, part: str = "", window: str = RATE_INTERVAL, **labels: str) -> str:
        """Increase of a counter per second."""
        return f"rate({self.select(key, part, **labels)}[{window}]{self.offset})"

    def mean(self, key: str, window: str = RANGE, **labels: str) -> str:
        """Mean of a gauge over time."""
        return f"avg_over_time({self.select(key, **labels)}[{window}]{self.offset})"


def _matcher(label: str, value: str) -> str:
    operator = next((sign for sign in ("=~", "!~", "!=") if value.startswith(sign)), "")
    return f'{label}{operator or "="}"{value.removeprefix(operator)}"'


PIPELINE: Final = Scope({"server": 'server="$server"', "dp_rank": 'dp_rank="$dp_rank"'})
"""One pipeline: its stages may be seen by several exporters."""
STAGES: Final = Scope({**PIPELINE.matchers, "pp_rank": 'pp_rank=~"$pp_rank"'})
"""Its stages one by one, those that are picked."""
GPUS: Final = Scope({"gpu": 'gpu=~"$gpu"'})
EXPORTER: Final = Scope()


WELL_FILLED_RATIO: Final = round(1 - THRESHOLDS["QueueWithIdleStages"].value, 9)
"""Occupancy from which no alert on bubbles fires."""
MEASURED: Final = "=~gpm|power"
"""Methods that tell working from waiting."""
UPPER_BOUND: Final = "=~residency|forward_occupancy"
"""Methods that count waiting as work."""


def loaded_share(scope: Scope, by: str = "", window: str = RATE_INTERVAL) -> str:
    """Share of stage time with work while requests are in flight; no sample otherwise."""
    bubble = _sum(scope.rate(catalog.STAGE_BUBBLE_SECONDS, window=window), by)
    in_flight = _sum(scope.rate(catalog.STAGE_INFLIGHT_SECONDS, window=window), by)
    return f"1 - {bubble} / ({in_flight} > 0)"


def bubble_share(scope: Scope, by: str = "", window: str = RATE_INTERVAL) -> str:
    """Share of stage time without work while requests are in flight; no sample otherwise."""
    bubble = _sum(scope.rate(catalog.STAGE_BUBBLE_SECONDS, window=window), by)
    in_flight = _sum(scope.rate(catalog.STAGE_INFLIGHT_SECONDS, window=window), by)
    return f"{bubble} / ({in_flight} > 0)"


def loaded_share_of_stages(scope: Scope) -> str:
    """The same of each stage; where it is high but may be less, a label says so.

    By an upper bound low is low for certain, high says nothing. The label sorts after `pp_rank`,
    so that the rows of a stage stay together.
    """
    share = loaded_share(scope, "pp_rank")
    is_measured = f"({measured_share(scope, 'pp_rank')} >= {LEAST_MEASURED_RATIO})"
    doubtful = f"({share} >= {WELL_FILLED_RATIO} unless {is_measured})"
    marked = f'label_replace({doubtful}, "upper_bound", ", at most", "", "")'
    return in_order(f"({marked} or ({share} unless {doubtful}))")


def state_share(
    scope: Scope, state: str, by: str = "", window: str = RATE_INTERVAL, method: str = ""
) -> str:
    """Share of observed stage time in one state, or by one method."""
    chosen = {"state": state} if state else {}
    if method:
        chosen["method"] = method
    part = _sum(scope.rate(catalog.STAGE_SECONDS, window=window, **chosen), by)
    whole = _sum(scope.rate(catalog.STAGE_SECONDS, window=window), by)
    return f"{part} / ({whole} > 0)"


def measured_share(scope: Scope, by: str = "") -> str:
    """Share of observed stage time that a method divided which tells working from waiting.

    Time that only other methods divided is a known 0.
    """
    part = _sum(scope.rate(catalog.STAGE_SECONDS, method=MEASURED), by)
    whole = _sum(scope.rate(catalog.STAGE_SECONDS), by)
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def active_stages_share(scope: Scope) -> str:
    """Share of time by number of stages that work at once; of one exporter, never joined."""
    seconds = f"avg by (stages) ({scope.rate(catalog.ACTIVE_STAGES_SECONDS)})"
    return in_order(f"{seconds} / on () group_left () (sum({seconds}) > 0)", "stages")


def throughput(scope: Scope) -> str:
    """Generated tokens per second, as printed: the highest stage's, summed over replicas."""
    printed = scope.now(catalog.STAGE_GENERATION_TOKENS_PER_SECOND)
    return f"sum(max by (server, dp_rank) ({printed}))"


def of_stage(gpu_value: str, scope: Scope) -> str:
    """A value per GPU, given the labels of the stage that runs on it (of each, if they share)."""
    who = scope.select(catalog.GPU_INFO, pp_rank="!=") + scope.offset
    return f"{who} * on (job, instance, gpu, uuid) group_left () {gpu_value}"


def in_order(expression: str, label: str = "pp_rank") -> str:
    """Pads one-digit numbers: Grafana draws series as Prometheus sorts them, 10 before 2."""
    return f'label_replace({expression}, "{label}", "0$1", "{label}", "(.)")'


def or_unknown(expression: str) -> str:
    """NaN where there is no sample: a stat would else go on showing the last one it had.

    The expression must have no labels, so that both sides are one series.
    """
    return f"{expression} or vector(NaN)"


def _sum(expression: str, by: str) -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"
