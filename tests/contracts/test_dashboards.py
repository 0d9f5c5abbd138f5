"""The dashboards against the code that builds them, Grafana's types, and our own conventions.

What `dashboard-linter --strict` wants is wanted here without exclusions, and more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from exporter.thresholds import ALERT_PREFIX, LEAST_MEASURED_RATIO, THRESHOLDS, Fires
from grafana import palette
from grafana.build_dashboards import FOLDER, stale
from grafana.figures import NONE_SEEN, NOT_OBSERVABLE
from grafana.links import DOCS, RUNBOOKS
from tests.dashboards import Json, dashboards, panels_of, queries_of, variables_of

ALL = dashboards()
UIDS = {
    "sglang-pipeline-occupancy",
    "sglang-pipeline-compare",
    "sglang-pipeline-gpu",
    "sglang-pipeline-exporter",
}
RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
APPEAR_WHEN_SEEN = {
    "XID errors",
    "Slowed down, by reason",
    "Calls of the driver that failed",
    "Lines refused, by reason",
    "What would show more",
}
"""Panels of series that are absent until something happens."""
SINGLE = {"server", "dp_rank", "model", "server_a", "server_b", "model_a", "model_b"}
"""Of these one is picked: figures of two pipelines must not be mixed."""


def every(kind: str) -> Any:
    """Runs a test for each dashboard, or for each panel of each."""
    found = {"dashboard": ALL, "panel": [panel for one in ALL for panel in panels_of(one)]}[kind]
    return pytest.mark.parametrize(kind, found, ids=lambda one: one["title"])


# --- the files ---------------------------------------------------------------------------------


def test_the_committed_files_are_what_the_code_builds() -> None:
    assert stale() == [], "run make dashboards"


def test_there_are_these_dashboards_with_these_addresses() -> None:
    assert {one["uid"] for one in ALL} == UIDS
    assert {path.stem for path in FOLDER.glob("*.json")} == UIDS


@every("dashboard")
def test_grafanas_own_types_read_it_without_loss(dashboard: Json) -> None:
    register_default_plugins()
    again = json.loads(json.dumps(Dashboard.from_json(dashboard), cls=JSONEncoder))
    assert again == dashboard


@every("dashboard")
def test_it_can_be_imported_by_hand_and_by_provisioning(dashboard: Json) -> None:
    assert "__inputs" not in dashboard
    assert "__requires" not in dashboard
    assert dashboard.get("id") is None
    assert "${DS_" not in json.dumps(dashboard)


@every("dashboard")
def test_its_frame_follows_the_conventions(dashboard: Json) -> None:
    assert dashboard["editable"] is False
    assert dashboard["graphTooltip"] == 1
    assert dashboard["time"] == {"from": "now-15m", "to": "now"}
    assert dashboard["refresh"] in {"5s", "10s"}
    assert dashboard["schemaVersion"] == 41
    assert dashboard["tags"] == ["sglang-pipeline"]
    assert dashboard["description"]


@every("dashboard")
def test_it_leads_to_its_siblings_the_runbooks_and_the_source(dashboard: Json) -> None:
    by_tag, *others = dashboard["links"]
    assert by_tag["type"] == "dashboards"
    assert by_tag["tags"] == dashboard["tags"]
    assert by_tag["keepTime"]
    assert by_tag["includeVars"]
    assert all(link["url"].startswith(DOCS) for link in others)
    assert RUNBOOKS in {link["url"] for link in others}


@every("dashboard")
def test_it_notes_alerts_starts_and_changes_of_configuration(dashboard: Json) -> None:
    built_in, *own = dashboard["annotations"]["list"]
    assert built_in["builtIn"] == 1
    assert [one["name"] for one in own] == [
        "Firing alerts",
        "Server started",
        "Configuration changed",
    ]
    assert all(one["datasource"] == DATASOURCE and one["enable"] for one in own)
    assert f'alertname=~"{ALERT_PREFIX}.+"' in own[0]["expr"]


# --- variables ---------------------------------------------------------------------------------


@every("dashboard")
def test_it_has_one_data_source_variable(dashboard: Json) -> None:
    found = [one for one in dashboard["templating"]["list"] if one["type"] == "datasource"]
    assert [(one["name"], one["label"], one["query"]) for one in found] == [
        ("datasource", "Data Source", "prometheus")
    ]


@every("dashboard")
def test_job_and_instance_come_first_and_take_many(dashboard: Json) -> None:
    names = list(variables_of(dashboard))
    assert names[:3] == ["datasource", "job", "instance"]
    for name in ("job", "instance"):
        variable = variables_of(dashboard)[name]
        assert variable["type"] == "query"
        assert variable["multi"]
        assert variable["includeAll"]
        assert variable["allValue"] == ".+"


@every("dashboard")
def test_variables_are_named_like_their_label_and_follow_the_time_range(dashboard: Json) -> None:
    for name, variable in variables_of(dashboard).items():
        if variable["type"] == "query":
            assert variable["label"] == name
            assert variable["datasource"] == DATASOURCE
            assert variable["refresh"] == 2
            assert variable["multi"] is (name not in SINGLE)


@every("dashboard")
def test_each_variable_depends_on_those_before_it(dashboard: Json) -> None:
    before: list[str] = []
    for name, variable in variables_of(dashboard).items():
        used = re.findall(r"\$(\w+)", variable.get("definition", ""))
        assert set(used) <= set(before), name
        if variable["type"] == "query" and name != "job":
            assert "job" in used, name
        before.append(name)


@every("dashboard")
def test_every_variable_is_used_and_every_used_one_is_there(dashboard: Json) -> None:
    text = json.dumps([dashboard["panels"], dashboard["templating"], dashboard["annotations"]])
    used = {name for name in re.findall(r"\$\{?([a-z]\w*)", text) if name != "__rate_interval"}
    assert used == set(variables_of(dashboard))


# --- panels ------------------------------------------------------------------------------------


@every("dashboard")
def test_it_has_at_most_25_panels_with_names_and_numbers_of_their_own(dashboard: Json) -> None:
    panels = list(panels_of(dashboard))
    assert 0 < len(panels) <= 25
    assert len({panel["title"] for panel in panels}) == len(panels)
    rows = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    numbers = [panel["id"] for panel in (*panels, *rows)]
    assert len(set(numbers)) == len(numbers)


@every("dashboard")
def test_no_panel_lies_on_another_or_outside(dashboard: Json) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in _shown(dashboard):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def _shown(dashboard: Json) -> Iterator[Json]:
    yield from (panel for panel in dashboard["panels"])
    for row in dashboard["panels"]:
        yield from row.get("panels", ())


@every("panel")
def test_it_says_what_it_answers_what_is_good_and_what_to_do(panel: Json) -> None:
    question, good, otherwise = panel["description"].split("\n\n")
    assert "?" in question
    assert good.startswith("**Good:** ")
    assert otherwise.startswith("**Otherwise:** ")
    assert all(part.endswith((".", "?")) for part in (question, good, otherwise))


@every("panel")
def test_it_has_targets_on_the_dashboards_data_source(panel: Json) -> None:
    assert panel["datasource"] == DATASOURCE
    assert panel["targets"]
    assert all(target["datasource"] == DATASOURCE for target in panel["targets"])
    names = [target["refId"] for target in panel["targets"]]
    assert len(set(names)) == len(names)


@every("panel")
def test_it_has_a_unit_and_says_when_nothing_is_known(panel: Json) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    expected = NONE_SEEN if panel["title"] in APPEAR_WHEN_SEEN else NOT_OBSERVABLE
    assert defaults["noValue"] == expected
    unknown = defaults["mappings"][-1]["options"]
    assert unknown["match"] == "null+nan"
    assert unknown["result"]["text"] == NOT_OBSERVABLE


@every("panel")
def test_its_answers_have_the_form_that_its_kind_reads(panel: Json) -> None:
    """A table's form has one frame for all series: any other kind would show one of them."""
    forms = {target["format"] for target in panel["targets"]}
    if panel["type"] in {"table", "xychart"}:
        assert forms == {"table"}
        assert all(target["instant"] for target in panel["targets"])
    elif panel["options"].get("rowsFrame", {}).get("layout") == "le":
        assert forms == {"heatmap"}
    else:
        assert forms == {"time_series"}


@every("panel")
def test_ratios_are_drawn_from_0_to_1(panel: Json) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    if defaults["unit"] == "percentunit" and panel["title"] != "Processor time":
        assert defaults["max"] == 1
        relative = "relative to the highest" in panel["title"]
        assert defaults["min"] == (0.5 if relative else 0)


@every("panel")
def test_lines_have_a_table_of_mean_and_maximum(panel: Json) -> None:
    if panel["type"] == "timeseries":
        legend = panel["options"]["legend"]
        assert (legend["displayMode"], legend["calcs"]) == ("table", ["mean", "max"])


@every("panel")
def test_its_colors_are_those_that_a_color_blind_reader_tells_apart(panel: Json) -> None:
    known = {value for value in vars(palette).values() if isinstance(value, str)}
    found = set(re.findall(r"#[0-9A-Fa-f]{6}\b", json.dumps(panel)))
    assert found <= known
    color = panel["fieldConfig"]["defaults"].get("color", {})
    assert color.get("mode") not in {"continuous-GrYlRd", "continuous-RdYlGr"}


def numbers_of_alerts() -> set[float]:
    """Every bound that an alert has, and what it is on the figure's complement."""
    found = {
        LEAST_MEASURED_RATIO,
        1 / THRESHOLDS["ThunderingHerd"].gates["stages to a micro-batch"],
    }
    for threshold in THRESHOLDS.values():
        value = threshold.value + (threshold.fires is Fires.EQUAL)
        value += 1e-6 * (threshold.fires is Fires.ABOVE)
        found |= {value, 1 - value}
    return found


@every("panel")
def test_its_thresholds_are_those_of_the_alerts(panel: Json) -> None:
    allowed = numbers_of_alerts()
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]:
        assert any(step["value"] == pytest.approx(number) for number in allowed), step


@every("panel")
def test_its_runbooks_are_of_alerts_that_there_are(panel: Json) -> None:
    for link in panel.get("links") or ():
        alert = link["title"].removeprefix("Runbook: ")
        assert alert in THRESHOLDS
        assert link["url"] == f"{RUNBOOKS}{ALERT_PREFIX}{alert}.md"


def test_every_alert_has_a_panel_that_leads_to_its_runbook() -> None:
    linked = {
        link["title"].removeprefix("Runbook: ")
        for dashboard in ALL
        for panel in panels_of(dashboard)
        for link in panel.get("links") or ()
    }
    assert linked == set(THRESHOLDS)


def test_alerts_lead_to_dashboards_that_there_are() -> None:
    rules = (RULES / "alerting.rules.yaml").read_text()
    found = re.findall(r"dashboard_url: https://[\w.]+/d/([\w-]+)", rules)
    assert len(found) == len(THRESHOLDS)
    assert set(found) <= UIDS


def test_panels_without_a_query_or_words_would_be_found() -> None:
    """The lint itself: a panel that lacks what is asked fails."""
    panel = next(panels_of(ALL[0]))
    with pytest.raises(AssertionError):
        test_it_has_targets_on_the_dashboards_data_source({**panel, "targets": []})
    with pytest.raises(ValueError, match="unpack"):
        test_it_says_what_it_answers_what_is_good_and_what_to_do({**panel, "description": "x."})


def test_every_dashboard_has_queries() -> None:
    assert all(queries_of(dashboard) for dashboard in ALL)
