"""Every query of every panel: names and labels of the catalog, rates, scope, units."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.metric_catalog import CATALOG, PREFIX, MetricType
from grafana import sglang
from tests.contracts.promql import Checker, check, labels_of
from tests.dashboards import Json, PanelQuery, dashboards, panels_of, queries_of, variables_of

ALL = dashboards()
QUERIES = [query for dashboard in ALL for query in queries_of(dashboard)]
each_query = pytest.mark.parametrize("query", QUERIES, ids=str)

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
NOT_SHOWN = {
    "stage_forward_occupancy_ratio": "an upper bound beside better figures; for diagnose",
    "stage_forward_idle_occupancy_ratio": "an upper bound beside better figures; for diagnose",
    "stage_accept_length": "speculative decoding does not go with pipeline stages up to 0.5.16",
    "stage_working_ratio": "one second of stage_seconds_total, which is right at any interval",
    "occupancy_ratio": "one second of the same counters",
    "bubble_ratio": "one second of the same counters",
    "inflight_seconds_total": "shares are over each stage's own time in flight",
    "exporter_config_last_reload_success_timestamp_seconds": "for the runbook; 1 or 0 is shown",
    "active_stages_window_seconds": "a fact of the exporter; the panel's text says what it means",
    "exporter_http_refused_total": "what clients did; it says nothing of a pipeline",
}
"""Metrics that no panel reads, and maybe no rule, and why."""

UNITS = {
    "_watts": "watt",
    "_celsius": "celsius",
    "_hertz": "hertz",
    "_bytes": "bytes",
    "_ratio": "percentunit",
    "_seconds": "s",
}
UNITS_OF_RATES = {"_bytes_total": "Bps", "_joules_total": "watt", "_seconds_total": "percentunit"}
FACTORS = {"predicted_gain_ratio": "times, not a share"}


@each_query
def test_it_is_promql_with_names_and_labels_of_the_catalog(query: PanelQuery) -> None:
    assert check(query.expression) == []


@each_query
def test_every_selector_says_job_and_instance(query: PanelQuery) -> None:
    selectors = re.findall(r"\{([^{}]*)\}", query.expression)
    assert selectors
    for selector in selectors:
        assert selector.startswith('job=~"$job", instance=~"$instance"'), selector


@each_query
def test_its_ranges_are_grafanas_rate_interval(query: PanelQuery) -> None:
    assert set(re.findall(r"\[(.*?)\]", query.expression)) <= {"$__rate_interval"}


@each_query
def test_it_invents_no_zero(query: PanelQuery) -> None:
    assert "vector(0)" not in query.expression


@each_query
def test_its_legend_names_labels_that_its_series_have(query: PanelQuery) -> None:
    known = labels_of(query.expression)
    for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
        assert known is None or label in known, label


@pytest.mark.parametrize("dashboard", ALL, ids=lambda one: one["uid"])
def test_variables_and_annotations_read_what_there_is(dashboard: Json) -> None:
    for variable in variables_of(dashboard).values():
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable.get("definition", ""))
        if found and not found[1].startswith("{"):
            assert check(found[1]) == []
            labels = labels_of(found[1])
            assert labels is not None
            assert found[2] in labels
    for annotation in dashboard["annotations"]["list"][1:]:
        assert check(annotation["expr"]) == []


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("sglang_pipeline_stage_seconds", "neither in the catalog"),
        ('sglang_pipeline_stage_seconds_total{stage="1"}', "label stage"),
        ("rate(sglang_pipeline_occupancy_ratio[$__rate_interval])", "not a counter"),
        ("sum(sglang_pipeline_stage_running_requests)", "summed over pp_rank"),
        ("sum(sglang_pipeline_stage_queued_requests)", "summed over pp_rank"),
        ("sum(sglang_pipeline_stage_generation_tokens_per_second)", "summed over pp_rank"),
    ],
)
def test_a_mistake_in_a_panel_would_be_found(expression: str, mistake: str) -> None:
    assert any(mistake in each for each in check(expression))


def test_a_metric_renamed_in_one_place_only_is_found() -> None:
    """In the catalog, but not on the committed dashboards."""
    for key in ("stage_seconds_total", "gpu_power_watts", "exporter_source_up"):
        renamed = dict(CATALOG)
        renamed[key] = replace(CATALOG[key], name=f"{PREFIX}renamed")
        wanting = Checker(renamed, {})
        mistakes = [each for query in QUERIES for each in wanting.check(query.expression)]
        assert any(CATALOG[key].name in each for each in mistakes), key


def test_every_metric_is_shown_or_there_is_a_reason() -> None:
    rules = [path.read_text() for path in RULES.glob("*.rules.yaml")]
    text = " ".join([*(query.expression for query in QUERIES), *rules])
    shown = {
        key
        for key, spec in CATALOG.items()
        if re.search(rf"\b{spec.name}(_bucket|_sum|_count)?\b", text)
    }
    assert CATALOG.keys() - shown <= NOT_SHOWN.keys()
    on_panels = " ".join(query.expression for query in QUERIES)
    assert not [key for key in NOT_SHOWN if f"{CATALOG[key].name}{{" in on_panels]


@pytest.mark.parametrize(
    "panel", [panel for one in ALL for panel in panels_of(one)], ids=lambda one: one["title"]
)
def test_its_unit_is_that_of_its_metric(panel: Json) -> None:
    """Where a query is one metric without arithmetic, its suffix says the unit."""
    config = panel["fieldConfig"]
    if config["overrides"] and panel["type"] == "table":
        pytest.skip("columns have units of their own")
    for target in panel["targets"]:
        expression = target["expr"]
        names = set(re.findall(rf"\b{PREFIX}(\w+)", expression)) - {"gpu_info"}
        if len(names) == 1 and " / " not in expression and "time() -" not in expression:
            wanted = unit_of(names.pop(), "rate(" in expression)
            assert config["defaults"]["unit"] in wanted, expression


def unit_of(name: str, is_rate: bool) -> set[str]:
    """Units that fit a metric's name."""
    if name in FACTORS:
        return {"short"}
    for suffix, unit in (UNITS_OF_RATES if is_rate else UNITS).items():
        if name.endswith(suffix):
            return {unit}
    return {"short", "string"}


def test_counters_stand_under_a_rate_only() -> None:
    counters = [spec.name for spec in CATALOG.values() if spec.type is MetricType.COUNTER]
    for query in QUERIES:
        for name in counters:
            for at in re.finditer(rf"\b{name}\b", query.expression):
                before = query.expression[: at.start()]
                assert before.endswith(("rate(", "increase(")), query.expression


def test_sglangs_own_metrics_are_two_and_named() -> None:
    used = {name for query in QUERIES for name in re.findall(r"sglang:\w+", query.expression)}
    wanted = (sglang.TIME_TO_FIRST_TOKEN, sglang.INTER_TOKEN_LATENCY)
    assert used == {f"{name}_bucket" for name in wanted}
