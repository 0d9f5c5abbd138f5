"""Checks PromQL against the metric catalog: names, labels, what may be rated, what may be summed.

`check(expression)` names every mistake of an expression in a rule or a panel; `labels_of` says
which labels its series carry. Labels are followed through the whole expression, so a rule that
drops a label which a later one joins on is found here and not on a dashboard that stays empty.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promql_parser as parser
import yaml

from exporter.metric_catalog import CATALOG, MetricSpec, MetricType
from exporter.records import Method, Mode, Signal

RECORDING_RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "recording.rules.yaml"

TARGET_LABELS = frozenset({"job", "instance"})
"""Labels that Prometheus adds to every series it scrapes."""

FOREIGN = {
    "up": "Prometheus itself: whether a target answered",
    "ALERTS": "Prometheus itself: alerts that fire, for annotations",
    "process_": "prometheus_client: the exporter's own process",
    "sglang:": "SGLang's own metrics, where they are scraped too",
}
"""Series of others that rules and panels may use (a name, or how it begins), and whose they are."""

KNOWN_VALUES: dict[str, set[str]] = {
    "state": {"working", "waiting", "idle"},
    "method": set(Method),
    "mode": set(Mode),
    "signal": set(Signal),
    "origin": {"computed", "cached"},
    "pool": {"kv", "full", "swa", "mamba"},
}
"""Label values that are a closed set: a matcher with another one finds nothing, for ever."""

SAID_BY_EVERY_STAGE = {
    "sglang_pipeline_stage_running_requests",
    "sglang_pipeline_stage_batch_size",
    "sglang_pipeline_stage_queued_requests",
    "sglang_pipeline_stage_generation_tokens_per_second",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:gen_throughput",
}
"""Every stage speaks of the same requests: summed over `pp_rank` they count once a stage."""

SAID_BY_EVERY_EXPORTER = {
    "sglang_pipeline_microbatch_slots",
    "sglang_pipeline_microbatch_slots_observable",
    "sglang_pipeline_effective_microbatches",
    "sglang_pipeline_inflight_seconds_total",
}
"""Every exporter of a pipeline speaks of the whole of it: never summed."""

_OVER_TIME_OF_COUNTERS = {"rate", "irate", "increase", "resets"}
_OVER_TIME_OF_ANYTHING = {
    "present_over_time",
    "absent_over_time",
    "last_over_time",
    "count_over_time",
}
_SUFFIXES = {
    MetricType.HISTOGRAM: ("_bucket", "_sum", "_count"),
    MetricType.SUMMARY: ("_sum", "_count"),
}
_SET_OPERATORS = {"and", "or", "unless"}
_GRAFANA = (
    (re.compile(r"\[\$__(?:rate_interval|interval|range)\b"), "[5m"),
    (re.compile(r":\$__(?:rate_interval|interval)\]"), ":1m]"),
    (re.compile(r"\boffset \$\w+"), "offset 1h"),
    (re.compile(r"\$__(?:rate_interval|interval|range)\b"), "5m"),
)

Labels = frozenset[str] | None
"""Labels that series carry; `None` where they are not known (foreign series)."""


def parsable(expression: str) -> str:
    """An expression with Grafana's variables replaced: the parser takes durations only."""
    for pattern, duration in _GRAFANA:
        expression = pattern.sub(duration, expression)
    return expression


class Checker:
    """Checks expressions against a catalog and the recording rules built on it."""

    def __init__(self, catalog: Mapping[str, MetricSpec], rules: Mapping[str, str]) -> None:
        """Takes the rules by name, each after those it reads."""
        self._series: dict[str, tuple[MetricSpec, str]] = {}
        for spec in catalog.values():
            for suffix in _SUFFIXES.get(spec.type, ("",)):
                self._series[spec.name + suffix] = (spec, suffix)
        self._rules: dict[str, Labels] = {}
        self._mistakes: list[str] = []
        for name, expression in rules.items():
            self._rules[name] = self._labels(parser.parse(expression))

    def check(self, expression: str) -> list[str]:
        """Every mistake in an expression, in words; empty if there is none."""
        self._mistakes = []
        self.labels_of(expression)
        return list(dict.fromkeys(self._mistakes))

    def labels_of(self, expression: str) -> Labels:
        """The labels of its series; `None` where they are not known.

        Raises:
            ValueError: It is no PromQL.
        """
        return self._labels(parser.parse(parsable(expression)))

    # --- one node of the expression ------------------------------------------------------------

    def _labels(self, node: Any) -> Labels:
        match node:
            case parser.VectorSelector():
                return self._selector(node)
            case parser.MatrixSelector():
                return self._selector(node.vector_selector)
            case parser.AggregateExpr():
                return self._aggregate(node)
            case parser.BinaryExpr():
                return self._binary(node)
            case parser.Call():
                return self._call(node)
            case parser.NumberLiteral() | parser.StringLiteral():
                return frozenset()
            case _:  # parentheses, a sign, a subquery
                return self._labels(node.expr)

    def _selector(self, node: Any) -> Labels:
        name = node.name
        if name is None:
            self._say("a selector without a name reads every series there is")
            return None
        if any(name == own or (own[-1] in "_:" and name.startswith(own)) for own in FOREIGN):
            return None
        if name in self._rules:
            labels = self._rules[name]
        elif name in self._series:
            spec, suffix = self._series[name]
            le = {"le"} if suffix == "_bucket" else set()
            labels = frozenset({*spec.labels, *le}) | TARGET_LABELS
        else:
            self._say(f"{name} is neither in the catalog nor a recording rule")
            return None
        for matcher in itertools.chain(node.matchers.matchers, *node.matchers.or_matchers):
            self._expect([matcher.name], labels, f"a matcher of {name}")
            self._check_value(name, matcher)
        return labels

    def _check_value(self, name: str, matcher: Any) -> None:
        known = KNOWN_VALUES.get(matcher.name)
        values = matcher.value.split("|")
        if known is None or not all(re.fullmatch(r"\w*", value) for value in values):
            return
        for value in values:
            if value not in known:
                self._say(f'{matcher.name}="{value}" of {name} does not exist')

    def _aggregate(self, node: Any) -> Labels:
        inner = self._labels(node.expr)
        operator = str(node.op)
        modifier = node.modifier
        is_by = modifier is not None and modifier.type == parser.AggModifierType.By
        named = [] if modifier is None else list(modifier.labels)
        self._expect(named, inner, f"{'by' if is_by else 'without'} of {operator}")
        if modifier is None:
            labels: Labels = frozenset()
        elif is_by:
            labels = frozenset(named)
        else:
            labels = None if inner is None else inner - set(named)
        if operator == "sum":
            self._check_sum(node.expr, inner, labels)
        if operator in {"topk", "bottomk"}:
            return inner
        if operator == "count_values" and labels is not None:
            return labels | {node.param.val}
        return labels

    def _check_sum(self, summed: Any, inner: Labels, kept: Labels) -> None:
        def lost(label: str) -> bool:
            return (inner is None or label in inner) and kept is not None and label not in kept

        for name in _names(summed):
            if name in SAID_BY_EVERY_STAGE and lost("pp_rank"):
                self._say(f"{name} is summed over pp_rank: every stage speaks of the same requests")
            if name in SAID_BY_EVERY_EXPORTER and lost("instance"):
                self._say(f"{name} is summed: every exporter speaks of the whole pipeline")
        if isinstance(summed, parser.VectorSelector) and "ratio" in (summed.name or ""):
            self._say(f"{summed.name} is summed: a ratio has a mean, not a sum")

    def _binary(self, node: Any) -> Labels:
        left, right = self._labels(node.lhs), self._labels(node.rhs)
        if _is_scalar(node.rhs):
            return left
        if _is_scalar(node.lhs):
            return right
        operator, modifier = str(node.op), node.modifier
        matching = modifier.matching if modifier is not None else None
        if matching is None:
            self._expect_equal(left, right, operator)
            joined = left
        elif matching.type == parser.LabelModifierType.Include:
            self._expect(matching.labels, left, f"on of {operator} (left)")
            self._expect(matching.labels, right, f"on of {operator} (right)")
            joined = frozenset(matching.labels)
        else:
            ignored = set(matching.labels)
            known = None if left is None or right is None else left | right
            self._expect(matching.labels, known, f"ignoring of {operator}")
            joined = None if left is None else left - ignored
            self._expect_equal(joined, None if right is None else right - ignored, operator)
        if operator in _SET_OPERATORS:
            return left
        return self._grouped(modifier, left, right, joined)

    def _grouped(self, modifier: Any, left: Labels, right: Labels, joined: Labels) -> Labels:
        """The labels of an arithmetic result: all of the many side, and what it takes over."""
        card = str(modifier.card) if modifier is not None else ""
        if card.endswith("ManyToOne"):
            many, one = left, right
        elif card.endswith("OneToMany"):
            many, one = right, left
        else:
            return joined
        taken = modifier.group_labels or []
        self._expect(taken, one, "group_left or group_right")
        return None if many is None else many | set(taken)

    def _call(self, node: Any) -> Labels:
        name = node.func.name
        vectors = [
            argument
            for argument in node.args
            if not isinstance(argument, parser.NumberLiteral | parser.StringLiteral)
        ]
        labels = [self._labels(vector) for vector in vectors]
        if name in {"scalar", "time", "vector", "pi"} or not vectors:
            return frozenset()
        inner = labels[0]
        self._check_counter(name, vectors[0])
        if name in {"label_replace", "label_join"} and inner is not None:
            return inner | {node.args[1].val}
        if name == "histogram_quantile":
            self._expect(["le"], inner, name)
            return None if inner is None else inner - {"le"}
        return inner

    def _check_counter(self, function: str, argument: Any) -> None:
        if not isinstance(argument, parser.MatrixSelector):
            return
        series = argument.vector_selector.name
        if series in self._series:
            spec, suffix = self._series[series]
            counts = spec.type is MetricType.COUNTER or suffix != ""
        elif series in self._rules:
            counts = False
        else:
            return
        if function in _OVER_TIME_OF_COUNTERS and not counts:
            self._say(f"{function}({series}): not a counter")
        if function not in _OVER_TIME_OF_COUNTERS | _OVER_TIME_OF_ANYTHING and counts:
            self._say(f"{function}({series}): a counter, which restarts from zero")

    # --- what is said of it --------------------------------------------------------------------

    def _say(self, mistake: str) -> None:
        self._mistakes.append(mistake)

    def _expect(self, names: list[str], labels: Labels, where: str) -> None:
        for name in names:
            if labels is not None and name not in labels:
                self._say(f"label {name} in {where}: its series have {sorted(labels)}")

    def _expect_equal(self, left: Labels, right: Labels, operator: str) -> None:
        if left is not None and right is not None and left != right and operator != "or":
            self._say(f"{operator} never matches: {sorted(left)} against {sorted(right)}")


def _is_scalar(node: Any) -> bool:
    if isinstance(node, parser.ParenExpr | parser.UnaryExpr):
        return _is_scalar(node.expr)
    if isinstance(node, parser.Call):
        return bool(node.func.name in {"scalar", "time", "pi"})
    return isinstance(node, parser.NumberLiteral)


def _names(node: Any) -> set[str]:
    """The series an expression reads."""
    return set(re.findall(r'name: Some\(\s*"([^"]+)"', repr(node)))


def recording_rules(path: Path = RECORDING_RULES) -> dict[str, str]:
    """Expression by recorded name, in the file's order; empty where there is no file."""
    if not path.exists():
        return {}
    groups = yaml.safe_load(path.read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


@functools.cache
def checker() -> Checker:
    """The checker of the repository's own catalog and rules."""
    return Checker(CATALOG, recording_rules())


def check(expression: str) -> list[str]:
    """Every mistake in an expression, in words; Grafana's variables are understood.

    Raises:
        ValueError: It is no PromQL.
    """
    return checker().check(expression)


def labels_of(expression: str) -> Labels:
    """The labels its series carry; `None` where they are not known (foreign series)."""
    return checker().labels_of(expression)
