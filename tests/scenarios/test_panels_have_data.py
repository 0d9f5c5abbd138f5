"""Every query of every panel finds data in the scenario that it is made for.

Demos and SGLang's own metrics (a target of ours with its names) run side by side and are scraped
by one Prometheus; variables are what a person would pick.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest

from exporter.simulator.log_writers import find_journal_remote
from tests import prometheus_server
from tests.dashboards import PanelQuery, dashboards, instant_values, queries_of, substituted
from tests.demo_pipelines import SGLANG_JOB, running_demos
from tests.metrics_target import MODEL
from tests.prometheus_server import Prometheus
from tests.unit.test_collector import everything

KNOWN = "everything-known"
"""A target of the collector's own, of which everything is known; its server is `kimi`."""
USUAL = "healthy"
MADE_FOR = {
    "effective_microbatches": "uneven_split",
    'state="waiting"': "thundering_herd",
    'state="working", method=~"gpm|power"': "thundering_herd",
    "gpu_throttled_seconds_total": "gpu_fault",
    "gpu_xid_errors_total": "gpu_lost",
    "exporter_nvml_errors_total": "gpu_lost",
    "predicted_gain_ratio": KNOWN,  # wants two different loads of one server; a demo has one
}
"""What an expression holds → the job in which it has something to show."""
QUERIES = [query for dashboard in dashboards() for query in queries_of(dashboard)]
SHOWN_WITHIN_SECONDS = 90.0
"""A GPU is lost 20 s after the start, and figures over 30 s want their 30 s."""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        prometheus_server.why_not() is not None, reason=str(prometheus_server.why_not())
    ),
    pytest.mark.skipif(
        find_journal_remote() is None, reason="systemd-journal-remote is not installed"
    ),
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    scenarios = sorted({USUAL, *MADE_FOR.values()} - {KNOWN})
    others = {KNOWN: lambda: generate_latest(everything())}
    with running_demos(tmp_path_factory.mktemp("panels"), scenarios, others=others) as running:
        yield running


def scenario_of(expression: str) -> str:
    """The job that a query is made for."""
    return next((job for part, job in MADE_FOR.items() if part in expression), USUAL)


def picked(job: str) -> dict[str, str]:
    """Values of the variables, as a person picks them."""
    server = "kimi" if job == KNOWN else "sglang"
    return {
        "job": f"{job}|{SGLANG_JOB}",
        **dict.fromkeys(("instance", "pp_rank", "gpu"), ".+"),
        **dict.fromkeys(("server", "server_a", "server_b"), server),
        **dict.fromkeys(("model", "model_a", "model_b"), MODEL),
        "dp_rank": "0",
        "offset_b": "5s",
        "__rate_interval": "20s",
    }


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_it_has_data_in_its_scenario(prometheus: Prometheus, query: PanelQuery) -> None:
    values = picked(scenario_of(query.expression))
    prometheus.wait_until(lambda: instant_values(prometheus, query, values), SHOWN_WITHIN_SECONDS)


@pytest.mark.parametrize("name", ["Server started", "Configuration changed"])
def test_a_start_is_annotated(prometheus: Prometheus, name: str) -> None:
    """For a minute from the first scrape on, as when the server was started then."""
    annotations = dashboards()[0]["annotations"]["list"]
    expression = next(one["expr"] for one in annotations if one["name"] == name)
    at_any_time = f"count_over_time(({substituted(expression, picked(USUAL))})[10m:1s])"
    prometheus.wait_until(lambda: prometheus.query(at_any_time), SHOWN_WITHIN_SECONDS)


def test_rows_of_stages_come_in_their_order(prometheus: Prometheus) -> None:
    """As Prometheus sorts them, so that stage 10 does not come between 1 and 2."""
    query = next(one for one in QUERIES if one.panel == "Stages that work at once")
    expression = substituted(query.expression, picked(USUAL))
    [(_, end)] = prometheus.query("vector(time())")
    answer = prometheus.ask(
        "query_range", query=expression, start=f"{end - 5}", end=f"{end}", step="1"
    )
    names = [series["metric"]["stages"] for series in answer["result"]]
    assert names == [f"{number:02}" for number in range(9)]
