"""Rules against the catalog, the thresholds, their runbooks and their own unit tests."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from exporter.metric_catalog import CATALOG
from exporter.thresholds import ALERT_PREFIX, LEAST_WORKING_RATIO, THRESHOLDS
from tests.contracts.promql import Checker, check, checker, labels_of, recording_rules
from tests.dashboards import dashboards

ROOT = Path(__file__).parents[2]
DEPLOYED = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks"
UNIT_TESTS = sorted((ROOT / "tests" / "rules").glob("*.test.yaml"))
PAGE_OF_RUNBOOKS = "README"

VARIABLES = {
    dashboard["uid"]: {variable["name"] for variable in dashboard["templating"]["list"]}
    for dashboard in dashboards()
}
"""Dashboard → its variables."""
NOT_ABOUT_ONE_FILE = {"recording", "silence"}
"""Unit tests of the recording rules, and of all alerts at once."""


def alerting_rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((DEPLOYED / "alerting.rules.yaml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


ALERTS = alerting_rules()
RECORDED = recording_rules()


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)


# --- promtool ----------------------------------------------------------------------------------


def test_promtool_accepts_the_rules_and_the_scrape_example() -> None:
    rules = promtool("check", "rules", *sorted(DEPLOYED.glob("*.rules.yaml")))
    assert rules.returncode == 0, rules.stdout + rules.stderr
    config = promtool("check", "config", DEPLOYED / "prometheus.yaml")
    assert config.returncode == 0, config.stdout + config.stderr


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.name.partition(".")[0])
def test_promtool_confirms_what_the_rules_say(path: Path) -> None:
    tested = promtool("test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


# --- names, labels, types ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RECORDED, *ALERTS])
def test_a_rule_agrees_with_the_catalog(name: str) -> None:
    assert check(RECORDED.get(name) or ALERTS[name]["expr"]) == []


@pytest.mark.parametrize("name", ALERTS)
def test_a_template_uses_labels_that_its_alert_has(name: str) -> None:
    labels = labels_of(ALERTS[name]["expr"]) or {"job", "instance"}
    for text in ALERTS[name]["annotations"].values():
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert label in labels, f"{label} is in none of {sorted(labels)}"


def test_recording_rules_are_named_for_a_level_a_metric_and_operations() -> None:
    levels = {
        "stage": {"server", "dp_rank", "pp_rank"},
        "pipeline": {"server", "dp_rank"},
        "pipeline_mode": {"server", "dp_rank", "mode"},
        "pipeline_pool": {"server", "dp_rank", "pool"},
    }
    for name, expression in RECORDED.items():
        level, metric, operations = name.split(":")
        assert set(checker().labels_of(expression) or ()) == levels[level], name
        assert any(f"{spec.name}_".startswith(f"{metric}_") for spec in CATALOG.values()), name
        assert re.fullmatch(r"[a-z_]+[0-9]*[a-z]*", operations), name


def test_the_groups_of_each_window_are_the_same_but_for_the_window() -> None:
    text = (DEPLOYED / "recording.rules.yaml").read_text()
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(text)["groups"]}
    timeless = [
        re.sub(
            rf"rate{window}\b|\[{window}\]",
            "WINDOW",
            json.dumps(groups[f"sglang-pipeline-{window}"]),
        )
        for window in ("30s", "1m", "5m")
    ]
    assert timeless[0] == timeless[1] == timeless[2]


def test_a_rule_reads_only_rules_of_its_own_group_or_of_one_before() -> None:
    known: set[str] = set()
    for name, expression in RECORDED.items():
        assert set(re.findall(r"\w+:\w+:\w+", expression)) <= known, name
        known.add(name)


@pytest.mark.parametrize("key", ["stage_bubble_seconds_total", "gpu_up", "effective_microbatches"])
def test_a_metric_renamed_in_the_catalog_alone_breaks_the_rules(key: str) -> None:
    """Issue 4, done when 6: a rename in only one place does not go unnoticed."""
    old = CATALOG[key]
    renamed = {**CATALOG, key: replace(old, name=f"{old.name}_renamed")}
    other = Checker(renamed, RECORDED)
    expressions = [*RECORDED.values(), *(rule["expr"] for rule in ALERTS.values())]
    mistakes = [mistake for expression in expressions for mistake in other.check(expression)]
    assert f"{old.name} is neither in the catalog nor a recording rule" in mistakes


def test_a_metric_renamed_in_a_rule_alone_breaks_it() -> None:
    rule = RECORDED["stage:sglang_pipeline_stage_working:ratio_rate5m"]
    renamed = rule.replace("stage_seconds_total", "stage_duration_seconds_total")
    assert check(renamed) == [
        "sglang_pipeline_stage_duration_seconds_total is neither in the catalog nor a recording rule"
    ]


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("rate(sglang_pipeline_gpu_up[1m])", "not a counter"),
        ("rate(pipeline:sglang_pipeline_bubble:ratio_rate1m[1m])", "not a counter"),
        ("max_over_time(sglang_pipeline_gpu_energy_joules_total[1m])", "restarts from zero"),
        ('sglang_pipeline_gpu_up{server="a"}', "label server in a matcher"),
        ("sum by (stage) (sglang_pipeline_stages)", "label stage in by of sum"),
        ("sum without (pp_rank) (sglang_pipeline_stages)", "label pp_rank in without of sum"),
        ("sum by (server) (sglang_pipeline_stage_queued_requests)", "summed over pp_rank"),
        ("sum(sglang:num_running_reqs)", "summed over pp_rank"),
        ("sum(sglang_pipeline_effective_microbatches)", "every exporter speaks"),
        ("sum(sglang_pipeline_occupancy_ratio)", "a ratio has a mean"),
        ("sglang_pipeline_gpu_up and sglang_pipeline_stages", "never matches"),
        ("sglang_pipeline_gpu_up / on (server) sglang_pipeline_stages", "label server in on"),
        ("sglang_pipeline_gpu_up * on (gpu) group_left (pp) sglang_pipeline_gpu_info", "label pp"),
        ('sglang_pipeline_stage_seconds_total{state="work"}', 'state="work"'),
        ('sglang_pipeline_stage_seconds_total{method=~"gpm|pwr"}', 'method="pwr"'),
        ("histogram_quantile(0.9, sglang_pipeline_gpu_up)", "label le"),
        ("sglang_pipeline_stage_batch_requests", "neither in the catalog"),
        ('{server="kimi"}', "every series there is"),
    ],
)
def test_the_checker_finds(expression: str, mistake: str) -> None:
    assert any(mistake in found for found in check(expression)), check(expression)


# --- thresholds and annotations ----------------------------------------------------------------


def test_every_alert_has_a_threshold_and_every_threshold_an_alert() -> None:
    assert {ALERT_PREFIX + name for name in THRESHOLDS} == ALERTS.keys()


@pytest.mark.parametrize("name", THRESHOLDS)
def test_the_numbers_of_an_alert_are_those_of_its_threshold(name: str) -> None:
    threshold, rule = THRESHOLDS[name], ALERTS[ALERT_PREFIX + name]
    assert numbers(rule["expr"]) - {0.0} == {threshold.value, *threshold.gates.values()} - {0.0}
    assert threshold.metric in rule["expr"]
    compared = rf"{re.escape(threshold.fires.value)}(?: on \([a-z_, ]+\))? {threshold.value:g}\b"
    assert re.search(compared, rule["expr"]), compared
    assert seconds(rule.get("for", "0s")) == threshold.for_seconds
    assert rule["labels"] == {"severity": threshold.severity}
    windows = re.findall(r"(?:\[|rate|increase)([0-9]+[smhd])\b", rule["expr"])
    assert not threshold.window_seconds or threshold.window_seconds in map(seconds, windows)


def numbers(expression: str) -> set[float]:
    """The numbers an expression compares or calculates with; durations and label values aside."""
    return {
        float(number)
        for number in re.findall(
            r"NumberLiteral \{\s*val: ([-0-9.e]+),", repr(promql_parser.parse(expression))
        )
    }


def seconds(duration: str) -> int:
    return int(promql_parser.parse_duration(duration).total_seconds()) if duration != "0s" else 0


def test_a_share_is_held_twice_its_window_before_it_alerts() -> None:
    """Counted events are facts at once; everything else may be a moment."""
    for name, threshold in THRESHOLDS.items():
        if threshold.unit not in {"events", "state"}:
            assert threshold.for_seconds >= 2 * threshold.window_seconds, name
            assert threshold.for_seconds > 0, name


def test_skew_and_balance_are_absent_below_the_same_mean_everywhere() -> None:
    for name, expression in RECORDED.items():
        if ":sglang_pipeline_stage_skew:" in name or ":sglang_pipeline_balance:" in name:
            assert numbers(expression) == {1.0, LEAST_WORKING_RATIO}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_is_and_where_to_look(name: str) -> None:
    annotations = ALERTS[name]["annotations"]
    assert annotations.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
    assert annotations["runbook_url"] == f"https://docs.example/runbooks/{name}.md"
    board = re.fullmatch(
        r"https://grafana\.example/d/([a-z-]+)\?var-([a-z_]+)=\{\{ \$labels\.\2 \}\}",
        annotations["dashboard_url"],
    )
    assert board is not None
    assert board[2] in VARIABLES[board[1]]
    for text in (annotations["summary"], annotations["description"]):
        assert text.endswith("."), text
        for value in re.findall(r"\{\{ (\$value.*?) \}\}", text):
            assert "humanize" in value, text


# --- runbooks and unit tests -------------------------------------------------------------------


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {PAGE_OF_RUNBOOKS, *ALERTS}


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_has_its_four_parts_and_begins_with_the_command_to_run(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Meaning",
        "Impact",
        "Diagnosis",
        "Mitigation",
    ]
    diagnosis = text.partition("## Diagnosis\n\n")[2]
    assert diagnosis.startswith(
        "```\nsglang-pipeline-exporter diagnose --attach --config "
        "/etc/sglang-pipeline-exporter/exporter.yaml\n```\n"
    )


@pytest.mark.parametrize("path", [*RUNBOOKS.glob("*.md"), ROOT / "docs" / "alerts.md"], ids=str)
def test_promql_in_the_text_is_right(path: Path) -> None:
    for expression in re.findall(r"^```promql\n(.*?)^```$", path.read_text(), re.M | re.S):
        for query in expression.strip().split("\n\n"):
            assert check(query) == [], query


def cases(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(path.read_text())["tests"])


@pytest.mark.parametrize("name", THRESHOLDS)
def test_an_alert_is_tested_silent_and_firing_with_its_whole_text(name: str) -> None:
    path = ROOT / "tests" / "rules" / f"{name}.test.yaml"
    expected = [
        entry["exp_alerts"]
        for case in cases(path)
        for entry in case.get("alert_rule_test", ())
        if entry["alertname"] == ALERT_PREFIX + name
    ]
    assert [] in expected
    assert any(expected)


def test_every_case_has_a_name_and_every_file_an_alert() -> None:
    names = [case["name"] for path in UNIT_TESTS for case in cases(path)]
    assert all(names)
    stems = {path.name.partition(".")[0] for path in UNIT_TESTS}
    assert stems == {*THRESHOLDS, *NOT_ABOUT_ONE_FILE}


def test_every_alert_survives_a_counter_reset_or_reads_no_counter() -> None:
    for name in THRESHOLDS:
        told = " ".join(case["name"] for case in cases(ROOT / "tests/rules" / f"{name}.test.yaml"))
        assert "reset" in told or "restart" in told, name
